"""Writes the layers and the archives of container images so that equal input produces equal bytes.

Usage: image.py layer FOLDER OUT                               a layer from a folder
       image.py image OUT NAME ARCHITECTURE PROGRAM LAYER…     a docker archive from layers
"""

import gzip
import hashlib
import io
import json
import os
import stat
import sys
import tarfile


def layer(folder: str, out: str) -> None:
    """Writes the files of a folder in a fixed order, with fixed times and owners."""
    with tarfile.open(out + ".part", "w", format=tarfile.PAX_FORMAT) as tar:
        paths = []
        for here, folders, files in os.walk(folder):
            folders.sort()
            paths += [os.path.join(here, name) for name in folders + files]
        for path in sorted(paths):
            name = os.path.relpath(path, folder)
            info = tar.gettarinfo(path, name)
            info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
            if stat.S_ISREG(os.lstat(path).st_mode):
                with open(path, "rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    os.rename(out + ".part", out)


def digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def image(out: str, name: str, architecture: str, program: str, layers: list[str]) -> None:
    """Writes a docker archive."""
    digests = [digest(path) for path in layers]
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "Entrypoint": [f"/usr/local/bin/{program}"],
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{one}" for one in digests]},
    }
    config_bytes = json.dumps(config, sort_keys=True).encode()
    config_name = hashlib.sha256(config_bytes).hexdigest() + ".json"
    names = [f"{one}.tar" for one in digests]
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": names}]
    packed = 0
    with tarfile.open(out + ".part", "w") as tar:

        def add(file_name: str, data: bytes) -> None:
            info = tarfile.TarInfo(file_name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))

        add(config_name, config_bytes)
        for file_name, path in zip(names, layers, strict=True):
            info = tarfile.TarInfo(file_name)
            info.size = os.path.getsize(path)
            with open(path, "rb") as file:
                tar.addfile(info, file)
            with open(path, "rb") as file:
                packed += len(gzip.compress(file.read(), 1))
        add("manifest.json", json.dumps(manifest).encode())
    os.rename(out + ".part", out)
    whole = os.path.getsize(out)
    print(f"{out}: {name}, {whole >> 20} MiB, {packed >> 20} MiB when packed for a registry")


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    if verb == "layer":
        layer(*rest)
    else:
        image(rest[0], rest[1], rest[2], rest[3], rest[4:])

"""Downloads an object and uploads it under a new name."""

import hashlib
import time
import uuid

from contract import require, text

NAME, VERSION = "s3-download-speed", 1


def digest(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def run(params, ctx):
    source, key = text(params, "input_bucket"), text(params, "object_key")
    target = text(params, "output_bucket")
    store, path = ctx.s3(), ctx.folder() / "object"
    uploaded = f"{uuid.uuid4().hex}-{key}"
    start = time.perf_counter()
    store.download_file(source, key, str(path))
    downloaded = time.perf_counter()
    store.upload_file(str(path), target, uploaded)
    end = time.perf_counter()
    expected = store.head_object(Bucket=source, Key=key)["Metadata"].get("md5")
    found = digest(path)
    require(found == expected, f"MD5 {found} and not {expected}")
    stored = store.head_object(Bucket=target, Key=uploaded)["ContentLength"]
    require(stored == path.stat().st_size, "the object is not in the store")
    store.delete_object(Bucket=target, Key=uploaded)
    return {
        "download_time": downloaded - start,
        "upload_time": end - downloaded,
        "check": found,
    }

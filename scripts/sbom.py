"""Writes the list of the crates and npm packages in the programs of mote (CycloneDX 1.5, JSON).

Usage: sbom.py TARGET EPOCH PACKAGE…

The crates are those that `cargo tree` names for TARGET, without those that only builds and tests
use. The npm packages are those of the dashboard. Equal sources make an equal list; EPOCH is the time in it, in seconds since 1970.
"""

import base64
import datetime
import json
import subprocess
import sys
import tomllib
import uuid


def cargo(*words: str) -> str:
    return subprocess.run(["cargo", *words], check=True, capture_output=True, text=True).stdout


def linked(target: str, packages: list[str]) -> set[tuple[str, str]]:
    """Names and versions of the crates that are linked into the programs."""
    crates = set()
    for package in packages:
        lines = cargo(
            "tree", "--locked", "--package", package, "--edges", "normal", "--target", target,
            "--prefix", "none", "--no-dedupe", "--format", "{p}",
        )  # fmt: skip
        for line in lines.splitlines():
            if line.strip():
                name, version = line.split()[:2]
                crates.add((name, version.removeprefix("v")))
    return crates


def component(package: dict, checksum: str | None) -> dict:
    found = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
    }
    if package["description"]:
        found["description"] = " ".join(package["description"].split())
    if package["license"]:
        # Older crates separate alternatives with a slash.
        expression = " ".join(package["license"].replace("/", " OR ").split())
        found["licenses"] = [{"expression": expression}]
    if package["source"]:
        found["purl"] = f"pkg:cargo/{package['name']}@{package['version']}"
    if checksum:
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return found


def of_dashboard() -> list[dict]:
    """The npm packages in the page that the program contains."""
    with open("dashboard/package-lock.json", encoding="utf-8") as file:
        packages = json.load(file)["packages"]
    found = []
    for path, package in packages.items():
        if not path or package.get("dev"):
            continue
        name = path.rpartition("node_modules/")[2]
        hash_name, _, encoded = package["integrity"].partition("-")
        found.append(
            {
                "type": "library",
                "bom-ref": f"npm:{name}@{package['version']}",
                "name": name,
                "version": package["version"],
                "licenses": [{"expression": package["license"]}],
                "purl": f"pkg:npm/{name.replace('@', '%40')}@{package['version']}",
                "hashes": [
                    {
                        "alg": hash_name.upper().replace("SHA", "SHA-"),
                        "content": base64.b64decode(encoded).hex(),
                    }
                ],
            }
        )
    return found


def reference(package: dict) -> str:
    return f"{package['name']}@{package['version']}"


def sbom(target: str, epoch: int, programs: list[str]) -> dict:
    metadata = json.loads(
        cargo("metadata", "--locked", "--format-version", "1", "--filter-platform", target)
    )
    with open("Cargo.lock", "rb") as file:
        lock = tomllib.load(file)
    checksums = {(one["name"], one["version"]): one.get("checksum") for one in lock["package"]}
    crates = linked(target, programs)
    packages = {
        package["id"]: package
        for package in metadata["packages"]
        if (package["name"], package["version"]) in crates
    }
    missing = crates - {(one["name"], one["version"]) for one in packages.values()}
    if missing:
        sys.exit(f"sbom: cargo metadata does not know {sorted(missing)}")
    components = [
        component(package, checksums.get((package["name"], package["version"])))
        for package in packages.values()
    ]
    if "mote" in programs:
        components.extend(of_dashboard())
    dependencies = []
    for node in metadata["resolve"]["nodes"]:
        if node["id"] not in packages:
            continue
        uses = {
            reference(packages[dependency["pkg"]])
            for dependency in node["deps"]
            if dependency["pkg"] in packages
            and any(kind["kind"] is None for kind in dependency["dep_kinds"])
        }
        dependencies.append({"ref": reference(packages[node["id"]]), "dependsOn": sorted(uses)})
    version = next(one["version"] for one in packages.values() if one["name"] == "mote")
    whole = f"mote-programs@{version}"
    dependencies.append(
        {"ref": whole, "dependsOn": sorted(reference(one) for one in packages.values() if one["name"] in programs)}
    )
    when = datetime.datetime.fromtimestamp(epoch, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": when,
            "component": {
                "type": "application",
                "bom-ref": whole,
                "name": "mote",
                "version": version,
                "licenses": [{"expression": "Apache-2.0"}],
            },
            "properties": [{"name": "target", "value": target}],
        },
        "components": sorted(components, key=lambda one: one["bom-ref"]),
        "dependencies": sorted(dependencies, key=lambda one: one["ref"]),
    }
    text = json.dumps(body, sort_keys=True)
    body["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}"
    return body


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    json.dump(sbom(sys.argv[1], int(sys.argv[2]), sys.argv[3:]), sys.stdout, indent=1, sort_keys=True)
    print()

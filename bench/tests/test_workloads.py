"""Runs every workload at its smallest size with its plain HTTP adapter: it does the work, proves
it, and leaves nothing behind."""

import importlib.util
import sys
from pathlib import Path

import pytest

from motelab import catalog
from motelab.assembly import ADAPTERS, TWINS, assemble
from motelab.client import at_once, call
from motelab.platforms import Wish
from motelab.services import STORE

#: What `check` must be for the smoke profile; None is what differs by version of a library.
CHECKS = {
    "float-operation": 99.85946944958565,
    "linpack": "ok",
    "matmul": "ok",
    "model-training": {"vocabulary": 1079},
    "pyaes": 3367510514,
    "chameleon": {"length": 18674, "crc": 885290595},
    "video-processing": {"frames": 25},
    "gzip-compression": "ok",
    "dd": 262144,
    "random-disk-io": 2 << 20,
    "sequential-disk-io": 1 << 20,
    "s3-download-speed": "9cea9aed6dd2d156891a21a8beed8395",
    "json-dumps-loads": {"records": 57, "length": 86122},
}
TEXTS = {"hello": "hello", "http-fetch": "page", "sieve": "168", "wait": "9"}
OWN_FIELDS = {"test_name", "start_time", "uuid", "workload_version", "start_ns", "end_ns", "worker"}
CASES = [(one.name, run) for one in catalog.workloads().values() for run in one.runtimes]


def deployed(lab, workload, runtime="python", **wish):
    if "s3" in workload.needs and not STORE.exists():
        pytest.skip("no S3 store: scripts/lab-setup.sh store builds it")
    if "static" in workload.needs and not (lab.binaries / "bench_static").exists():
        pytest.skip("bench_static is not built")
    if runtime in ("rust", "wasm") and not TWINS.exists():
        pytest.skip("Rust workloads are not built: scripts/lab-setup.sh twins builds them")
    return lab.target("native").deploy(workload, "smoke", Wish(runtime=runtime, **wish))


@pytest.mark.parametrize(("name", "runtime"), CASES, ids=lambda value: str(value))
def test_workload(lab, name, runtime, tmp_path) -> None:
    workload = catalog.workloads()[name]
    function = deployed(lab, workload, runtime, env={"TMPDIR": str(tmp_path)})
    done = call(function.url, workload.profiles["smoke"].params)
    assert done.status == 200, done.body
    if name in TEXTS:
        assert done.body == TEXTS[name]
        return
    body = done.body
    assert set(body) >= OWN_FIELDS | {"check"}
    assert (body["test_name"], len(body["uuid"])) == (name, 32)
    assert body["start_ns"] < body["end_ns"]
    if name in CHECKS:
        expected = CHECKS[name]
        found = body["check"]
        # The last digit of a sine is the C library's.
        assert found == (pytest.approx(expected) if isinstance(expected, float) else expected)
    else:
        assert len(body["check"]["sizes"]) == 10
        assert body["check"]["sizes"]["rotate-90"] == [180, 320]
    assert list(tmp_path.iterdir()) == [], "temporary files are gone"
    if "s3" in workload.needs:
        assert lab.services.store().count("output") == 0, "uploads are gone"


def test_calls_at_once_do_not_mix_their_files(lab) -> None:
    workload = catalog.workloads()["random-disk-io"]
    function = deployed(lab, workload, concurrency=4)
    calls = at_once(function.url, workload.profiles["smoke"].params, 8, 60)
    assert [done.status for done in calls] == [200] * 8
    workers = {done.body["worker"] for done in calls}
    assert len(workers) == 1, "threads of one process"


def test_wrong_parameters_are_named(lab) -> None:
    function = deployed(lab, catalog.workloads()["float-operation"])
    for query, said in (({}, "number:"), ({"number": "-3"}, "'-3'"), ({"number": "0"}, "above 0")):
        done = call(function.url, query)
        assert done.status == 400
        assert said in done.body["error"]


@pytest.fixture
def contract(monkeypatch):
    monkeypatch.syspath_prepend(str(catalog.FOLDER))
    sys.modules.pop("contract", None)
    import contract

    return contract


def test_a_failed_check_fails_the_call_and_removes_its_files(contract) -> None:
    seen = []

    class Wrong:
        NAME, VERSION = "wrong", 1

        @staticmethod
        def run(params, ctx):
            seen.append(ctx.folder())
            (seen[0] / "file").write_text("left")
            contract.require(False, "not done")

    status, body = contract.respond(Wrong, {}, {})
    assert (status, body["error"]) == (500, "check failed: not done")
    assert not seen[0].exists()


def test_files_are_removed_when_the_work_breaks(contract) -> None:
    seen = []

    class Broken:
        NAME, VERSION = "broken", 1

        @staticmethod
        def run(params, ctx):
            seen.append(ctx.folder())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        contract.respond(Broken, {}, {})
    assert not seen[0].exists()


def test_endpoints_come_from_the_environment(contract) -> None:
    with pytest.raises(contract.Missing, match="S3_ENDPOINT"):
        contract.Context({}).s3()
    for path in catalog.FOLDER.rglob("*.py"):
        assert "://127.0.0.1" not in path.read_text(), path


def load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


AES = load(catalog.FOLDER / "pyaes" / "aes.py")


def test_aes_block_of_fips_197() -> None:
    words = AES.expand(bytes(range(16)))
    block = bytes.fromhex("00112233445566778899aabbccddeeff")
    assert AES.encrypt_block(words, block).hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"
    # The key schedule of its appendix A.1, first and last word of the last round.
    words = AES.expand(bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c"))
    assert (words[40], words[43]) == (0xD014F9A8, 0xB6630CA6)


def test_aes_counter_mode_of_sp_800_38a() -> None:
    key = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
    counter = int("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", 16)
    plain = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = AES.counter_mode(key, counter, plain)
    assert cipher.hex() == (
        "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff"
        "5ae4df3edbd5d35e5b4f09020db03eab1e031dda2fbe03d1792170a0f3009cee"
    )
    assert AES.counter_mode(key, counter, cipher) == plain
    assert AES.counter_mode(key, counter, plain[:21]) == cipher[:21]


def test_every_adapter_goes_with_every_workload(tmp_path) -> None:
    for workload in catalog.workloads().values():
        for platform, runtime in ADAPTERS:
            if runtime not in workload.runtimes:
                continue
            folder = assemble(workload, platform, runtime, tmp_path / workload.name / platform)
            names = {path.name for path in folder.iterdir()}
            assert {"workload.py", "contract.py"} <= names or "workload.mjs" in names
            assert ("requirements.txt" in names) == bool(workload.packages and runtime == "python")
    with pytest.raises(LookupError, match="node"):
        assemble(catalog.workloads()["dd"], "mote", "node", tmp_path / "no")


def test_the_fourteen_are_there_with_all_sizes() -> None:
    assert [workload.number for workload in catalog.fourteen()] == list(range(1, 15))
    for workload in catalog.workloads().values():
        edge = workload.profiles["edge"]
        assert edge.memory_mib <= 512, "the profile is for boards of 512 MB"

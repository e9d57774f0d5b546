"""The peers of the lab: each that is installed answers with the same result as mote's baseline."""

import argparse
import os
from pathlib import Path

import pytest

from motelab.__main__ import peer, shortened
from motelab.catalog import PEERS, PLANES, TARGETS, workloads
from motelab.client import Load, call, required
from motelab.experiments.sweeps import one_instance
from motelab.peers import INSTALLED, NotInstalled, PortInUse
from motelab.peers import PLANES as CLASSES
from motelab.platforms import NotOffered, Wish
from motelab.processes import Failed

PRIMES = 168


def test_every_peer_is_a_target() -> None:
    assert set(INSTALLED) == set(PEERS) and set(CLASSES) == set(PLANES)
    assert set(PEERS) | set(PLANES) <= set(TARGETS)


@pytest.mark.parametrize("name", [*PEERS, *PLANES])
def test_a_peer_runs_the_same_code(lab, name: str) -> None:
    """`MOTE_LAB_PEERS` names data planes as `--peer` does, separated with commas."""
    named = [text for text in os.environ.get("MOTE_LAB_PEERS", "").split(",") if text]
    lab.peers = dict(peer(text) for text in named)
    if name in PLANES and name not in lab.peers:
        pytest.skip(f"MOTE_LAB_PEERS names no folder for {name}")
    target = lab.target(name)
    sieve = workloads()["sieve"]
    runtimes = [one for one in target.commands if one in sieve.runtimes] or ["node"]
    for runtime in runtimes:
        if runtime == "rust":
            continue
        lab.runtime = runtime
        try:
            function, first = lab.deploy(target, sieve, one_instance(lab, sieve))
        except (NotInstalled, PortInUse) as why:
            pytest.skip(str(why))
        assert str(first.body) == str(PRIMES) or first.body["text"] == str(PRIMES)
        assert target.version(), "the record of a run names the version"
        report, _ = lab.bench(function.url, Load(2, operations=5, body=function.body))
        assert report["answered"] == 10 and not report["failures"]
        if "zero" in target.offers:
            target.to_zero(function)
            assert call(function.url, {}, body=function.body).status == 0, "nothing listens"
            done = required(target.cold_call(function, {}), name)
            assert done.response_s > required(call(function.url, {}), name).response_s
        target.remove(function)
    lab.close()


def test_what_a_peer_cannot_do_is_said(lab) -> None:
    with pytest.raises(NotOffered, match="uvicorn does not run node"):
        lab.target("uvicorn").deploy(workloads()["hello"], "smoke", Wish(runtime="node"))
    with pytest.raises(NotOffered, match="dd is not written in Go"):
        lab.target("go").deploy(workloads()["dd"], "smoke", Wish())
    with pytest.raises(Failed, match="--target nuclio needs --peer nuclio=FOLDER"):
        lab.peers = {}
        lab.target("nuclio")


def test_the_folder_of_a_peer_must_exist(tmp_path: Path) -> None:
    assert peer(f"fission={tmp_path}") == ("fission", tmp_path.resolve())
    for wrong in ("fission", f"lambda={tmp_path}", f"fission={tmp_path}/missing"):
        with pytest.raises(argparse.ArgumentTypeError, match="must be NAME=FOLDER"):
            peer(wrong)


def test_many_targets_have_a_short_name() -> None:
    assert shortened(["mote", "native"]) == "mote-native"
    names = ["mote", "native", *PEERS, *PLANES]
    assert shortened(names).startswith("mote-native-and-14-others-")
    assert shortened(names) != shortened([*names[:-1], "http"])

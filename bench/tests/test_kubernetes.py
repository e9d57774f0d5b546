"""The parts of the lab's Kubernetes targets that need no cluster."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from motelab import kubernetes
from motelab.catalog import TARGETS, workloads
from motelab.experiments import scaling
from motelab.platforms import NotOffered, Wish
from motelab.processes import Failed
from motelab.session import Lab


def test_an_image_has_the_base_and_the_code_under_their_digests(tmp_path: Path) -> None:
    base, root, out = tmp_path / "base.tar", tmp_path / "root", tmp_path / "image.tar"
    with tarfile.open(base, "w"):
        pass
    (root / "function").mkdir(parents=True)
    (root / "function" / "app.py").write_text("def handle(event, ctx): pass\n")
    (root / "function" / "app.py").chmod(0o600)
    kubernetes.write_image(out, "mote.local/hello:lab", base, root)
    with tarfile.open(out) as tar:
        read = {name: tar.extractfile(name).read() for name in tar.getnames()}
        with tarfile.open(fileobj=tar.extractfile("own.tar")) as own:
            mode = own.getmember("function/app.py").mode
    assert mode & 0o444 == 0o444, "the user of the container reads the code"
    (manifest,) = json.loads(read["manifest.json"])
    assert manifest["RepoTags"] == ["mote.local/hello:lab"]
    digests = [f"sha256:{hashlib.sha256(read[name]).hexdigest()}" for name in manifest["Layers"]]
    assert json.loads(read["config.json"])["rootfs"]["diff_ids"] == digests


def test_packages_that_a_cluster_cannot_fetch_are_refused() -> None:
    needs = next(one for one in workloads().values() if one.packages)
    with pytest.raises(NotOffered, match="registry"):
        kubernetes.need_no_packages(needs, Wish())
    kubernetes.need_no_packages(workloads()["hello"], Wish())


@pytest.mark.parametrize("offers", [{"policies"}, {"scales"}])
def test_a_platform_with_a_rule_of_its_own_is_measured_once(offers: set[str]) -> None:
    class Platform:
        pass

    Platform.offers = frozenset(offers)
    case = scaling.CASES["hpa-ramp4"]
    found = scaling.rules(Platform(), case)
    if offers == {"policies"}:
        assert list(found) == ["auto", "hpa"]
    else:
        # The goal of the study: 100 % of the processor that a pod asks for.
        assert found == {"its own": {"policy": "hpa", "target": 100}}


def test_a_target_on_a_cluster_needs_the_cluster_from_the_start(tmp_path: Path) -> None:
    assert set(kubernetes.NAMES) <= set(TARGETS)
    with Lab(cache=tmp_path, quiet=True) as lab, pytest.raises(Failed, match="from the start"):
        lab.target("kubernetes")

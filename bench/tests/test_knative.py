"""The parts of the target `knative` that need no cluster."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from motelab import knative
from motelab.kubernetes import write_image
from motelab.platforms import NotOffered, Wish
from motelab.processes import Failed


def deployment(name: str, image: str) -> dict:
    pod = {"serviceAccountName": "controller", "containers": [{"name": name, "image": image}]}
    return {
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "knative-serving"},
        "spec": {"selector": {}, "template": {"metadata": {}, "spec": pod}},
    }


def test_programs_run_from_our_images_and_find_each_other() -> None:
    image = "docker.io/envoyproxy/envoy:v1.26-latest"
    given = deployment("3scale-kourier-gateway", image)
    (made,) = knative.adapted([given], "1.15.2")
    pod = made["spec"]["template"]["spec"]
    assert pod["containers"] == [
        {"name": "3scale-kourier-gateway", "image": "mote.local/knative-envoy:1.15.2"}
    ]
    assert pod["serviceAccountName"] == "controller"
    (alias,) = pod["hostAliases"]
    assert alias["ip"] == knative.ADDRESSES["knative-serving", "net-kourier-controller"]
    assert given["spec"]["template"]["spec"]["containers"][0]["image"] == image, "not changed"
    (other,) = knative.adapted([deployment("controller", "ko://x/cmd/controller")], "1.15.2")
    assert "hostAliases" not in other["spec"]["template"]["spec"]


def test_objects_of_a_folder_are_printed_one_after_the_other() -> None:
    text = '{\n  "kind": "A"\n}\n{"kind": "B", "data": {"x": "{}"}}\n'
    assert knative.documents(text) == [{"kind": "A"}, {"kind": "B", "data": {"x": "{}"}}]
    assert knative.documents("\n") == []


def test_a_program_that_is_not_built_is_named() -> None:
    with pytest.raises(Failed, match="cmd/autoscaler-hpa"):
        knative.adapted([deployment("hpa", "ko://x/cmd/autoscaler-hpa")], "1.15.2")


def test_services_that_others_look_up_have_fixed_addresses() -> None:
    def of(namespace: str, name: str) -> dict:
        spec = {"type": "LoadBalancer", "ports": []}
        meta = {"name": name, "namespace": namespace}
        (made,) = knative.adapted([{"kind": "Service", "metadata": meta, "spec": spec}], "1")
        return made["spec"]

    ingress = {"type": "ClusterIP", "ports": [], "clusterIP": knative.INGRESS}
    assert of("kourier-system", "kourier") == ingress
    assert of("default", "kourier") == {"type": "LoadBalancer", "ports": []}
    addresses = list(knative.ADDRESSES.values())
    assert len(set(addresses)) == len(addresses)
    assert {address for address, _ in knative.HOSTS.values()} <= set(addresses)


def test_settings_are_added_and_the_others_stay() -> None:
    meta = {"name": "config-network", "namespace": "knative-serving"}
    given = {"kind": "ConfigMap", "metadata": meta, "data": {"_example": "text"}}
    (made,) = knative.adapted([given], "1")
    assert made["data"]["_example"] == "text"
    assert made["data"]["ingress-class"] == "kourier.ingress.networking.knative.dev"
    for kind in knative.LEFT_OUT:
        assert knative.adapted([{"kind": kind, "metadata": meta}], "1") == []


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (Wish(instances_min=1), {"min-scale": "1", "max-scale": "1"}),
        (Wish(), {"min-scale": "0", "max-scale": "1", "window": "6s"}),
        (
            Wish(instances_min=1, instances_max=10, scale={"policy": "rps", "target": 10}),
            {"min-scale": "1", "max-scale": "10", "metric": "rps", "target": "10"},
        ),
        (
            Wish(instances_min=1, instances_max=3, scale={"policy": "knative", "queue": 9}),
            {"min-scale": "1", "max-scale": "3"},
        ),
    ],
)
def test_a_wish_in_the_words_of_the_autoscaler(wish: Wish, expected: dict) -> None:
    found = knative.scaling(wish)
    assert found == {f"autoscaling.knative.dev/{key}": value for key, value in expected.items()}


@pytest.mark.parametrize("policy", ["auto", "cpu", "hpa"])
def test_rules_that_knative_does_not_have_are_refused(policy: str) -> None:
    with pytest.raises(NotOffered, match=policy):
        knative.scaling(Wish(scale={"policy": policy}))


def test_a_service_has_the_limits_of_the_wish() -> None:
    wish = Wish(concurrency=16, instances_min=1, cpu=0.5, timeout_s=10)
    made = knative.service("hello", "mote.local/hello:1", wish, 192, {"B": "2", "A": "1"})
    spec = made["spec"]["template"]["spec"]
    assert (spec["containerConcurrency"], spec["timeoutSeconds"]) == (16, 10)
    (container,) = spec["containers"]
    assert container["resources"] == {"limits": {"memory": "192Mi", "cpu": "0.5"}}
    assert container["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    # Knative chooses the port, and refuses a Service that sets it.
    assert "PORT" not in json.dumps(made)


def test_the_image_of_a_program_has_one_layer_and_a_user_that_is_not_root(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "queue").write_text("")
    out = tmp_path / "image.tar"
    write_image(out, "mote.local/knative-queue:1", None, tmp_path / "root", "/queue", knative.USER)
    with tarfile.open(out) as tar:
        (manifest,) = json.load(tar.extractfile("manifest.json"))
        config = json.load(tar.extractfile("config.json"))["config"]
    assert manifest["Layers"] == ["own.tar"]
    assert (config["Entrypoint"], config["User"]) == (["/queue"], "65532")


def test_what_was_not_built_says_how_to_build_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(knative, "ROOT", tmp_path)
    (tmp_path / ".cache" / "knative-1.15.2").mkdir(parents=True)
    with pytest.raises(NotOffered, match=r"scripts/knative\.sh build"):
        knative.built()
    (tmp_path / ".cache" / "knative-1.15.2" / "version.txt").write_text("1\n")
    assert knative.built().name == "knative-1.15.2"

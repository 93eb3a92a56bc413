"""What is installed: complete, of one piece with `deploy/`, and no more rights than are used."""

from __future__ import annotations

from typing import Any, cast

import pytest
import yaml
from tools.write_deploy import BASE, files

from makeway.client import Client, Resource
from makeway.kinds.crds import custom_resource_definitions
from makeway.kube.install import as_it_was
from makeway.kube.manifests import Options, cluster_objects, cluster_role, manifests
from makeway.kube.resources import RESOURCES

CRDS = {crd["metadata"]["name"]: crd for crd in custom_resource_definitions()}


def schema(name: str, version: int = 0) -> Any:
    return CRDS[name]["spec"]["versions"][version]["schema"]["openAPIV3Schema"]


def test_the_kustomize_base_says_the_same() -> None:
    for name, text in files().items():
        assert (BASE / name).read_text() == text, f"run python -m tools.write_deploy ({name})"


def test_every_kind_that_is_watched_and_not_built_in_has_a_definition() -> None:
    ours = {
        f"{r.plural}.{r.group}"
        for r in RESOURCES.values()
        if r.group
        in ("kueue.x-k8s.io", "makeway.dev", "scheduling.sigs.k8s.io", "scheduling.x-k8s.io")
    }
    assert ours <= set(CRDS)
    assert "models.kubeai.org" in CRDS


def test_both_versions_of_a_kind_accept_either_spelling_and_store_one() -> None:
    queue = CRDS["clusterqueues.kueue.x-k8s.io"]["spec"]
    assert [(v["name"], v["storage"]) for v in queue["versions"]] == [
        ("v1beta2", True),
        ("v1beta1", False),
    ]
    assert queue["conversion"] == {"strategy": "None"}
    for version in (0, 1):
        fields = schema("clusterqueues.kueue.x-k8s.io", version)["properties"]["spec"]["properties"]
        assert {"cohort", "cohortName", "admissionChecks", "admissionChecksStrategy"} <= set(fields)
        words = fields["flavorFungibility"]["properties"]["whenCanBorrow"]["enum"]
        assert {"Borrow", "MayStopSearch", "TryNextFlavor"} == set(words)


def test_defaults_are_those_of_the_embedded_api() -> None:
    fields = schema("clusterqueues.kueue.x-k8s.io")["properties"]["spec"]["properties"]
    assert fields["queueingStrategy"]["default"] == "BestEffortFIFO"
    assert fields["preemption"]["default"] == {}
    assert fields["preemption"]["properties"]["withinClusterQueue"]["default"] == "Never"
    # Present only where somebody wrote it, and then with a weight.
    assert "default" not in fields["fairSharing"]
    assert fields["fairSharing"]["properties"]["weight"]["default"] == "1"
    pod_set = schema("workloads.kueue.x-k8s.io")["properties"]["spec"]["properties"]["podSets"]
    assert pod_set["items"]["properties"]["name"]["default"] == "main"


def test_columns_are_those_of_the_embedded_api() -> None:
    columns = CRDS["workloads.kueue.x-k8s.io"]["spec"]["versions"][0]["additionalPrinterColumns"]
    assert [c["name"] for c in columns] == ["Queue", "Reserved in", "Admitted", "Finished", "Age"]
    assert columns[2]["jsonPath"] == '.status.conditions[?(@.type=="Admitted")].status'
    assert columns[4] == {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def test_schemas_are_structural() -> None:
    def check(part: Any, where: str) -> None:
        if isinstance(part, dict):
            assert "$ref" not in part, where
            for key, value in part.items():
                check(value, f"{where}.{key}")

    for name in CRDS:
        check(schema(name), name)


@pytest.mark.parametrize("verb", ["get", "list", "watch"])
def test_everything_watched_may_be_read(verb: str) -> None:
    allowed = {
        (group, plural)
        for rule in cluster_role()["rules"]
        if verb in rule["verbs"]
        for group in rule["apiGroups"]
        for plural in rule["resources"]
    }
    assert {(r.group, r.plural) for r in RESOURCES.values()} <= allowed


def test_no_right_is_a_wildcard_and_secrets_are_nobodys_business() -> None:
    for rule in cluster_role()["rules"]:
        said = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert "*" not in said
        assert "secrets" not in said


def test_every_object_is_marked_as_ours() -> None:
    for one in manifests(Options()):
        assert one["metadata"]["labels"]["app.kubernetes.io/part-of"] == "makeway", one["kind"]


def test_options_reach_the_deployment() -> None:
    options = Options(namespace="ops", image="registry/makeway:9", replicas=3, config="a: b\n")
    by_kind = {one["kind"]: one for one in cluster_objects(options)}
    deployment = by_kind["Deployment"]
    assert deployment["metadata"]["namespace"] == "ops"
    assert deployment["spec"]["replicas"] == 3
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry/makeway:9"
    assert by_kind["ConfigMap"]["data"] == {"config.yaml": "a: b\n"}
    assert yaml.safe_load(yaml.safe_dump(deployment)) == deployment


class Installed:
    """A cluster in which makeway is installed, with a container beside its own."""

    async def get(self, resource: Resource, name: str, namespace: str) -> dict[str, Any]:
        if resource.plural == "configmaps":
            return {"data": {"config.yaml": "makeway: {pdb: soft}"}}
        containers = [{"name": "proxy", "image": "proxy:1"}, {"name": name, "image": "ours/it:2"}]
        return {"spec": {"replicas": 3, "template": {"spec": {"containers": containers}}}}


async def test_what_is_not_said_stays_as_it_was_installed() -> None:
    told: list[str] = []
    client = cast("Client", Installed())
    kept = await as_it_was(client, Options(), told.append)
    assert (kept.image, kept.replicas, kept.config) == ("ours/it:2", 3, "makeway: {pdb: soft}")
    assert told == ["The image stays ours/it:2; another one: --image"]
    said = Options(image="other:1", replicas=1, config="{}")
    assert await as_it_was(client, said, told.append) == said

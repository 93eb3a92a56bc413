from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from makeway.client.resource import Object
from makeway.embedded.node.cgroups import limits_as_files, make_cgroup
from makeway.embedded.node.environment import (
    Place,
    Source,
    StartError,
    User,
    environment,
    expand,
    references,
    source_of,
    user_of,
)
from makeway.embedded.node.volumes import (
    Mount,
    link_mounts,
    mounts_of,
    prepare_volumes,
    translate,
)

PLACE = Place(host_ip="1.1.1.1", pod_ip="2.2.2.2", allocatable={"memory": "8Gi", "cpu": "4"})


def pod(**spec: Any) -> Object:
    return {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": {"a": 'x"y'}},
        "spec": {"nodeName": "here", "containers": [{"name": "main"}], **spec},
    }


def variables(container: Object, sources: dict[tuple[str, str], Source | None]) -> dict[str, str]:
    return environment(pod(), container, sources, PLACE, {"PATH": "/bin"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(A)", "x1y1"),
        ("$$(A)", "$(A)"),
        ("$(B)", "$(B)"),
        ("$A ${A}", "$A ${A}"),
        ("$$$(A)", "$1"),
        ("100$", "100$"),
    ],
)
def test_expansion(text: str, expected: str) -> None:
    assert expand(text, {"A": "1"}) == expected


def test_later_variables_see_earlier_ones_only() -> None:
    container = {"env": [{"name": "B", "value": "$(C)"}, {"name": "C", "value": "$(PATH)"}]}
    assert variables(container, {}) == {"PATH": "/bin", "B": "$(C)", "C": "/bin"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("status.podIP", "2.2.2.2"),
        ("status.hostIP", "1.1.1.1"),
        ("spec.nodeName", "here"),
        ("metadata.annotations['a']", 'x"y'),
        ("metadata.annotations['none']", ""),
        ("metadata.uid", "u"),
    ],
)
def test_fields(path: str, value: str) -> None:
    container = {"env": [{"name": "V", "valueFrom": {"fieldRef": {"fieldPath": path}}}]}
    assert variables(container, {})["V"] == value


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.memory", "1Gi", "8"),
        ("requests.memory", "1Mi", "1"),
        ("requests.cpu", "1m", "250"),
        ("requests.cpu", "1", "1"),
        ("limits.cpu", "0", "4"),
    ],
)
def test_resources(resource: str, divisor: str, value: str) -> None:
    reference = {"resource": resource, "divisor": divisor}
    container = {
        "resources": {"requests": {"cpu": "250m", "memory": "1000Ki"}},
        "env": [{"name": "V", "valueFrom": {"resourceFieldRef": reference}}],
    }
    assert variables(container, {})["V"] == value


def test_missing_keys_are_named() -> None:
    reference = {"configMapKeyRef": {"name": "cm", "key": "k"}}
    container = {"env": [{"name": "V", "valueFrom": reference}]}
    with pytest.raises(StartError, match="couldn't find key k in ConfigMap cm"):
        variables(container, {("ConfigMap", "cm"): Source({})})
    with pytest.raises(StartError, match='configmap "cm" not found'):
        variables(container, {})


def test_references_and_sources() -> None:
    spec = {
        "containers": [
            {
                "envFrom": [{"secretRef": {"name": "s1"}}],
                "env": [
                    {"name": "V", "valueFrom": {"configMapKeyRef": {"name": "c1", "key": "k"}}}
                ],
            }
        ],
        "volumes": [
            {"name": "a", "secret": {"secretName": "s2"}},
            {"name": "b", "projected": {"sources": [{"configMap": {"name": "c2"}}]}},
        ],
    }
    assert references(spec) == {
        ("Secret", "s1"),
        ("Secret", "s2"),
        ("ConfigMap", "c1"),
        ("ConfigMap", "c2"),
    }
    assert source_of({"kind": "Secret", "data": {"k": "aGk="}}).data == {"k": b"hi"}
    assert source_of(
        {"kind": "ConfigMap", "data": {"k": "hi"}, "binaryData": {"b": "AA=="}}
    ).data == {
        "k": b"hi",
        "b": b"\0",
    }


@pytest.mark.parametrize(
    ("context", "own", "expected"),
    [
        ({}, 1000, User()),
        ({"runAsUser": 1000}, 1000, User()),
        ({"runAsUser": 5}, 0, User(5, 5)),
        ({"runAsUser": 5, "runAsGroup": 6}, 0, User(5, 6)),
    ],
)
def test_users(context: Object, own: int, expected: User) -> None:
    assert user_of(pod(securityContext=context), {"name": "main"}, own) == expected


def test_users_that_cannot_be_honoured() -> None:
    with pytest.raises(StartError, match="runAsUser 0 cannot be honoured: makeway runs as user 9"):
        user_of(pod(), {"securityContext": {"runAsUser": 0}}, 9)
    with pytest.raises(StartError, match="runAsNonRoot"):
        user_of(pod(securityContext={"runAsNonRoot": True}), {}, 0)


# Volumes


def test_volumes_are_folders_of_the_pod(tmp_path: Path) -> None:
    volumes = [
        {"name": "empty", "emptyDir": {}},
        {"name": "conf", "configMap": {"name": "cm", "items": [{"key": "k", "path": "d/f"}]}},
        {"name": "keys", "secret": {"secretName": "s", "defaultMode": 0o400}},
        {
            "name": "down",
            "downwardAPI": {
                "items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]
            },
        },
        {
            "name": "all",
            "projected": {
                "sources": [
                    {"configMap": {"name": "cm"}},
                    {"secret": {"name": "s"}},
                    {"serviceAccountToken": {"path": "token"}},
                ]
            },
        },
        {"name": "host", "hostPath": {"path": str(tmp_path)}},
    ]
    sources: dict[tuple[str, str], Source | None] = {
        ("ConfigMap", "cm"): Source({"k": b"v"}),
        ("Secret", "s"): Source({"p": b"w"}),
    }
    found = prepare_volumes(pod(volumes=volumes), tmp_path / "v", sources, PLACE)
    assert (found["conf"] / "d/f").read_bytes() == b"v"
    assert (found["keys"] / "p").stat().st_mode & 0o777 == 0o400
    assert (found["down"] / "name").read_text() == "p"
    assert sorted(each.name for each in found["all"].iterdir()) == ["k", "p"]
    assert found["host"] == tmp_path
    assert list(found["empty"].iterdir()) == []


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"persistentVolumeClaim": {"claimName": "c"}}, "persistentVolumeClaim are not there"),
        ({"configMap": {"name": "none"}}, 'configmap "none" not found'),
        ({"hostPath": {"path": "/no/such"}}, "hostPath /no/such does not exist"),
        ({"configMap": {"name": "cm", "items": [{"key": "k", "path": "../x"}]}}, "leads out"),
    ],
)
def test_volumes_that_cannot_be(tmp_path: Path, volume: Object, message: str) -> None:
    sources: dict[tuple[str, str], Source | None] = {("ConfigMap", "cm"): Source({"k": b"v"})}
    with pytest.raises(StartError, match=message):
        prepare_volumes(pod(volumes=[{"name": "v", **volume}]), tmp_path / "v", sources, PLACE)
    assert not (tmp_path / "x").exists()


def test_a_host_folder_is_made_when_its_owner_asks_for_that(tmp_path: Path) -> None:
    wanted = tmp_path / "not" / "there"
    volume = {"name": "v", "hostPath": {"path": str(wanted), "type": "DirectoryOrCreate"}}

    found = prepare_volumes(pod(volumes=[volume]), tmp_path / "v", {}, PLACE)

    assert found == {"v": wanted}
    assert wanted.is_dir()


def test_mount_paths_are_linked_and_translated(tmp_path: Path) -> None:
    folders = {"data": tmp_path / "v/data", "sub": tmp_path / "v/sub"}
    for folder in folders.values():
        folder.mkdir(parents=True)
    container = {
        "name": "main",
        "volumeMounts": [
            {"name": "data", "mountPath": "/nowhere/data"},
            {"name": "sub", "mountPath": "/nowhere/data/deep", "subPath": "x"},
        ],
    }
    mounts = mounts_of(container, folders)
    work = tmp_path / "work"
    work.mkdir()
    link_mounts(mounts, work)
    assert (work / "nowhere/data").resolve() == folders["data"]
    assert list(folders["data"].iterdir()) == []
    text = "run /nowhere/data/a --out=/nowhere/data /nowhere/database /x/nowhere/data"
    data = folders["data"]
    assert translate(text, mounts) == (
        f"run {data}/a --out={data} /nowhere/database /x/nowhere/data"
    )
    assert translate("/nowhere/data/deep/f", mounts) == f"{folders['sub']}/x/f"
    with pytest.raises(StartError, match="leads out"):
        mounts_of(
            {"name": "m", "volumeMounts": [{"name": "data", "mountPath": "/d", "subPath": "../x"}]},
            folders,
        )


def test_paths_that_the_machine_has_stay(tmp_path: Path) -> None:
    assert translate("/etc/hosts", [Mount("/etc", tmp_path)]) == "/etc/hosts"


# Limits


def test_limits_for_the_kernel(tmp_path: Path) -> None:
    container = {"resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}}}
    assert limits_as_files(container) == {"cpu.max": "150000 100000", "memory.max": "67108864"}
    assert make_cgroup("x", container, tmp_path) == ""
    (tmp_path / "cgroup.controllers").touch()
    joined = make_cgroup("x", container, tmp_path)
    assert joined == str(tmp_path / "makeway/x/cgroup.procs")
    assert (tmp_path / "makeway/x/memory.max").read_text() == "67108864"
    assert make_cgroup("y", {}, tmp_path) == ""

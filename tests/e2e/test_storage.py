"""Volumes on one machine: what a pod writes into a claim is there for the next one, and goes when the claim does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from makeway.client.resource import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, Object
from tests.e2e.cli import Makeway, machine_of_its_own

SET = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  selector: {matchLabels: {app: db}}
  persistentVolumeClaimRetentionPolicy: {whenScaled: Delete, whenDeleted: Retain}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: local
        command: [sh, -c, "echo started >> /data/starts; echo starts $(wc -l < /data/starts); exec sleep 1000"]
        volumeMounts: [{name: data, mountPath: /data}]
        resources: {requests: {cpu: 100m}}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 1Gi}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: scratch, labels: {app: scratch}}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: local
    command: [sh, -c, "echo here > /scratch/file; exec sleep 1000"]
    volumeMounts: [{name: own, mountPath: /scratch}]
  volumes:
  - name: own
    ephemeral:
      volumeClaimTemplate:
        spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""


@pytest.fixture(scope="module")
def makeway() -> Iterator[Makeway]:
    with machine_of_its_own("--capacity", "cpu=4,memory=8Gi") as machine:
        yield machine


def apply(makeway: Makeway, folder: Path, text: str) -> None:
    (folder / "it.yaml").write_text(text)
    makeway("apply", "-f", str(folder / "it.yaml"))


def pod(makeway: Makeway, name: str) -> Object | None:
    found = {each["metadata"]["name"]: each for each in makeway.items(PODS)}.get(name)
    if found is None or found["metadata"].get("deletionTimestamp"):
        return None
    return found if found["status"]["phase"] == "Running" else None


def claims(makeway: Makeway) -> dict[str, str]:
    return {
        each["metadata"]["name"]: each["status"]["phase"]
        for each in makeway.items(PERSISTENT_VOLUME_CLAIMS)
    }


def test_data_outlives_its_pod_and_goes_when_the_set_says(makeway: Makeway, tmp_path: Path) -> None:
    apply(makeway, tmp_path, SET)
    makeway.until("both run", lambda: pod(makeway, "db-1"))
    assert claims(makeway) == {"data-db-0": "Bound", "data-db-1": "Bound"}
    first = pod(makeway, "db-0")
    assert first is not None
    makeway("delete", "pod", "db-0")

    def came_back() -> Object | None:
        found = pod(makeway, "db-0")
        return found if found and found["metadata"]["uid"] != first["metadata"]["uid"] else None

    second = makeway.until("it came back", came_back)
    makeway.until("it found its data", lambda: "starts 2" in makeway.log_of(second))

    apply(makeway, tmp_path, SET.replace("replicas: 2", "replicas: 1"))
    makeway.until("what was scaled away is gone", lambda: list(claims(makeway)) == ["data-db-0"])
    makeway.until("its volume, too", lambda: len(makeway.items(PERSISTENT_VOLUMES)) == 1)
    makeway.until("its data, too", lambda: len(list((makeway.home / "volumes").iterdir())) == 1)

    makeway("delete", "statefulset", "db")
    makeway.until("its pods are gone", lambda: not makeway.items(PODS))
    assert claims(makeway) == {"data-db-0": "Bound"}, "kept, as the set says"
    makeway("delete", "pvc", "data-db-0")
    makeway.until("nothing is left", lambda: not list((makeway.home / "volumes").iterdir()))


def test_a_volume_of_the_pods_own_goes_with_it(makeway: Makeway, tmp_path: Path) -> None:
    apply(makeway, tmp_path, POD)
    makeway.until("it runs", lambda: pod(makeway, "scratch"))
    (written,) = (makeway.home / "volumes").glob("*/file")
    assert written.read_text() == "here\n"
    makeway("delete", "pod", "scratch")
    makeway.until("its volume is gone", lambda: not written.exists())
    makeway.until("its claim is gone", lambda: not claims(makeway))

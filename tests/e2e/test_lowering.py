"""A Job with a minimum parallelism makes way with some of its pods: with the real kubectl, and on a cluster's own Job controller."""

from __future__ import annotations

import pytest

from tests.e2e.harness import Machine, kubectl_path, machine
from tests.e2e.test_variations import QUEUE, change, job, nodes, only_workload
from tests.e2e.test_walkthroughs import condition, running

pytestmark = [
    pytest.mark.kubectl,
    pytest.mark.skipif(not kubectl_path(), reason="there is no kubectl on this machine"),
]
# One failure would end it: pods that it gives up are none.
ELASTIC = """
apiVersion: batch/v1
kind: Job
metadata:
  name: sweep
  labels: {kueue.x-k8s.io/queue-name: door}
  annotations: {kueue.x-k8s.io/job-min-parallelism: "2"}
spec:
  parallelism: 4
  completions: 40
  completionMode: MODE
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers: [{name: c, image: x, command: [sleep, 1d], resources: {requests: {cpu: "1"}}}]
---
"""


async def lowered(box: Machine, mode: str) -> None:
    """Four pods fill the queue; an urgent job of one CPU comes."""
    await box.apply(nodes(8) + QUEUE + "---" + ELASTIC.replace("MODE", mode))
    await box.settled()
    assert len(await running(box)) == 4
    urgent = job("urgent", 1).replace(
        "queue-name: door", "queue-name: door, kueue.x-k8s.io/priority-class: urgent"
    )
    await box.apply(urgent)
    await box.settled()


@pytest.mark.parametrize("mode", ["Indexed", "NonIndexed"])
async def test_a_job_gives_up_a_pod_and_goes_on(mode: str) -> None:
    async with machine() as box:
        await lowered(box, mode)

        found = await running(box)
        assert [sum(name.startswith(of) for name in found) for of in ("sweep", "urgent")] == [3, 1]
        sweep = await box.get("job", "sweep")
        assert (sweep["spec"]["parallelism"], sweep["spec"]["suspend"]) == (3, False)
        assert not sweep["status"].get("failed")
        admitted = (await only_workload(box, "sweep"))["status"]["admission"]
        assert admitted["podSetAssignments"][0]["count"] == 3
        used = (await box.get("clusterqueue", "lab"))["status"]["flavorsUsage"]
        assert used[0]["resources"][0]["total"] == "4"
        (record,) = await box.list("preemptions.makeway.dev")
        assert record["status"]["phase"] == "Placed"
        shown = await box.kubectl("get", "preemptions.makeway.dev")
        assert "(4 to 3 pods)" in shown
        told = await box.kubectl("get", "events", "--field-selector", "reason=Lowered")
        assert "Lowered from 4 to 3 pods due to prioritization in the ClusterQueue" in told


async def test_a_lowered_job_stays_lowered_until_it_is_admitted_anew() -> None:
    async with machine() as box:
        await lowered(box, "NonIndexed")
        await box.kubectl("delete", "job", "urgent")
        await box.settled()
        assert (await box.get("job", "sweep"))["spec"]["parallelism"] == 3

        await change(box, "clusterqueue", "lab", '{"spec": {"stopPolicy": "HoldAndDrain"}}')
        await change(box, "clusterqueue", "lab", '{"spec": {"stopPolicy": "None"}}')

        assert condition(await only_workload(box, "sweep"), "Admitted")["status"] == "True"
        assert (await box.get("job", "sweep"))["spec"]["parallelism"] == 4
        assert len(await running(box)) == 4

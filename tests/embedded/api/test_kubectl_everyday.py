"""What people type every day, with the real kubectl."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.embedded.api.conftest import Kubectl

pytestmark = pytest.mark.kubectl

MANIFESTS = Path(__file__).parent / "manifests"

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: 'nginx:1'}]}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: one, labels: {app: x}}
spec: {containers: [{name: c, image: busybox, command: [sleep, 1h], resources: {limits: {cpu: 1, memory: 1Gi}}}]}
"""


def test_the_kueue_demo_applies_unchanged(kubectl: Kubectl) -> None:
    result = kubectl.run("apply", "-f", str(MANIFESTS / "kueue-demo.yaml"))
    assert result.returncode == 0, result.stderr
    assert "job.batch/team-b-job created" in result.stdout
    assert result.stderr.strip() == "Warning: This version is deprecated. Use v1beta2 instead."
    assert (
        kubectl("get", "job", "-n", "team-b", "team-b-job", "-o", "jsonpath={.spec.suspend}")
        == "true"
    )
    assert kubectl("get", "cq", "--no-headers", "-o", "name").split() == [
        "clusterqueue.kueue.x-k8s.io/shared-cq",
        "clusterqueue.kueue.x-k8s.io/team-a-cq",
        "clusterqueue.kueue.x-k8s.io/team-b-cq",
    ]
    again = kubectl("apply", "-f", str(MANIFESTS / "kueue-demo.yaml"))
    assert "created" not in again
    assert "job.batch/team-b-job unchanged" in again


def test_the_koordinator_demo_applies_unchanged(kubectl: Kubectl) -> None:
    config = kubectl(
        "-n", "koordinator-system", "get", "cm", "koord-scheduler-config", "-o", "yaml"
    )
    assert "enablePreemption: true" in config
    created = kubectl("apply", "-f", str(MANIFESTS / "koordinator-demo.yaml"))
    assert "podgroup.scheduling.sigs.k8s.io/hp-training-job created" in created
    table = kubectl("get", "priorityclass").splitlines()
    assert table[0].split() == ["NAME", "VALUE", "GLOBAL-DEFAULT", "AGE", "PREEMPTIONPOLICY"]
    assert table[1].split()[:3] == ["high-priority", "1000000", "false"]
    pod = json.loads(kubectl("get", "pod", "hp-worker-1", "-o", "json"))
    assert (pod["spec"]["priority"], pod["spec"]["preemptionPolicy"]) == (
        1000000,
        "PreemptLowerPriority",
    )
    assert pod["status"] == {"phase": "Pending", "qosClass": "Guaranteed"}


def test_objects_are_made_by_noun(kubectl: Kubectl) -> None:
    """These commands send protobuf; what is stored must be what kubectl would have written as JSON."""
    for command in (
        ["create", "namespace", "n1"],
        ["create", "configmap", "c1", "--from-literal=a=b"],
        ["create", "secret", "generic", "s1", "--from-literal=p=q"],
        ["create", "serviceaccount", "sa1"],
        ["create", "service", "clusterip", "svc1", "--tcp=80:8080"],
        ["create", "deployment", "d1", "--image=nginx", "--replicas=0", "--port=80"],
        ["create", "job", "j1", "--image=busybox", "--", "sleep", "5"],
        ["create", "cronjob", "cj1", "--image=busybox", "--schedule=*/5 * * * *", "--", "date"],
        [
            "create",
            "priorityclass",
            "p1",
            "--value=5",
            "--preemption-policy=Never",
            "--description=d",
        ],
        ["create", "quota", "q1", "--hard=cpu=1,pods=4"],
        ["create", "poddisruptionbudget", "b1", "--selector=a=b", "--max-unavailable=50%"],
    ):
        split = command.index("--") if "--" in command else len(command)
        dry = [*command[:split], "--dry-run=client", "-o", "json", *command[split:]]
        wanted = json.loads(kubectl(*dry))
        kubectl(*command)
        stored = json.loads(
            kubectl("get", f"{wanted['kind']}", wanted["metadata"]["name"], "-o", "json")
        )
        for field in ("metadata", "status"):
            wanted.pop(field, None)
        assert_contains(stored, wanted)


def assert_contains(stored: object, wanted: object, path: str = "") -> None:
    if isinstance(wanted, dict):
        assert isinstance(stored, dict), path
        for key, value in wanted.items():
            if value not in (None, {}, []):
                assert key in stored, f"{path}.{key}"
                assert_contains(stored[key], value, f"{path}.{key}")
    elif isinstance(wanted, list):
        assert isinstance(stored, list), path
        for mine, theirs in zip(stored, wanted, strict=True):
            assert_contains(mine, theirs, path)
    else:
        assert stored == wanted, path


def test_get_in_all_forms(kubectl: Kubectl) -> None:
    kubectl.apply(POD, POD.replace("one", "two").replace("app: x", "app: z"))
    assert kubectl("get", "pods").splitlines()[0].split() == [
        "NAME",
        "READY",
        "STATUS",
        "RESTARTS",
        "AGE",
    ]
    wide = kubectl("get", "pods", "-o", "wide").splitlines()
    assert wide[0].split()[-4:] == ["NOMINATED", "NODE", "READINESS", "GATES"]
    assert kubectl("get", "pods", "-A", "--no-headers").split()[0] == "default"
    assert kubectl("get", "pods", "-l", "app=z", "-o", "name") == "pod/two\n"
    assert (
        kubectl("get", "pods", "--field-selector", "metadata.name=one", "-o", "name") == "pod/one\n"
    )
    assert (
        kubectl("get", "pods", "--sort-by=.metadata.labels.app", "--no-headers").split()[0] == "one"
    )
    assert kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.name}") == "one two"
    assert "app=x" in kubectl("get", "pods", "--show-labels")
    assert (
        kubectl("get", "po", "one", "-o", "custom-columns=Q:.status.qosClass", "--no-headers")
        == "Guaranteed\n"
    )
    assert (
        kubectl.refused("get", "pod", "nope")
        == 'Error from server (NotFound): pods "nope" not found'
    )
    nothing = kubectl.run("get", "events")
    assert nothing.stderr == "No resources found in default namespace.\n"


def test_describe_does_not_stumble(kubectl: Kubectl) -> None:
    kubectl.apply(POD, DEPLOYMENT)
    assert re.search(r"Priority: +0\n", kubectl("describe", "pod", "one"))
    assert "Replicas:" in kubectl("describe", "deployment", "web")
    assert "PreemptionPolicy:  PreemptLowerPriority" in kubectl(
        "describe", "pc", "system-node-critical"
    )
    assert re.search(r"Status: +Active", kubectl("describe", "namespace", "default"))
    kubectl.apply(
        "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {capacity: {cpu: 8, pods: 110}}"
    )
    assert re.search(r"cpu: +8\n", kubectl("describe", "node", "n1"))


def test_changes_in_all_forms(kubectl: Kubectl) -> None:
    kubectl.apply(DEPLOYMENT)
    kubectl("scale", "deployment", "web", "--replicas=5")
    kubectl("set", "image", "deployment/web", "c=nginx:2")
    kubectl("label", "deployment", "web", "a=b")
    kubectl("annotate", "deployment", "web", "x=y")
    kubectl(
        "patch",
        "deployment",
        "web",
        "--type=json",
        "-p",
        '[{"op":"add","path":"/metadata/labels/c","value":"d"}]',
    )
    kubectl(
        "patch",
        "deployment",
        "web",
        "--subresource=status",
        "--type=merge",
        "-p",
        '{"status":{"readyReplicas":4}}',
    )
    table = kubectl("get", "deployment", "web", "-o", "wide", "--show-labels")
    assert table.splitlines()[1].split()[:2] == ["web", "4/5"]
    assert "nginx:2" in table
    assert "a=b,c=d" in table
    assert kubectl.apply(DEPLOYMENT) == "deployment.apps/web configured\n"
    assert kubectl.apply(DEPLOYMENT) == "deployment.apps/web unchanged\n"


def test_diff_and_replace(kubectl: Kubectl) -> None:
    kubectl.apply(DEPLOYMENT)
    changed = DEPLOYMENT.replace("replicas: 2", "replicas: 3")
    different = kubectl.run("diff", "-f", "-", given=changed)
    assert (different.returncode, "+  replicas: 3" in different.stdout) == (1, True)
    assert kubectl("replace", "-f", "-", given=changed) == "deployment.apps/web replaced\n"
    assert kubectl("get", "deployment", "web", "-o", "jsonpath={.spec.replicas}") == "3"


def test_server_side_apply_after_client_side_apply(kubectl: Kubectl) -> None:
    kubectl.apply(DEPLOYMENT)
    for _ in range(2):
        assert (
            kubectl("apply", "--server-side", "-f", "-", given=DEPLOYMENT)
            == "deployment.apps/web serverside-applied\n"
        )
    refused = kubectl.refused(
        "apply",
        "--server-side",
        "--field-manager=other",
        "-f",
        "-",
        given=DEPLOYMENT.replace("nginx:1", "nginx:9"),
    )
    assert 'conflict with "kubectl"' in refused


def test_explain_knows_our_kinds_and_kubernetes_own(kubectl: Kubectl) -> None:
    assert "withinClusterQueue" in kubectl("explain", "clusterqueue.spec.preemption")
    assert "terminationGracePeriodSeconds" in kubectl("explain", "pod.spec")
    assert "minMember" in kubectl("explain", "podgroups.scheduling.sigs.k8s.io.spec")
    assert "cohort\t<string>" in kubectl(
        "explain", "cq.spec", "--api-version=kueue.x-k8s.io/v1beta1"
    )


def test_rights_are_answered(kubectl: Kubectl) -> None:
    assert kubectl("auth", "can-i", "create", "pods") == "yes\n"
    assert "makeway:admin" in kubectl("auth", "whoami")


def test_wait_sees_the_condition(kubectl: Kubectl) -> None:
    kubectl.apply(POD)
    waiting = subprocess.Popen(
        [str(kubectl.binary), "wait", "--for=condition=Ready", "pod/one", "--timeout=20s"],
        env=kubectl.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    patch = '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'
    kubectl("patch", "pod", "one", "--subresource=status", "-p", patch)
    told, _ = waiting.communicate(timeout=30)
    assert told == "pod/one condition met\n"


def test_delete_waits_until_the_object_is_gone(kubectl: Kubectl) -> None:
    kubectl.apply(POD)
    assert kubectl("delete", "pod", "one").startswith('pod "one" deleted')
    assert (
        kubectl.refused("delete", "pod", "one")
        == 'Error from server (NotFound): pods "one" not found'
    )
    assert kubectl.refused("delete", "pc", "system-node-critical") == (
        'Error from server (Forbidden): priorityclasses.scheduling.k8s.io "system-node-critical" is forbidden:'
        " this is a system priority class and cannot be deleted"
    )


def test_logs_of_a_container(kubectl: Kubectl) -> None:
    kubectl.apply(POD)
    uid = kubectl("get", "pod", "one", "-o", "jsonpath={.metadata.uid}")
    folder = kubectl.home / "logs" / uid
    folder.mkdir(parents=True)
    lines = [f"2026-01-02T03:04:0{n}.123456789Z stdout F line {n}" for n in range(5)]
    (folder / "c.log").write_text("\n".join(lines) + "\n")
    (folder / "c.previous.log").write_text("2026-01-02T03:00:00.000000001Z stderr F before\n")
    assert kubectl("logs", "one") == "".join(f"line {n}\n" for n in range(5))
    assert kubectl("logs", "one", "--tail=1") == "line 4\n"
    assert (
        kubectl("logs", "one", "--timestamps", "--tail=1")
        == "2026-01-02T03:04:04.123456789Z line 4\n"
    )
    assert kubectl("logs", "one", "--previous") == "before\n"
    assert kubectl("logs", "one", "--since-time=2026-01-02T03:04:03Z") == "line 3\nline 4\n"
    kubectl("patch", "pod", "one", "--subresource=status", "-p", '{"status":{"phase":"Succeeded"}}')
    assert kubectl("logs", "-f", "one") == "".join(f"line {n}\n" for n in range(5))
    assert "container nope is not valid for pod one" in kubectl.refused("logs", "one", "-c", "nope")


def test_drain_evicts_and_cordons(kubectl: Kubectl) -> None:
    kubectl.apply("apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {capacity: {cpu: 8}}")
    kubectl("cordon", "n1")
    assert "SchedulingDisabled" in kubectl("get", "nodes")
    kubectl("drain", "n1", "--timeout=10s")


def test_events_for_an_object(kubectl: Kubectl) -> None:
    kubectl.apply(POD)
    uid = kubectl("get", "pod", "one", "-o", "jsonpath={.metadata.uid}")
    event = textwrap.dedent(f"""
        apiVersion: events.k8s.io/v1
        kind: Event
        metadata: {{name: one.1, namespace: default}}
        regarding: {{kind: Pod, apiVersion: v1, name: one, namespace: default, uid: {uid}}}
        note: Preempted by pod x on node n1
        reason: Preempted
        type: Normal
        action: Preempting
        reportingController: makeway
        reportingInstance: makeway-1
        eventTime: "2026-01-02T03:04:05.000006Z"
    """)
    kubectl("create", "-f", "-", given=event)
    assert "Preempted by pod x on node n1" in kubectl("events", "--for", "pod/one")
    assert "Preempted by pod x on node n1" in kubectl("describe", "pod", "one")
    listed = kubectl("get", "events", "--field-selector", "reason=Preempted")
    assert listed.splitlines()[0].split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert "pod/one" in listed


def test_preemptions_have_their_columns(kubectl: Kubectl) -> None:
    kubectl.apply(
        "apiVersion: makeway.dev/v1alpha1\nkind: Preemption\nmetadata: {name: p}\n"
        "spec: {preemptor: default/high, rule: Priority}"
    )
    status = '{"status":{"phase":"Placed","victimsText":"default/low","lossText":"2.5 GPU-min"}}'
    kubectl("patch", "preemption", "p", "--subresource=status", "--type=merge", "-p", status)
    header, row = kubectl("get", "preemptions").splitlines()
    assert header.split() == ["NAME", "PREEMPTOR", "VICTIMS", "PHASE", "LOSS", "RULE", "AGE"]
    assert row.split()[:4] == ["p", "default/high", "default/low", "Placed"]


def test_get_watch_prints_changes(kubectl: Kubectl) -> None:
    kubectl.apply(POD)
    watching = subprocess.Popen(
        [str(kubectl.binary), "get", "pods", "-w", "--no-headers"],
        env=kubectl.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert watching.stdout is not None
    assert watching.stdout.readline().split()[:3] == ["one", "0/1", "Pending"]
    kubectl("patch", "pod", "one", "--subresource=status", "-p", '{"status":{"phase":"Failed"}}')
    assert watching.stdout.readline().split()[:3] == ["one", "0/1", "Failed"]
    watching.terminate()
    watching.wait()
    watching.stdout.close()

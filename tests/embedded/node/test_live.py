"""Real processes on this machine, through the embedded API."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from makeway.client.resource import CONFIG_MAPS, NODES, PODS, SECRETS, Object
from makeway.embedded.node import LocalNode, NodeOptions
from makeway.embedded.node.process import Run
from tests.embedded.conftest import Cluster

PATH = {"name": "PATH", "value": f"{Path(sys.executable).parent}:/usr/bin:/bin"}


def pod(name: str, *command: str, **more: Any) -> Object:
    container = {"name": "main", "image": "busybox", "command": list(command)}
    container.update(more.pop("container", {}))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "nodeName": "here",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "containers": [container],
            **more,
        },
    }


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
async def node(cluster: Cluster) -> LocalNode:
    return await start_node(cluster)


async def start_node(cluster: Cluster) -> LocalNode:
    options = NodeOptions(name="here", capacity={"nvidia.com/gpu": "4"}, labels={"zone": "a"})
    local = LocalNode(cluster.client, cluster.home, options)
    local.task = cluster.start(local.run())  # type: ignore[attr-defined]
    await asyncio.wait_for(local.ready.wait(), 5)
    return local


def phase(obj: Object) -> str:
    return str((obj.get("status") or {}).get("phase"))


def state(obj: Object, name: str = "main") -> Object:
    for each in (obj.get("status") or {}).get("containerStatuses") or []:
        if each["name"] == name:
            return dict(each["state"])
    return {}


def log_of(cluster: Cluster, obj: Object, container: str = "main", suffix: str = "") -> list[str]:
    path = cluster.home / "logs" / obj["metadata"]["uid"] / f"{container}{suffix}.log"
    return [line.split(" ", 3)[3] for line in path.read_text().splitlines()]


async def finish(cluster: Cluster, body: Object) -> Object:
    await cluster.client.create(PODS, body)
    name = body["metadata"]["name"]
    return await cluster.until(PODS, name, lambda it: phase(it) in ("Succeeded", "Failed"))


async def running(cluster: Cluster, body: Object) -> Object:
    await cluster.client.create(PODS, body)
    return await cluster.until(PODS, body["metadata"]["name"], lambda it: phase(it) == "Running")


def pid_of(cluster: Cluster, obj: Object, attempt: int = 0) -> int:
    folder = cluster.home / "pods" / obj["metadata"]["uid"] / "containers" / "main" / str(attempt)
    return int(json.loads((folder / "started.json").read_text())["pid"])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_the_machine_is_a_node(cluster: Cluster, node: LocalNode) -> None:
    found = await cluster.client.get(NODES, "here")
    assert found["metadata"]["labels"]["kubernetes.io/hostname"] == "here"
    assert found["metadata"]["labels"]["zone"] == "a"
    capacity = found["status"]["capacity"]
    assert capacity["cpu"] == str(os.cpu_count())
    assert capacity["nvidia.com/gpu"] == "4"
    assert capacity["pods"] == "110"
    assert capacity["memory"].endswith("Ki")
    assert found["status"]["allocatable"] == capacity
    ready = [each for each in found["status"]["conditions"] if each["type"] == "Ready"]
    assert ready[0]["status"] == "True"


async def test_a_process_runs_and_its_end_is_told(cluster: Cluster, node: LocalNode) -> None:
    done = await finish(cluster, pod("ok", "sh", "-c", "echo out; echo err >&2"))
    assert phase(done) == "Succeeded"
    ended = state(done)["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
    assert sorted(log_of(cluster, done)) == ["err", "out"]
    conditions = {
        each["type"]: (each["status"], each.get("reason")) for each in done["status"]["conditions"]
    }
    assert conditions["Ready"] == ("False", "PodCompleted")
    assert conditions["Initialized"] == ("True", "PodCompleted")
    assert done["status"]["podIP"] == "127.0.0.1"
    assert done["status"]["qosClass"] == "BestEffort"

    async def told() -> list[str]:
        return await cluster.events("RunsAsProcess")

    await cluster.until_true(told)
    assert "its image busybox is not used" in (await told())[0]


async def test_exit_codes(cluster: Cluster, node: LocalNode) -> None:
    failed = await finish(cluster, pod("bad", "sh", "-c", "exit 3"))
    assert phase(failed) == "Failed"
    assert state(failed)["terminated"]["exitCode"] == 3
    assert state(failed)["terminated"]["reason"] == "Error"
    absent = await finish(cluster, pod("absent", "no-such-program"))
    ended = state(absent)["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert ended["message"] == 'exec: "no-such-program": executable file not found in $PATH'
    killed = await finish(cluster, pod("killed", "sh", "-c", "kill -9 $$$$"))
    assert state(killed)["terminated"]["exitCode"] == 137


async def test_deleting_sends_sigterm_and_then_lets_the_object_go(
    cluster: Cluster, node: LocalNode
) -> None:
    script = "trap 'echo saving; sleep 0.2; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    runs = await running(cluster, pod("saver", "sh", "-c", script))

    async def up() -> bool:
        return log_of(cluster, runs) == ["up"]

    await cluster.until_true(up)
    pid = pid_of(cluster, runs)
    await cluster.client.delete(PODS, "saver", "default")
    await cluster.until_gone(PODS, "saver")
    assert not alive(pid)
    assert log_of(cluster, runs) == ["up", "saving", "saved"]

    async def cleaned() -> bool:
        return not (cluster.home / "pods" / runs["metadata"]["uid"]).exists()

    await cluster.until_true(cleaned)


async def test_a_pod_deleted_while_it_starts_leaves_nothing_behind(
    cluster: Cluster, node: LocalNode
) -> None:
    for number in range(5):
        name = f"brief-{number}"
        await cluster.client.create(PODS, pod(name, "sleep", "61"))
        await asyncio.sleep(0.01 * number)
        await cluster.client.delete(PODS, name, "default", grace_s=0 if number % 2 else 1)
    for number in range(5):
        await cluster.until_gone(PODS, f"brief-{number}")

    async def all_ended() -> bool:
        return not any(Run(each).alive for each in cluster.home.glob("pods/*/containers/*/*"))

    await asyncio.sleep(0.2)
    await cluster.until_true(all_ended)


async def test_who_does_not_listen_is_killed_after_its_grace(
    cluster: Cluster, node: LocalNode
) -> None:
    body = pod("deaf", "sh", "-c", "trap '' TERM; sleep 60 & wait; sleep 60")
    body["spec"]["terminationGracePeriodSeconds"] = 1
    runs = await running(cluster, body)
    await asyncio.sleep(0.2)
    pid = pid_of(cluster, runs)
    before = asyncio.get_running_loop().time()
    await cluster.client.delete(PODS, "deaf", "default")
    await cluster.until_gone(PODS, "deaf")
    assert 0.9 < asyncio.get_running_loop().time() - before < 3
    assert not alive(pid)


async def test_a_child_of_a_dead_shell_may_finish_saving(cluster: Cluster, node: LocalNode) -> None:
    inner = "trap 'sleep 0.3; echo child saved; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    runs = await running(cluster, pod("wrapped", "sh", "-c", f'sh -c "{inner}"; echo never'))

    async def up() -> bool:
        return log_of(cluster, runs) == ["up"]

    await cluster.until_true(up)
    await cluster.client.delete(PODS, "wrapped", "default")
    await cluster.until_gone(PODS, "wrapped")
    assert "child saved" in log_of(cluster, runs)


async def test_the_environment_is_clean_and_what_the_pod_names(
    cluster: Cluster, node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SERVER", "x")
    await cluster.client.create(
        CONFIG_MAPS, {"metadata": {"name": "cm", "namespace": "default"}, "data": {"a": "1"}}
    )
    await cluster.client.create(
        SECRETS, {"metadata": {"name": "s", "namespace": "default"}, "data": {"b": "Mg=="}}
    )
    container = {
        "args": ["$(GREETING)", "$$(GREETING)", "$(UNKNOWN)"],
        "command": ["sh", "-c", 'env; echo "0=$0" "1=$1" "2=$2"'],
        "envFrom": [{"prefix": "CM_", "configMapRef": {"name": "cm"}}],
        "resources": {"limits": {"memory": "64Mi", "cpu": "1500m", "nvidia.com/gpu": "2"}},
        "env": [
            {"name": "GREETING", "value": "hello"},
            {"name": "TWICE", "value": "$(GREETING)-$(GREETING)"},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {
                "name": "TEAM",
                "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['team']"}},
            },
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "b"}}},
            {
                "name": "NONE",
                "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "zzz", "optional": True}},
            },
            {
                "name": "MIB",
                "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}},
            },
            {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        ],
    }
    body = pod("env", container=container)
    body["metadata"]["labels"] = {"team": "a"}
    done = await finish(cluster, body)
    lines = log_of(cluster, done)
    assert lines[-1] == "0=hello 1=$(GREETING) 2=$(UNKNOWN)"
    seen = dict(line.split("=", 1) for line in lines[:-1] if "=" in line)
    assert "SECRET_OF_THE_SERVER" not in seen
    wanted = {
        "GREETING": "hello",
        "TWICE": "hello-hello",
        "NAME": "env",
        "TEAM": "a",
        "B": "2",
        "CM_a": "1",
        "MIB": "64",
        "CPUS": "2",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "HOSTNAME": "env",
    }
    assert {key: seen.get(key) for key in wanted} == wanted
    assert "NONE" not in seen
    assert seen["HOME"].endswith("/work")


async def test_gpus_are_given_out_and_returned(cluster: Cluster, node: LocalNode) -> None:
    two = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    script = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 60")
    first = await running(cluster, pod("first", *script, container=two))
    second = await running(cluster, pod("second", *script, container=two))
    none = await running(cluster, pod("none", *script))

    async def all_said() -> bool:
        return all(log_of(cluster, each) for each in (first, second, none))

    await cluster.until_true(all_said)
    assert log_of(cluster, first) == ["0,1"]
    assert log_of(cluster, second) == ["2,3"]
    assert log_of(cluster, none) == [""]
    await cluster.client.delete(PODS, "first", "default", grace_s=1)
    await cluster.until_gone(PODS, "first")
    third = await running(cluster, pod("third", *script, container=two))

    async def said() -> bool:
        return log_of(cluster, third) == ["0,1"]

    await cluster.until_true(said)


async def test_volumes(cluster: Cluster, node: LocalNode) -> None:
    await cluster.client.create(
        CONFIG_MAPS,
        {"metadata": {"name": "cm", "namespace": "default"}, "data": {"run.sh": "echo ran $1"}},
    )
    container = {
        "command": ["sh", "/nowhere/scripts/run.sh"],
        "args": ["$(DATA)/x"],
        "env": [{"name": "DATA", "value": "/nowhere/data"}],
        "volumeMounts": [
            {"name": "scripts", "mountPath": "/nowhere/scripts"},
            {"name": "data", "mountPath": "/nowhere/data"},
        ],
    }
    volumes = [
        {"name": "scripts", "configMap": {"name": "cm"}},
        {"name": "data", "emptyDir": {}},
    ]
    done = await finish(cluster, pod("vol", container=container, volumes=volumes))
    folder = cluster.home / "pods" / done["metadata"]["uid"]
    assert log_of(cluster, done) == [f"ran {folder}/volumes/data/x"]
    assert (folder / "work/nowhere/data").resolve() == (folder / "volumes/data").resolve()


async def test_init_containers_run_first_and_sidecars_beside(
    cluster: Cluster, node: LocalNode
) -> None:
    init = [
        {
            "name": "side",
            "image": "i",
            "command": ["sh", "-c", "echo side; sleep 60"],
            "restartPolicy": "Always",
        },
        {"name": "first", "image": "i", "command": ["sh", "-c", "echo one > $HOME/made"]},
    ]
    done = await finish(cluster, pod("staged", "sh", "-c", "cat made", initContainers=init))
    assert phase(done) == "Succeeded"
    assert log_of(cluster, done) == ["one"]
    assert log_of(cluster, done, "side") == ["side"]
    failing = [{"name": "first", "image": "i", "command": ["false"]}]
    stuck = await finish(cluster, pod("stuck", "echo", "never", initContainers=failing))
    assert phase(stuck) == "Failed"


async def test_restarts_and_back_off(cluster: Cluster, node: LocalNode) -> None:
    body = pod("crash", "sh", "-c", "echo run; exit 1")
    body["spec"]["restartPolicy"] = "OnFailure"
    await cluster.client.create(PODS, body)
    looping = await cluster.until(
        PODS, "crash", lambda it: state(it).get("waiting", {}).get("reason") == "CrashLoopBackOff"
    )
    status = looping["status"]["containerStatuses"][0]
    assert phase(looping) == "Running"
    assert status["restartCount"] == 1
    assert status["lastState"]["terminated"]["exitCode"] == 1
    assert "back-off 10s restarting failed container=main" in state(looping)["waiting"]["message"]
    assert log_of(cluster, looping, suffix=".previous") == ["run"]


async def test_an_image_is_not_run(cluster: Cluster, node: LocalNode) -> None:
    body = pod("image")
    del body["spec"]["containers"][0]["command"]
    await cluster.client.create(PODS, body)
    waits = await cluster.until(PODS, "image", lambda it: "waiting" in state(it))
    assert state(waits)["waiting"]["reason"] == "ImageNotRun"
    assert "images are not run on one machine" in state(waits)["waiting"]["message"]
    assert phase(waits) == "Pending"


async def test_a_missing_configmap_is_named_and_awaited(
    cluster: Cluster, node: LocalNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("makeway.embedded.node.pod.RETRY_START_S", 0.1)
    more = {"envFrom": [{"configMapRef": {"name": "later"}}]}
    await cluster.client.create(PODS, pod("waits", "true", container=more))
    waits = await cluster.until(
        PODS, "waits", lambda it: state(it).get("waiting", {}).get("message")
    )
    assert state(waits)["waiting"] == {
        "reason": "CreateContainerConfigError",
        "message": 'configmap "later" not found',
    }
    await cluster.client.create(
        CONFIG_MAPS, {"metadata": {"name": "later", "namespace": "default"}, "data": {}}
    )
    await cluster.until(PODS, "waits", lambda it: phase(it) == "Succeeded")


async def test_probes(cluster: Cluster, node: LocalNode) -> None:
    probes = {
        "readinessProbe": {"exec": {"command": ["test", "-e", "ready"]}, "periodSeconds": 1},
        "startupProbe": {"exec": {"command": ["test", "-e", "up"]}, "periodSeconds": 1},
    }
    runs = await running(
        cluster,
        pod("probed", "sh", "-c", "touch up; sleep 0.3; touch ready; sleep 60", container=probes),
    )
    assert runs["status"]["containerStatuses"][0]["ready"] is False
    await cluster.until(
        PODS, "probed", lambda it: it["status"]["containerStatuses"][0]["ready"] is True
    )
    dies = {
        "livenessProbe": {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1}
    }
    body = pod("dies", "sleep", "60", container=dies)
    body["spec"]["terminationGracePeriodSeconds"] = 1
    ended = await finish(cluster, body)
    assert state(ended)["terminated"]["exitCode"] == 143


async def test_checkpoints_are_announced(cluster: Cluster, node: LocalNode) -> None:
    await cluster.client.create(
        PODS, pod("saves", "sh", "-c", 'sleep 0.1; touch "$MAKEWAY_CHECKPOINT_FILE"; sleep 60')
    )
    saved = await cluster.until(
        PODS,
        "saves",
        lambda it: "makeway.dev/last-checkpoint" in (it["metadata"].get("annotations") or {}),
    )
    assert saved["metadata"]["annotations"]["makeway.dev/last-checkpoint"].endswith("Z")


async def test_a_restart_finds_what_runs_and_learns_what_ended(cluster: Cluster) -> None:
    first = await start_node(cluster)
    runs = await running(cluster, pod("lives", "sh", "-c", "echo up; sleep 60"))
    ends = await running(cluster, pod("ends", "sh", "-c", "sleep 0.4; exit 7"))
    pid = pid_of(cluster, runs)
    first.task.cancel()  # type: ignore[attr-defined]
    await asyncio.gather(first.task, return_exceptions=True)  # type: ignore[attr-defined]
    await asyncio.sleep(0.6)
    assert alive(pid)
    assert phase(await cluster.client.get(PODS, "ends", "default")) == "Running"
    await start_node(cluster)
    learned = await cluster.until(PODS, "ends", lambda it: phase(it) == "Failed")
    assert state(learned)["terminated"]["exitCode"] == 7
    assert pid_of(cluster, runs) == pid
    still = await cluster.client.get(PODS, "lives", "default")
    assert still["status"]["containerStatuses"][0]["restartCount"] == 0
    await cluster.client.delete(PODS, "lives", "default", grace_s=1)
    await cluster.until_gone(PODS, "lives")
    assert not alive(pid)
    assert ends["metadata"]["uid"]


async def test_pods_deleted_while_nobody_looked_are_ended(cluster: Cluster) -> None:
    first = await start_node(cluster)
    runs = await running(cluster, pod("lives", "sleep", "60"))
    pid = pid_of(cluster, runs)
    first.task.cancel()  # type: ignore[attr-defined]
    await asyncio.gather(first.task, return_exceptions=True)  # type: ignore[attr-defined]
    await cluster.client.delete(PODS, "lives", "default", grace_s=0)
    await start_node(cluster)

    async def gone() -> bool:
        return not alive(pid)

    await cluster.until_true(gone)


async def test_stopping_the_machine_ends_pods_with_their_grace(
    cluster: Cluster, node: LocalNode
) -> None:
    never = await running(cluster, pod("never", "sleep", "60"))
    always = pod("always", "sleep", "60")
    always["spec"]["restartPolicy"] = "Always"
    other = await running(cluster, always)
    pids = [pid_of(cluster, never), pid_of(cluster, other)]
    await asyncio.wait_for(node.stop_pods(), 8)
    assert not any(alive(pid) for pid in pids)
    stopped = await cluster.client.get(PODS, "never", "default")
    assert phase(stopped) == "Failed"
    reasons = {each["type"]: each.get("reason") for each in stopped["status"]["conditions"]}
    assert reasons["DisruptionTarget"] == "TerminationByKubelet"
    assert phase(await cluster.client.get(PODS, "always", "default")) == "Running"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start processes as somebody else")
async def test_another_user(cluster: Cluster, node: LocalNode) -> None:
    body = pod("other", "sh", "-c", "id -u; echo mine > made; cat made")
    body["spec"]["securityContext"] = {"runAsUser": 65534}
    done = await finish(cluster, body)
    assert log_of(cluster, done) == ["65534", "mine"]


async def test_a_working_directory_of_the_pod(cluster: Cluster, node: LocalNode) -> None:
    done = await finish(cluster, pod("cwd", "pwd", container={"workingDir": "/nowhere/app"}))
    assert log_of(cluster, done)[0].endswith("/work/nowhere/app")
    there = await finish(cluster, pod("usr", "pwd", container={"workingDir": "/usr"}))
    assert log_of(cluster, there) == ["/usr"]


async def test_a_hook_runs_before_the_signal(cluster: Cluster, node: LocalNode) -> None:
    hook = {"preStop": {"exec": {"command": ["sh", "-c", "echo hook > told"]}}}
    script = "trap 'cat told; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    runs = await running(cluster, pod("hooked", "sh", "-c", script, container={"lifecycle": hook}))

    async def up() -> bool:
        return log_of(cluster, runs) == ["up"]

    await cluster.until_true(up)
    await cluster.client.delete(PODS, "hooked", "default")
    await cluster.until_gone(PODS, "hooked")
    assert log_of(cluster, runs) == ["up", "hook"]


async def test_a_pod_past_its_deadline_fails(cluster: Cluster, node: LocalNode) -> None:
    late = await finish(cluster, pod("late", "sleep", "60", activeDeadlineSeconds=1))
    assert phase(late) == "Failed"
    assert late["status"]["reason"] == "DeadlineExceeded"


async def test_http_and_tcp_probes(cluster: Cluster, node: LocalNode, free_port: int) -> None:
    server = f"import http.server as h; h.test(h.SimpleHTTPRequestHandler, port={free_port})"
    ports = {"ports": [{"name": "web", "containerPort": free_port}], "env": [PATH]}
    probes = {
        "startupProbe": {
            "tcpSocket": {"port": free_port},
            "periodSeconds": 1,
            "failureThreshold": 9,
        },
        "readinessProbe": {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 1},
    }
    body = pod("web", sys.executable, "-c", server, container={**ports, **probes})
    await cluster.client.create(PODS, body)
    await cluster.until(
        PODS,
        "web",
        lambda it: (it["status"].get("containerStatuses") or [{}])[0].get("ready") is True,
    )

from __future__ import annotations

from typing import Any

import pytest

from makeway.client.resource import Object
from makeway.embedded.controllers.hashing import short_hash
from makeway.embedded.controllers.models import pod_spec, reconcile
from makeway.embedded.controllers.plan import Create, Delete, Patch, Plan
from makeway.errors import UserError
from tests.embedded.controllers.builders import NOW, pod

CLASSES = {"high-priority"}


def model(*, status: Object | None = None, **spec: Any) -> Object:
    return {
        "metadata": {"name": "llm", "namespace": "a", "uid": "m"},
        "spec": {
            "url": "hf://org/model",
            "engine": "VLLM",
            "features": ["TextGeneration"],
            "resourceProfile": "nvidia-gpu-l4:1",
            **spec,
        },
        "status": status or {},
    }


def created(plan: Plan) -> list[Object]:
    return [each.obj for each in plan.actions if isinstance(each, Create)]


def deleted(plan: Plan) -> list[str]:
    return [each.obj["metadata"]["name"] for each in plan.actions if isinstance(each, Delete)]


def patched(plan: Plan, subresource: str = "") -> Object:
    bodies = [
        each.body
        for each in plan.actions
        if isinstance(each, Patch) and each.subresource == subresource
    ]
    return dict(bodies[0]) if bodies else {}


def conditions(plan: Plan) -> dict[str, tuple[str, str]]:
    written = (patched(plan, "status").get("status") or {}).get("conditions") or []
    return {each["type"]: (each["status"], each["message"]) for each in written}


def server(name: str, obj: Object, **more: Any) -> Object:
    return pod(name, tracked=False, labels={"pod-hash": short_hash(pod_spec(obj))}, **more)


def test_without_replicas_it_says_what_to_do() -> None:
    plan = reconcile(model(), [], NOW, None, CLASSES)
    assert created(plan) == []
    status, message = conditions(plan)["ScaledToZero"]
    assert status == "True"
    assert "kubectl scale model llm --replicas=1 -n a" in message
    assert patched(plan, "status")["status"]["replicas"] == {"all": 0, "ready": 0}


def test_the_least_number_of_replicas_is_kept() -> None:
    plan = reconcile(model(minReplicas=2), [], NOW, None, CLASSES)
    assert patched(plan) == {
        "spec": {"replicas": 2},
        "metadata": {"labels": {"features.kubeai.org/TextGeneration": "true"}},
    }
    assert len(created(plan)) == 2
    assert "ScaledToZero" not in conditions(plan)
    assert len(created(reconcile(model(replicas=9, maxReplicas=3), [], NOW, None, CLASSES))) == 3
    unmanaged = model(replicas=1, minReplicas=2, autoscalingDisabled=True)
    assert len(created(reconcile(unmanaged, [], NOW, None, CLASSES))) == 1


def test_the_pod() -> None:
    obj = model(
        minReplicas=1, priorityClassName="high-priority", args=["--x"], env={"B": "2", "A": "1"}
    )
    made = created(reconcile(obj, [], NOW, None, CLASSES))[0]
    hashed = made["metadata"]["labels"]["pod-hash"]
    assert made["metadata"]["generateName"] == f"model-llm-{hashed}-"
    assert made["metadata"]["labels"]["app.kubernetes.io/instance"] == "vllm-llm"
    assert made["metadata"]["annotations"]["model-pod-port"] == "8000"
    assert made["metadata"]["ownerReferences"][0]["kind"] == "Model"
    spec = made["spec"]
    assert spec["priorityClassName"] == "high-priority"
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    container = spec["containers"][0]
    assert container["image"] == "vllm/vllm-openai:v0.8.3"
    assert container["args"] == ["--model=org/model", "--served-model-name=llm", "--x"]
    assert container["resources"] == {
        "requests": {"nvidia.com/gpu": "1", "cpu": "6", "memory": "24Gi"},
        "limits": {"nvidia.com/gpu": "1"},
    }
    assert [each["name"] for each in container["env"]] == ["A", "B"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"


def test_profiles_multiply_and_can_be_configured() -> None:
    two = pod_spec(model(resourceProfile="cpu:2"))["containers"][0]["resources"]
    assert two == {"requests": {"cpu": "2", "memory": "4Gi"}}
    mine = {"tiny": {"requests": {"cpu": "0.5"}, "nodeSelector": {"a": "b"}}}
    spec = pod_spec(model(resourceProfile="tiny:3"), mine)
    assert spec["containers"][0]["resources"] == {"requests": {"cpu": "1.5"}}
    assert spec["nodeSelector"] == {"a": "b"}


@pytest.mark.parametrize("profile", ["", "cpu", "cpu:", "cpu:x", "nope:1", "cpu:0", "cpu:-1"])
def test_a_wrong_profile_is_told(profile: str) -> None:
    with pytest.raises(UserError, match="resource profile"):
        pod_spec(model(resourceProfile=profile))
    plan = reconcile(model(minReplicas=1, resourceProfile=profile), [], NOW, None, CLASSES)
    assert created(plan) == []
    assert conditions(plan)["ResourceProfileInvalid"][0] == "True"


def test_a_missing_priority_class_is_told_and_holds_pods_back() -> None:
    obj = model(minReplicas=1, priorityClassName="high-priorty")
    plan = reconcile(obj, [], NOW, None, CLASSES)
    assert created(plan) == []
    status, message = conditions(plan)["PriorityClassMissing"]
    assert status == "True"
    assert message.startswith("no PriorityClass with name high-priorty was found.")
    assert "high-priority" in message
    told = model(
        minReplicas=1,
        priorityClassName="high-priority",
        status={"conditions": [{"type": "PriorityClassMissing", "status": "True"}]},
    )
    plan = reconcile(told, [], NOW, None, CLASSES)
    assert len(created(plan)) == 1
    assert conditions(plan)["PriorityClassMissing"][0] == "False"


def test_an_evicted_pod_is_replaced_only_when_it_is_gone() -> None:
    obj = model(replicas=1, minReplicas=1)
    going = server("old", obj, deleted=True)
    assert created(reconcile(obj, [going], NOW, None, CLASSES)) == []
    assert len(created(reconcile(obj, [], NOW, None, CLASSES))) == 1


def test_scaling_down_takes_the_least_valuable() -> None:
    obj = model(replicas=1)
    pods = [
        server("ready", obj, ready=True),
        server("waiting", obj, phase="Pending", bound=False),
        server("starting", obj),
    ]
    assert deleted(reconcile(obj, pods, NOW, None, CLASSES)) == ["waiting", "starting"]


def test_a_change_is_rolled_out_with_one_more() -> None:
    before = model(replicas=1)
    after = model(replicas=1, priorityClassName="high-priority")
    old = server("old", before, ready=True)
    first = reconcile(after, [old], NOW, None, CLASSES)
    assert (len(created(first)), deleted(first)) == (1, [])
    waiting = reconcile(after, [old, server("new", after)], NOW, None, CLASSES)
    assert (created(waiting), deleted(waiting)) == ([], [])
    done = reconcile(after, [old, server("new", after, ready=True)], NOW, None, CLASSES)
    assert deleted(done) == ["old"]
    unready = reconcile(after, [server("old", before)], NOW, None, CLASSES)
    assert deleted(unready) == ["old"]


@pytest.mark.parametrize(
    ("engine", "url", "expected"),
    [
        ("OLlama", "ollama://gemma2:2b", "OLLAMA_HOST"),
        ("FasterWhisper", "hf://a/b", "WHISPER__MODEL"),
        ("Infinity", "hf://a/b", "INFINITY_MODEL_ID"),
    ],
)
def test_other_engines(engine: str, url: str, expected: str) -> None:
    container = pod_spec(model(engine=engine, url=url, resourceProfile="cpu:1"))["containers"][0]
    assert expected in [each["name"] for each in container["env"]]
    assert "command" not in container

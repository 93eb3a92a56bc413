"""Random small clusters with one pod that asks: each is made three times, told apart by a label.

`kube` is decided by the real kube-scheduler, `makeway` by us, and `probe` asks kube-scheduler whether the node that we chose
is feasible to it too. Pods that are there already are bound when they are made, so that all three start alike.
"""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec

Object = dict[str, Any]

WORLD: Final = "differential/world"
HOST: Final = "differential/host"
ZONE: Final = "topology.kubernetes.io/zone"
SCHEDULERS: Final = {
    "kube": "default-scheduler",
    "makeway": "makeway",
    "probe": "default-scheduler",
}
ZONES: Final = ("a", "b", "c")
APPS: Final = ("web", "db", "job")
PRIORITIES: Final = (0, 0, 10, 100, 1000)
ASKING: Final = "asking"


class World(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    nodes: list[Object]
    pods: list[Object]  # bound already
    asks: Object


def world_of(seed: int) -> World:
    """The same seed, the same world."""
    chance = random.Random(seed)
    nodes = [_node(chance, n) for n in range(chance.randint(1, 8))]
    room = {node["name"]: dict(node["capacity"]) for node in nodes}
    pods: list[Object] = []
    for n in range(chance.randint(0, 4 * len(nodes))):
        pod = _pod(chance, f"p{n}")
        fitting = [name for name in room if _fits(room[name], pod["requests"])]
        if fitting:
            pod["node"] = chance.choice(fitting)
            for resource, amount in pod["requests"].items():
                room[pod["node"]][resource] -= amount
            pods.append(pod)
    asks = _pod(chance, ASKING) | _wishes(chance, len(nodes))
    asks["priority"] = chance.choice((0, 10, 100, 1000, 10_000))
    return World(seed=seed, nodes=nodes, pods=pods, asks=asks)


def _node(chance: random.Random, n: int) -> Object:
    return {
        "name": f"n{n}",
        "capacity": {
            "cpu": chance.choice((2000, 4000, 8000)),
            "memory": chance.choice((4, 8, 16)),
            "gpu": chance.choice((0, 0, 2, 4)),
            "pods": chance.choice((3, 10, 110)),
        },
        "labels": {ZONE: chance.choice(ZONES), "disk": chance.choice(("ssd", "hdd"))},
        "taint": chance.choice(("", "", "", "", "NoSchedule", "PreferNoSchedule")),
        "unschedulable": chance.random() < 0.05,
    }


def _pod(chance: random.Random, name: str) -> Object:
    return {
        "name": name,
        "requests": {
            "cpu": chance.choice((100, 500, 1000, 2000, 3000)),
            "memory": chance.choice((0, 1, 2, 4)),
            "gpu": chance.choice((0, 0, 0, 1, 2)),
            "pods": 1,
        },
        "priority": chance.choice(PRIORITIES),
        "labels": {"app": chance.choice(APPS)},
        # Different starts: the newest falls first among equals.
        "started": chance.randint(0, 10_000),
    }


def _wishes(chance: random.Random, nodes: int) -> Object:
    """What makes nodes differ for the pod that asks; each wish is rare, so that most worlds have one or two."""
    wishes: Object = {}
    if chance.random() < 0.2:
        wishes["selector"] = {"disk": chance.choice(("ssd", "hdd"))}
    if chance.random() < 0.2:
        operator = chance.choice(("In", "NotIn", "Exists", "DoesNotExist"))
        values = [chance.choice(ZONES)] if operator in ("In", "NotIn") else []
        wishes["affinity"] = {"key": ZONE, "operator": operator, "values": values}
    if chance.random() < 0.2:
        wishes["tolerates"] = True
    if chance.random() < 0.2:
        wishes["apart"] = {"app": chance.choice(APPS), "topology": chance.choice((HOST, ZONE))}
    if chance.random() < 0.15:
        wishes["near"] = {"app": chance.choice(APPS), "topology": chance.choice((HOST, ZONE))}
    if chance.random() < 0.15:
        wishes["spread"] = {
            "app": chance.choice(APPS),
            "topology": ZONE,
            "skew": chance.randint(1, 2),
        }
    if chance.random() < 0.1:
        wishes["name"] = ASKING
        wishes["init_cpu"] = chance.choice((1000, 4000))
    if chance.random() < 0.1:
        wishes["never"] = True
    return wishes


def _fits(room: dict[str, int], requests: dict[str, int]) -> bool:
    return all(room[resource] >= amount for resource, amount in requests.items())


# ---- as objects ------------------------------------------------------------------------------------


def node_name(world: World, side: str, node: str) -> str:
    return f"w{world.seed}-{side}-{node}"


def namespace(world: World, side: str) -> str:
    return f"w{world.seed}-{side}"


def node_objects(world: World, side: str) -> list[Object]:
    return [_node_object(world, side, node) for node in world.nodes]


def _node_object(world: World, side: str, node: Object) -> Object:
    name = node_name(world, side, node["name"])
    capacity = _amounts(node["capacity"]) | {"pods": str(node["capacity"]["pods"])}
    spec: Object = {"unschedulable": True} if node["unschedulable"] else {}
    if node["taint"]:
        spec["taints"] = [{"key": "differential/taint", "value": "yes", "effect": node["taint"]}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": node["labels"] | {WORLD: namespace(world, side), HOST: name},
        },
        "spec": spec,
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def pod_object(world: World, side: str, pod: Object, pin: str = "") -> Object:
    spec: Object = {
        "schedulerName": SCHEDULERS[side],
        "priorityClassName": priority_class(pod["priority"], never=bool(pod.get("never"))),
        "terminationGracePeriodSeconds": 3600,
        "nodeSelector": {WORLD: namespace(world, side), **pod.get("selector", {})},
        "containers": [
            {
                "name": "c",
                "image": "none",
                "resources": {
                    "requests": _amounts(pod["requests"]),
                    "limits": {k: v for k, v in _amounts(pod["requests"]).items() if "gpu" in k},
                },
            }
        ],
    }
    if pin:
        spec["nodeSelector"][HOST] = pin
    if pod.get("node"):
        spec["nodeName"] = node_name(world, side, pod["node"])
    if pod.get("init_cpu"):
        requests = {"cpu": f"{pod['init_cpu']}m"}
        spec["initContainers"] = [
            {"name": "i", "image": "none", "resources": {"requests": requests}}
        ]
    if pod.get("tolerates"):
        spec["tolerations"] = [{"key": "differential/taint", "operator": "Exists"}]
    _put_affinity(spec, pod)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod["name"],
            "namespace": namespace(world, side),
            "labels": pod["labels"],
        },
        "spec": spec,
    }


def _put_affinity(spec: Object, pod: Object) -> None:
    affinity: Object = {}
    if "affinity" in pod:
        expression = {key: value for key, value in pod["affinity"].items() if value}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    for wish, field in (("apart", "podAntiAffinity"), ("near", "podAffinity")):
        if wish in pod:
            term = {
                "labelSelector": {"matchLabels": {"app": pod[wish]["app"]}},
                "topologyKey": pod[wish]["topology"],
            }
            affinity[field] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    if affinity:
        spec["affinity"] = affinity
    if "spread" in pod:
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": pod["spread"]["skew"],
                "topologyKey": pod["spread"]["topology"],
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": pod["spread"]["app"]}},
            }
        ]


def _amounts(requests: dict[str, int]) -> dict[str, str]:
    found = {"cpu": f"{requests['cpu']}m", "memory": f"{requests['memory']}Gi"}
    if requests["gpu"]:
        found["nvidia.com/gpu"] = str(requests["gpu"])
    return {name: amount for name, amount in found.items() if amount != "0Gi"}


def priority_class(value: int, *, never: bool) -> str:
    return f"d{value}-never" if never else f"d{value}"


def priority_classes() -> list[Object]:
    values = (0, 10, 100, 1000, 10_000)
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": priority_class(value, never=never)},
            "value": value,
            "preemptionPolicy": "Never" if never else "PreemptLowerPriority",
        }
        for value in values
        for never in (False, True)
    ]

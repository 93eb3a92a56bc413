"""The engine's speed, on one core: `make bench B=engine`."""

from __future__ import annotations

import gc
import random
import resource
import subprocess
import sys
import time

from bench.report import Row, median, report
from makeway.engine.assume import assume
from makeway.engine.cycle import decide
from makeway.engine.policy import Policy
from makeway.engine.state import State
from makeway.model.event import Upsert
from makeway.model.node import Node, NodeName
from makeway.model.workload import Gang, Pod, PodId, PodSet, PodShape, Workload, WorkloadId

NOW = 1_000_000.0
ONE_GPU = PodShape(namespace="d", requests=(("cpu", 4_000), ("nvidia.com/gpu", 1)))
WHOLE_NODE = PodShape(namespace="d", requests=(("cpu", 32_000), ("nvidia.com/gpu", 8)))


def nodes(state: State, count: int) -> None:
    room = (("cpu", 96_000), ("memory", 2**40), ("nvidia.com/gpu", 8), ("pods", 110))
    for i in range(count):
        name = NodeName(f"n{i:05d}")
        state.apply(
            Upsert(obj=Node(name=name, labels={"kubernetes.io/hostname": name}, allocatable=room))
        )


def submit(state: State, count: int, size: int, shape: PodShape, priority: int = 0) -> None:
    for i in range(count):
        key = WorkloadId(f"d/w{i:06d}")
        sets = (PodSet(name="main", count=size, shape=shape),)
        gang = Gang() if size > 1 else None
        state.apply(
            Upsert(
                obj=Workload(
                    id=key, priority=priority, created_at=float(i), pod_sets=sets, gang=gang
                )
            )
        )
        for j in range(size):
            pod = Pod(
                id=PodId(f"{key}-{j}"),
                workload=key,
                shape=shape,
                created_at=float(i),
                priority=priority,
            )
            state.apply(Upsert(obj=pod))


def full(count: int) -> State:
    """Nodes full of one-GPU pods with different losses."""
    state = State()
    nodes(state, count)
    draw = random.Random(1)
    for i in range(count):
        for j in range(8):
            key = WorkloadId(f"d/v{i:05d}-{j}")
            state.apply(
                Upsert(
                    obj=Workload(id=key, pod_sets=(PodSet(name="main", count=1, shape=ONE_GPU),))
                )
            )
            started = NOW - draw.randrange(1, 100_000)
            state.apply(
                Upsert(
                    obj=Pod(
                        id=PodId(key),
                        workload=key,
                        shape=ONE_GPU,
                        node=NodeName(f"n{i:05d}"),
                        phase="Running",
                        started_at=started,
                    )
                )
            )
    return state


def timed_decide(state: State) -> float:
    gc.collect()
    gc.freeze()
    started = time.process_time()
    decide(state, NOW, Policy())
    return time.process_time() - started


def gang_rate(node_count: int) -> float:
    state = State()
    nodes(state, node_count)
    submit(state, node_count, 8, ONE_GPU)
    return node_count * 8 / timed_decide(state)


def single_rate(node_count: int) -> float:
    state = State()
    nodes(state, node_count)
    submit(state, node_count, 1, ONE_GPU)
    return node_count / timed_decide(state)


def preemption_rate(node_count: int) -> float:
    state = full(node_count)
    submit(state, 100, 1, WHOLE_NODE, priority=10)
    return 100 / timed_decide(state)


def big_gang(node_count: int) -> float:
    state = full(node_count)
    submit(state, 1, 64, WHOLE_NODE, priority=10)
    started = time.process_time()
    plan = decide(state, NOW, Policy())
    took = time.process_time() - started
    (hold,) = plan.holds
    assert hold.bound is not None, "a plan comes with its bound"
    return took


def event_time(node_count: int) -> float:
    """Microseconds for one watch event: a pod that starts running."""
    state = full(node_count)
    pods = list(state.pods.values())[:2_000]
    import msgspec

    changed = [msgspec.structs.replace(pod, started_at=NOW) for pod in pods]
    gc.collect()
    started = time.process_time()
    for pod in changed:
        state.apply(Upsert(obj=pod))
    return (time.process_time() - started) / len(changed) * 1e6


def cycle_after_changes(node_count: int) -> float:
    """The same ten gangs arrive on a cluster of any size."""
    state = State()
    nodes(state, node_count)
    submit(state, node_count // 2, 8, ONE_GPU)
    assume(state, decide(state, NOW, Policy()), NOW)
    decide(state, NOW, Policy())
    times = []
    for i in range(20):
        for j in range(10):
            key = WorkloadId(f"d/new-{i}-{j}")
            sets = (PodSet(name="main", count=8, shape=ONE_GPU),)
            state.apply(Upsert(obj=Workload(id=key, created_at=NOW, pod_sets=sets, gang=Gang())))
            for k in range(8):
                state.apply(
                    Upsert(
                        obj=Pod(id=PodId(f"{key}-{k}"), workload=key, shape=ONE_GPU, created_at=NOW)
                    )
                )
        started = time.process_time()
        plan = decide(state, NOW, Policy())
        times.append(time.process_time() - started)
        assume(state, plan, NOW)
    return sorted(times)[len(times) // 2]


def memory_mib() -> float:
    """Of a process of its own, with 10,000 nodes and 100,000 pods."""
    code = "from bench.engine import fill_memory; fill_memory()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def fill_memory() -> None:
    state = State()
    nodes(state, 10_000)
    submit(state, 12_500, 8, ONE_GPU)
    assume(state, decide(state, NOW, Policy()), NOW)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> int:
    growth = median(lambda: cycle_after_changes(4_000) / cycle_after_changes(2_000))
    return report(
        "engine",
        [
            Row(
                figure="(a) 40,000 pods in gangs of 8, 5,000 nodes",
                value=median(lambda: gang_rate(5_000)),
                unit="pods/s",
                target=20_000,
                half=gang_rate(2_500),
                double=gang_rate(10_000),
            ),
            Row(
                figure="(a) single one-GPU workloads, 5,000 nodes",
                value=median(lambda: single_rate(5_000)),
                unit="pods/s",
                target=3_000,
                half=single_rate(2_500),
                double=single_rate(10_000),
            ),
            Row(
                figure="(b) 8-GPU workloads that must evict, 1,000 full nodes",
                value=median(lambda: preemption_rate(1_000)),
                unit="1/s",
                target=200,
                half=preemption_rate(500),
                double=preemption_rate(2_000),
            ),
            Row(
                figure="(c) a gang of 512 GPUs over 5,000 full nodes",
                value=median(lambda: big_gang(5_000)),
                unit="s",
                target=1.0,
                at_least=False,
                half=big_gang(2_500),
                double=big_gang(10_000),
            ),
            Row(
                figure="(d) one watch event",
                value=median(lambda: event_time(1_000)),
                unit="µs",
                target=30,
                at_least=False,
                half=event_time(500),
                double=event_time(2_000),
            ),
            Row(
                figure="(e) cycle time, twice the nodes, same changes",
                value=growth,
                unit="x",
                target=1.5,
                at_least=False,
            ),
            Row(
                figure="(f) memory, 10,000 nodes and 100,000 pods",
                value=median(memory_mib, 1),
                unit="MiB",
                target=1024,
                at_least=False,
            ),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())

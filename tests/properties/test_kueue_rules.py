"""Under the `kueue` policy the victims are Kueue's: compared with its rules written down once more, on trees of every shape."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from makeway.engine.policy import DEFAULT_STRATEGIES, Policy, Strategy
from makeway.engine.state import State
from makeway.engine.victims import kueue
from makeway.engine.victims.candidates import Request
from makeway.model.event import Upsert
from makeway.model.queue import (
    Cohort,
    CohortName,
    FlavorName,
    FlavorQuotas,
    PreemptionPolicy,
    Queue,
    QueueName,
    Quota,
    ResourceGroup,
)
from makeway.model.workload import Admission, Assignment, Workload, WorkloadId
from tests.properties.kueue_rules import FR, Amounts, Ask, Book, Node, Work, classical, fair
from tests.properties.life import many

FRS: list[FR] = [(flavor, resource) for flavor in ("one", "two") for resource in ("x", "y")]
STRATEGIES: list[tuple[Strategy, ...]] = [
    DEFAULT_STRATEGIES,
    ("LessThanOrEqualToFinalShare",),
    ("LessThanInitialShare",),
]


class Draw:
    """Choices off a row of bytes; 0 is the plainest."""

    def __init__(self, written: bytes) -> None:
        self._written = iter(written)

    def pick(self, options: list[Any]) -> Any:
        return options[next(self._written, 0) % len(options)]


class Scene:
    def __init__(self, written: bytes) -> None:
        draw = Draw(written)
        self.strategies: tuple[Strategy, ...] = draw.pick(STRATEGIES)
        self.frs = FRS[: draw.pick([1, 2, 2, 4])]
        self.nodes: dict[str, Node] = {}
        for i in range(draw.pick([1, 2, 3, 4])):
            above = [None, *(f"cohort{j}" for j in range(i))]
            # The first is the root of most.
            parent = above[-1 if i == 1 else draw.pick(list(range(len(above))))]
            self._add(draw, f"cohort{i}", parent, queue=False)
        cohorts = list(self.nodes)
        for i in range(draw.pick([2, 3, 4, 5])):
            self._add(draw, f"queue{i}", draw.pick([*cohorts, cohorts[0]]), queue=True)
        queues = [name for name, node in self.nodes.items() if node.queue]
        self.works = [self._work(draw, i, draw.pick(queues)) for i in range(draw.pick([3, 5, 8]))]
        self.ask = self._ask(draw, draw.pick(queues))
        for node in self.nodes.values():
            node.children.sort(key=lambda child: child.name)

    def _add(self, draw: Draw, name: str, parent: str | None, *, queue: bool) -> None:
        above = self.nodes[parent] if parent is not None else None
        node = Node(
            name=name,
            parent=above,
            queue=queue,
            nominal={fr: draw.pick([4, 0, 2, 6] if queue else [0, 0, 3]) for fr in self.frs},
            weight=draw.pick([1.0, 1.0, 2.0, 0.0, 0.5]),
            children=[],
        )
        if above is not None:
            for fr in self.frs:
                limit, lent = draw.pick([None, None, 0, 2, 5]), draw.pick([None, None, None, 0, 2])
                if limit is not None:
                    node.borrowing[fr] = limit
                if lent is not None:
                    node.lending[fr] = lent
            above.children.append(node)
        self.nodes[name] = node

    def _usage(self, draw: Draw) -> Amounts:
        flavor = draw.pick(["one", "one", "two"])
        found = {fr: draw.pick([1, 2, 3, 4]) for fr in self.frs if fr[0] == flavor}
        return found or {self.frs[0]: draw.pick([1, 2, 3])}

    def _work(self, draw: Draw, i: int, queue: str) -> Work:
        return Work(
            name=f"w{i}",
            queue=queue,
            priority=draw.pick([0, 1, 2, 3]),
            created=float(draw.pick([0, 10, 20, 60])),
            reserved=float(draw.pick([0, 10, 20])),
            usage=self._usage(draw),
            leaving=draw.pick([False] * 7 + [True]),
        )

    def _ask(self, draw: Draw, queue: str) -> Ask:
        usage = self._usage(draw)
        short = [fr for fr in usage if draw.pick([True, True, False])] or list(usage)[:1]
        return Ask(
            queue=queue,
            priority=draw.pick([2, 3, 1, 0]),
            created=50.0,
            usage=usage,
            need=frozenset(short),
            within=draw.pick(["LowerPriority", "LowerOrNewerEqualPriority", "Never"]),
            reclaim=draw.pick(["Any", "LowerPriority", "LowerOrNewerEqualPriority", "Never"]),
            borrow=draw.pick(["Never", "LowerPriority"]),
            threshold=draw.pick([None, None, 0, 1]),
        )

    # --- the same for the engine ---

    def state(self) -> State:
        state = State()
        for node in self.nodes.values():
            state.apply(Upsert(obj=self._queue(node) if node.queue else self._cohort(node)))
        for work in self.works:
            state.apply(Upsert(obj=self._workload(work)))
        state.settle(0.0)
        return state

    def _groups(self, node: Node) -> tuple[ResourceGroup, ...]:
        flavors = dict.fromkeys(flavor for flavor, _ in self.frs)
        return (
            ResourceGroup(
                resources=tuple(dict.fromkeys(resource for _, resource in self.frs)),
                flavors=tuple(
                    FlavorQuotas(
                        flavor=FlavorName(flavor),
                        quotas=tuple(
                            Quota(
                                resource=fr[1],
                                nominal=node.nominal[fr],
                                borrowing_limit=node.borrowing.get(fr),
                                lending_limit=node.lending.get(fr),
                            )
                            for fr in self.frs
                            if fr[0] == flavor
                        ),
                    )
                    for flavor in flavors
                ),
            ),
        )

    def _cohort(self, node: Node) -> Cohort:
        parent = CohortName(node.parent.name) if node.parent is not None else None
        return Cohort(
            name=CohortName(node.name),
            parent=parent,
            resource_groups=self._groups(node),
            weight=node.weight,
        )

    def _queue(self, node: Node) -> Queue:
        assert node.parent is not None
        return Queue(
            name=QueueName(node.name),
            cohort=CohortName(node.parent.name),
            resource_groups=self._groups(node),
            weight=node.weight,
        )

    def _workload(self, work: Work) -> Workload:
        assignment = Assignment(
            pod_set="main",
            flavors=tuple((fr[1], FlavorName(fr[0])) for fr in work.usage),
            usage=tuple((fr[1], amount) for fr, amount in work.usage.items()),
            count=1,
        )
        return Workload(
            id=WorkloadId(f"ns/{work.name}"),
            uid=work.name,
            needs="quota",
            priority=work.priority,
            created_at=work.created,
            evicted_at=1.0 if work.leaving else None,
            evicted_reason="Preempted" if work.leaving else "",
            admission=Admission(
                queue=QueueName(work.queue), assignments=(assignment,), reserved_at=work.reserved
            ),
        )

    def chosen(self, *, fair_sharing: bool) -> list[tuple[str, str]]:
        ask = self.ask
        newcomer = Workload(
            id=WorkloadId("ns/new"), uid="new", priority=ask.priority, created_at=ask.created
        )
        request = Request(
            workload=newcomer,
            queue=ask.queue,
            usage=ask.usage,
            need=ask.need,
            preemption=PreemptionPolicy(
                within_queue=ask.within,  # type: ignore[arg-type]  # drawn from the words it knows
                reclaim=ask.reclaim,  # type: ignore[arg-type]
                borrow=ask.borrow,  # type: ignore[arg-type]
                borrow_max_priority=ask.threshold,
            ),
            policy=Policy(
                victims="kueue",
                quota_only=True,
                fair_sharing=fair_sharing,
                fair_strategies=self.strategies,
            ),
            now=1000.0,
        )
        found = kueue.choose(self.state().ledger, request)
        return [(victim.held.workload.name, victim.rule) for victim in found]

    def book(self) -> Book:
        return Book(self.nodes, self.works)


def scenes() -> st.SearchStrategy[Scene]:
    return st.binary(min_size=220, max_size=220).map(Scene)


@many
@given(scenes())
def test_classical_victims_are_kueues(scene: Scene) -> None:
    assert sorted(scene.chosen(fair_sharing=False)) == sorted(classical(scene.book(), scene.ask))


@many
@given(scenes())
def test_victims_by_share_are_kueues(scene: Scene) -> None:
    wanted = fair(scene.book(), scene.ask, scene.strategies)
    assert sorted(scene.chosen(fair_sharing=True)) == sorted(wanted)

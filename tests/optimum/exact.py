"""The exact answer, formulated from the rules of design §5 as an integer program; shares no code with the engine.

x_u: workload u falls. y_nd: so many pods of demand d go to node n. Room on every node, quota of the cohort, and the rule that a
queue gives only while it uses more than it owns. First the lowest priority ceiling with which it is solvable, then the least loss.
"""

from __future__ import annotations

from typing import Any

import highspy
import msgspec

from tests.optimum.clusters import Case, Running


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    ceiling: int
    loss_gpu_s: int
    victims: tuple[str, ...]


def needs_nobody(case: Case) -> bool:
    """It fits as it is."""
    return _solve(case, []) is not None


def solve(case: Case) -> Answer | None:
    """None: no legal set makes room."""
    if _larger_than_owned(case):
        return None
    candidates = [r for r in case.running if _may_fall(case, r)]
    for ceiling in sorted({r.priority for r in candidates}):
        found = _solve(case, [r for r in candidates if r.priority <= ceiling])
        if found is not None:
            return Answer(
                ceiling=max((r.priority for r in found), default=ceiling),
                loss_gpu_s=sum(r.loss_gpu_s for r in found),
                victims=tuple(sorted(r.name for r in found)),
            )
    return None


def _larger_than_owned(case: Case) -> bool:
    """A request that is short of quota and larger than its queue's nominal quota preempts nobody (no borrowWithinCohort)."""
    if case.queue is None:
        return False
    asked = sum(w.pods * w.gpus for w in case.wanted)
    free = sum(case.nominal.values()) - sum(r.total_gpus for r in case.running)
    return asked > free and asked > case.nominal[case.queue]


def _may_fall(case: Case, running: Running) -> bool:
    """Pair by pair. Without queues: strictly lower. One queue: strictly lower (LowerPriority). Others: any (reclaim Any)."""
    if case.queue is None or running.queue == case.queue:
        return running.priority < case.priority
    return True


def _solve(case: Case, candidates: list[Running]) -> list[Running] | None:
    model = highspy.Highs()  # type: ignore[no-untyped-call]  # the package has no annotations here
    model.setOptionValue("output_flag", False)
    falls = {r.name: model.addBinary() for r in candidates}
    _room_on_nodes(model, case, candidates, falls)
    if case.queue is not None:
        _quota(model, case, candidates, falls)
    loss = sum(
        (r.loss_gpu_s * falls[r.name] for r in candidates), highspy.highs_linear_expression()
    )
    model.minimize(loss)
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return [r for r in candidates if model.val(falls[r.name]) > 0.5]


def _room_on_nodes(
    model: Any, case: Case, candidates: list[Running], falls: dict[str, Any]
) -> None:
    placed = [
        [model.addIntegral(lb=0, ub=wanted.pods) for _ in range(case.node_count)]
        for wanted in case.wanted
    ]
    for wanted, here in zip(case.wanted, placed, strict=True):
        model.addConstr(sum(here, highspy.highs_linear_expression()) == wanted.pods)
    for node in range(case.node_count):
        for capacity, amount in ((case.gpus_per_node, "gpus"), (case.cpus_per_node, "cpus")):
            used = sum(getattr(r, amount) * r.nodes.count(node) for r in case.running)
            taken = highspy.highs_linear_expression()
            for wanted, here in zip(case.wanted, placed, strict=True):
                taken += getattr(wanted, amount) * here[node]
            for running in candidates:
                back = getattr(running, amount) * running.nodes.count(node)
                if back:
                    taken -= back * falls[running.name]
            model.addConstr(taken <= capacity - used)


def _quota(model: Any, case: Case, candidates: list[Running], falls: dict[str, Any]) -> None:
    asked = sum(w.pods * w.gpus for w in case.wanted)
    used = {q: sum(r.total_gpus for r in case.running if r.queue == q) for q in case.nominal}
    given = {q: highspy.highs_linear_expression() for q in case.nominal}
    for running in candidates:
        assert running.queue is not None
        given[running.queue] += running.total_gpus * falls[running.name]
    everything = sum(given.values(), highspy.highs_linear_expression())
    # The cohort's quota holds everybody; nothing is limited inside it.
    model.addConstr(everything >= asked + sum(used.values()) - sum(case.nominal.values()))
    _reclaim_only_within_nominal(model, case, candidates, falls, asked, used, given)
    for queue in case.nominal:
        if queue != case.queue:
            _while_it_borrows(model, case, candidates, falls, queue, used[queue])


def _reclaim_only_within_nominal(
    model: Any,
    case: Case,
    candidates: list[Running],
    falls: dict[str, Any],
    asked: int,
    used: dict[str, int],
    given: dict[str, Any],
) -> None:
    """Taking from other queues needs a request that ends within one's own nominal quota (no borrowWithinCohort)."""
    assert case.queue is not None
    others = [r for r in candidates if r.queue != case.queue]
    if not others:
        return
    reclaims = model.addBinary()
    for running in others:
        model.addConstr(falls[running.name] <= reclaims)
    over = asked + used[case.queue] - case.nominal[case.queue]
    if over > 0:
        model.addConstr(given[case.queue] >= over * reclaims)


def _while_it_borrows(
    model: Any, case: Case, candidates: list[Running], falls: dict[str, Any], queue: str, used: int
) -> None:
    """In some order each falls while the queue uses more than it owns: all but the last leave it borrowing."""
    members = [r for r in candidates if r.queue == queue]
    over = used - case.nominal[queue]
    if not members:
        return
    if over <= 0:
        for running in members:
            model.addConstr(falls[running.name] <= 0)
        return
    last = {r.name: model.addBinary() for r in members}
    for running in members:
        model.addConstr(last[running.name] <= falls[running.name])
    model.addConstr(sum(last.values(), highspy.highs_linear_expression()) <= 1)
    before_last = highspy.highs_linear_expression()
    for running in members:
        before_last += running.total_gpus * (falls[running.name] - last[running.name])
    model.addConstr(before_last <= over - 1)

"""What holds after every cycle, whatever was decided. Every test of the Harness runs this; a breach is our bug."""

from __future__ import annotations

from collections import Counter

import numpy as np

from makeway.engine import gang
from makeway.engine.occupancy import terminal
from makeway.engine.policy import Policy
from makeway.engine.state import State
from makeway.model.decision import Admit, Plan
from makeway.model.node import NodeName
from makeway.model.workload import PodId


class Broken(AssertionError):
    """A promise of docs/explanation/promises.md does not hold."""


def check(state: State, plan: Plan, policy: Policy, now: float) -> None:
    """The plan, seen from the state it was made on."""
    _never_over(state, plan)
    _whole_or_not_at_all(state, plan)
    _nobody_gets_and_gives(plan)
    _always_a_reason(plan)


def _never_over(state: State, plan: Plan) -> None:
    """No decision makes requested node room exceed its limit."""
    table = state.occupancy.table
    taken = np.zeros_like(table.free)
    promised: Counter[tuple[str, NodeName]] = Counter()
    for admit in plan.admits:
        workload = state.workloads[admit.workload]
        promised.clear()
        if workload.placement:
            promised.update(state.occupancy.promised_places(workload))
        for bind in admit.binds:
            pod = state.pods[bind.pod]
            row = table.row_of[bind.node]
            if promised[pod.pod_set, bind.node] > 0:
                promised[pod.pod_set, bind.node] -= 1  # its room is counted already
                continue
            need = table.need(pod.shape)
            taken[row, : len(need)] += need
    over = np.flatnonzero(((taken > 0) & (table.free - taken < 0)).any(axis=1))
    if len(over):
        node = table.nodes[int(over[0])]
        raise Broken(f"{node.name if node else '?'} would hold more than it has: {plan.admits}")


def _whole_or_not_at_all(state: State, plan: Plan) -> None:
    """A gang is bound with at least its minimum, or not at all."""
    for admit in plan.admits:
        workload = state.workloads[admit.workload]
        if workload.gang is None or not admit.binds:
            continue
        members = state.occupancy.members(workload.id)
        bound: set[PodId] = {
            p.id for p in members if p.node is not None and not terminal(p) and p.gone_by is None
        }
        bound |= {bind.pod for bind in admit.binds}
        done = sum(1 for p in members if p.phase == "Succeeded")
        minimum = sum(count for _, count in gang.minimums(workload))
        if len(bound) + done < minimum:
            raise Broken(f"{workload.id} would run with {len(bound)} of at least {minimum} pods")


def _nobody_gets_and_gives(plan: Plan) -> None:
    """Nobody is admitted and evicted by the same plan, and nobody evicts itself."""
    admitted = {admit.workload for admit in plan.admits}
    for evict in plan.evicts:
        if evict.workload == evict.preemptor:
            raise Broken(f"{evict.workload} would evict itself")
        if evict.workload in admitted and not evict.pods:
            raise Broken(f"{evict.workload} is admitted and evicted in one plan")


def _always_a_reason(plan: Plan) -> None:
    for wait in plan.waits:
        if not wait.reason.kind:
            raise Broken(f"{wait.workload} waits without a reason")
    for decision in plan.decisions:
        if isinstance(decision, Admit) and not (
            decision.admission or decision.binds or decision.placement
        ):
            raise Broken(f"{decision.workload} is admitted to nothing")

"""Why there is no room on the nodes, in kube-scheduler's words: what each node lacks, and why evicting does not help either."""

from __future__ import annotations

import msgspec

from makeway.engine import filters, gang
from makeway.engine.occupancy import waits
from makeway.engine.placement import Shortfall
from makeway.engine.rooms import Rooms
from makeway.engine.victims import kube
from makeway.model.reason import NodeVerdict, Reason, Shortage
from makeway.model.workload import PodShape, Workload


class Refusals:
    """Worked out once a cycle for each shape: of a thousand equal pods, one is looked at."""

    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms
        self.eligible = rooms.eligible
        self.occupancy = rooms.occupancy
        self.table = rooms.table
        self._refused: dict[PodShape, tuple[NodeVerdict, ...]] = {}
        self._verdicts: dict[tuple[PodShape, int], Reason] = {}

    def why_not(self, workload: Workload, shortfall: Shortfall) -> Reason:
        """What no node has, in kube-scheduler's words, and why evicting does not help."""
        shape, near = shortfall.demand.shape, shortfall.demand.topology
        if near is not None and near.required and not self.table.codes(near.level)[1]:
            message = f"no node has the label {near.level}, within which its pods must be"
            return Reason(
                kind="no-nodes-fit", message=message, nodes_total=int(self.table.live.sum())
            )
        key = (shape, workload.rank)
        known = self._verdicts.get(key)
        if known is None:
            known = self._verdicts[key] = self._explain_shape(workload, shape)
        if shortfall.demand.count == 1:
            return known
        verdicts = known.verdicts or self._refusals_beyond(workload, shortfall)
        return msgspec.structs.replace(
            known,
            verdicts=verdicts,
            shortages=(
                Shortage(
                    resource="pods",
                    missing=shortfall.demand.count - shortfall.placed,
                    requested=shortfall.demand.count,
                    free=shortfall.placed,
                    nodes=int(self.table.live.sum()),
                    level=near.level if near is not None and near.required else "",
                ),
            ),
        )

    def _refusals_beyond(self, workload: Workload, shortfall: Shortfall) -> tuple[NodeVerdict, ...]:
        """One of them would fit anywhere: what stops the next when as many as fit are in place."""
        demand = msgspec.structs.replace(shortfall.demand, count=shortfall.placed)
        with self.rooms.filled_with(workload, demand):
            return filters.verdicts(self.table, demand.shape)

    def verdicts(self, shape: PodShape) -> tuple[NodeVerdict, ...]:
        """Worked out once a cycle for each shape."""
        known = self._refused.get(shape)
        if known is None:
            known = self._refused[shape] = filters.verdicts(self.table, shape)
        return known

    def pending_shape(self, workload: Workload) -> PodShape:
        for pod in self.occupancy.members(workload.id):
            if waits(pod):
                return pod.shape
        return workload.pod_sets[0].shape if workload.pod_sets else PodShape()

    def _explain_shape(self, workload: Workload, shape: PodShape) -> Reason:
        total = int(self.table.live.sum())
        if shape.blocked:
            return Reason(kind="no-nodes-fit", message=shape.blocked, nodes_total=total)
        reason = Reason(kind="no-nodes-fit", verdicts=self.verdicts(shape), nodes_total=total)
        if not workload.preempts:
            return msgspec.structs.replace(
                reason,
                kind="never-preempts",
                not_eligible="not eligible due to preemptionPolicy=Never.",
            )
        safe = {pod.id for c in self.eligible.roster.candidates if c.protected for pod in c.pods}
        return msgspec.structs.replace(
            reason,
            even_after=kube.why_evicting_does_not_help(self.table, shape, workload.rank, safe),
        )


def incomplete(ask: gang.Ask) -> Reason:
    return Reason(
        kind="gang-incomplete",
        shortages=(
            Shortage(
                resource="pods",
                missing=ask.missing,
                requested=ask.minimum,
                free=ask.minimum - ask.missing,
            ),
        ),
    )

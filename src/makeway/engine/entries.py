"""A head on its way through a round."""

from __future__ import annotations

from enum import Enum

from makeway.engine.proposal import Mode, NoFitReason, Proposal, Tried
from makeway.engine.queueing import Requeue
from makeway.engine.quota import Usage
from makeway.engine.rooms import Room
from makeway.engine.victims.spare import Victim
from makeway.model.decision import Decision
from makeway.model.queue import QueueName
from makeway.model.reason import Kind, Reason
from makeway.model.workload import Workload

NO_PROPOSAL = Proposal((), {}, 0, Mode.NO_FIT, NoFitReason.NONE)


class Outcome(Enum):
    WAITS = "waits"
    ADMITTED = "admitted"
    PREEMPTS = "preempts"


class Entry:
    __slots__ = (
        "counts",
        "nominated",
        "outcome",
        "proposal",
        "queue",
        "reason",
        "requeue",
        "room",
        "tried",
        "victims",
        "way",
        "workload",
    )

    def __init__(self, workload: Workload, queue: QueueName) -> None:
        self.workload = workload
        self.queue = queue
        self.nominated = False
        self.proposal = NO_PROPOSAL
        self.counts: tuple[int, ...] | None = None  # smaller than asked for: partial admission
        self.tried: Tried = ()  # how far the scan of flavors came when it was nominated
        self.victims: list[Victim] = []
        self.outcome = Outcome.WAITS
        self.requeue = Requeue.NOT_NOMINATED
        self.reason = Reason(kind="behind", kueue="PendingEvaluation")
        self.room: Room | None = None  # its nodes, once they are found
        self.way: list[Decision] = []  # who falls for it, and the room that is held

    def propose(
        self, proposal: Proposal, victims: list[Victim], counts: tuple[int, ...] | None = None
    ) -> None:
        self.nominated = True
        self.proposal = proposal
        self.victims = victims
        self.counts = counts

    def wait(
        self, requeue: Requeue, kind: Kind, kueue: str, message: str, until: float | None = None
    ) -> None:
        self.requeue = requeue
        self.reason = Reason(
            kind=kind,
            kueue=kueue,
            message=message,
            shortages=self.proposal.shortages,
            until=until,
        )

    @property
    def usage(self) -> Usage:
        """The quota it takes: none where it holds it already."""
        return {} if self.second_pass else self.proposal.usage

    @property
    def second_pass(self) -> bool:
        """Holds quota already, and comes again for what was left open."""
        return self.workload.admission is not None

    @property
    def is_preemptor(self) -> bool:
        return self.proposal.mode is Mode.PREEMPT and bool(self.victims)

"""One cycle: from the state to a plan.

    heads      one workload from each queue
    nominate   each by itself: flavors, and victims where they are needed
    order      who goes first among the heads
    process    one after the other on a ledger that already holds what came before
    requeue    whoever did not get in, with a reason

A cycle repeats such rounds until one changes nothing. All of it is what-if work on the ledger; the plan is the only result,
apart from who is parked, which the state remembers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from makeway.engine import admission
from makeway.engine.entries import Entry, Outcome
from makeway.engine.flavors import Mode
from makeway.engine.ledger import Held
from makeway.engine.nominate import Nominator
from makeway.engine.policy import Policy
from makeway.engine.queueing import Requeue
from makeway.engine.quota import FlavorResource, Usage
from makeway.engine.state import State
from makeway.engine.tournament import in_order
from makeway.model.decision import Decision, Evict, Plan, Wait
from makeway.model.queue import QueueName
from makeway.model.reason import Reason
from makeway.model.workload import WorkloadId

OVERLAP = "Workload has overlapping preemption targets with another workload"
FITS_LATER = OVERLAP + ", but will fit after these preemptions complete"
LOST = "Workload no longer fits after processing another workload"
GATED = "Workload requires preemption, but it's gated"


def decide(state: State, now: float, policy: Policy, rounds: int | None = None) -> Plan:
    """What to do now. `rounds` limits how many heads of each queue are looked at; Kueue's cycle is one round."""
    state.order_by(policy)
    state.settle(now)
    cycle = _Cycle(state, now, policy)
    with state.ledger.what_if():
        cycle.pass_gates()
        while rounds is None or cycle.rounds < rounds:
            if not cycle.round():
                break
    cycle.close()
    return cycle.plan()


class _Cycle:
    def __init__(self, state: State, now: float, policy: Policy) -> None:
        self.state = state
        self.now = now
        self.policy = policy
        self.ledger = state.ledger
        self.nominator = Nominator(state, now, policy)
        self.rounds = 0
        self.decisions: list[Decision] = []
        self.waits: dict[WorkloadId, Wait] = {}
        self.skipped: dict[str, int] = {}
        self.admitted: list[Entry] = []
        self.victims: dict[
            WorkloadId, Held
        ] = {}  # of all rounds: they hold their quota until they are gone
        # What heads that wait for their victims (or that block their queue) will need: later rounds go around it.
        self.claims: list[tuple[QueueName, Usage]] = []
        self.closed: set[QueueName] = (
            set()
        )  # queues whose head stays, so that nobody behind it is looked at

    # -- before the rounds ---------------------------------------------------------------------------------------

    def pass_gates(self) -> None:
        self.decisions += admission.open_gates(self.state)
        self.decisions += admission.drain_stopped(self.state)

    # -- one round -----------------------------------------------------------------------------------------------

    def round(self) -> bool:
        """True when it changed something, so that another round is worth the while."""
        heads = self._heads()
        if not heads:
            return False
        self.rounds += 1
        self.state.rounds += 1
        entries = [self.nominator.nominate(head, queue) for queue, head in heads]
        nominated = [entry for entry in entries if entry.nominated]
        processed: list[Entry] = []
        with self.ledger.what_if():
            for queue, usage in self.claims:
                self.ledger.add_usage(queue, usage)
            for entry in in_order(nominated, self.ledger, self.policy):
                self._process(entry)
                processed.append(entry)
        refused = [entry for entry in entries if not entry.nominated]
        return self._conclude([*processed, *refused])

    def _heads(self) -> list[tuple[QueueName, WorkloadId]]:
        heads = []
        for name in sorted(self.state.pending):
            if name in self.closed or not self.state.is_active(name):
                continue
            head = self.state.pending[name].head()
            if head is not None:
                heads.append((name, head.id))
        return heads

    # -- one head, on the ledger that the earlier ones have changed --------------------------------------------

    def _process(self, entry: Entry) -> None:
        if self.policy.recompute_overlaps and self._overlaps(entry):
            self.nominator.look_again(entry, without=self.victims.values())
        proposal = entry.proposal
        if proposal.mode is Mode.NO_FIT:
            entry.wait(
                Requeue.NO_FIT, proposal.no_fit.kind, proposal.no_fit.kueue, proposal.message
            )
        elif proposal.mode is Mode.PREEMPT and not entry.victims:
            self._wait_without_victims(entry)
        elif proposal.mode is Mode.PREEMPT and entry.workload.preemption_gated:
            entry.wait(Requeue.GATED, "gated", "AdmissionGated", GATED)
        elif proposal.mode is Mode.DEFERRED_FIT:
            self._claim(entry, proposal.usage)
            entry.wait(
                Requeue.PENDING_PREEMPTION,
                "fits-after-victims",
                "WaitingForPreemptedWorkloads",
                FITS_LATER,
            )
        elif self._overlaps(entry):
            self.skipped[entry.queue] = self.skipped.get(entry.queue, 0) + 1
            entry.wait(Requeue.LOST, "overlapping-victims", "WaitingForQuota", OVERLAP)
        elif not self._still_fits(entry):
            if proposal.mode is Mode.PREEMPT:
                self.skipped[entry.queue] = self.skipped.get(entry.queue, 0) + 1
            entry.wait(Requeue.LOST, "lost-the-round", "WaitingForQuota", LOST)
        elif proposal.mode is Mode.PREEMPT:
            self._preempt(entry)
        else:
            self.ledger.add_usage(entry.queue, proposal.usage)
            entry.outcome = Outcome.ADMITTED

    def _overlaps(self, entry: Entry) -> bool:
        return any(victim.held.id in self.victims for victim in entry.victims)

    def _still_fits(self, entry: Entry) -> bool:
        """With everybody gone who was asked to go, by this entry or by earlier ones."""
        with self.ledger.what_if():
            for held in [*self.victims.values(), *(victim.held for victim in entry.victims)]:
                self.ledger.release(held.id)
            return self.ledger.queue(entry.queue).fits(entry.proposal.usage)

    def _wait_without_victims(self, entry: Entry) -> None:
        """Nobody to take from. Keep what is free, lest others slip in and it never adds up; unless quota can be taken back."""
        if self.state.queues[entry.queue].preemption.reclaim != "Any":
            self._reserve_for(entry)
        entry.wait(Requeue.NO_CANDIDATES, "no-quota", "WaitingForQuota", entry.proposal.message)

    def _reserve_for(self, entry: Entry) -> None:
        reserved: dict[FlavorResource, int] = {}
        node = self.ledger.queue(entry.queue)
        for fr, amount in entry.proposal.usage.items():
            room = node.quota(fr) - node.used(fr)
            if entry.proposal.borrowing == 0:
                reserved[fr] = max(0, min(amount, room))
                continue
            limit = node.borrowing_limit.get(fr)
            reserved[fr] = amount if limit is None else min(amount, room + limit)
        self._claim(entry, reserved)

    def _claim(self, entry: Entry, usage: Usage) -> None:
        self.ledger.add_usage(entry.queue, usage)
        entry.claim = usage

    def _preempt(self, entry: Entry) -> None:
        for victim in entry.victims:
            self.victims[victim.held.id] = victim.held
        self._claim(entry, entry.proposal.usage)
        message = entry.proposal.message
        message += f". Pending the preemption of {len(entry.victims)} workload(s)"
        entry.outcome = Outcome.PREEMPTS
        entry.wait(
            Requeue.PENDING_PREEMPTION,
            "waiting-for-victims",
            "WaitingForPreemptedWorkloads",
            message,
        )

    # -- after a round -------------------------------------------------------------------------------------------

    def _conclude(self, entries: Iterable[Entry]) -> bool:
        changed = False
        for entry in entries:
            if entry.outcome is Outcome.ADMITTED:
                self._admit(entry)
                changed = True
            else:
                changed = self._requeue(entry) or changed
        return changed

    def _admit(self, entry: Entry) -> None:
        workload = entry.workload
        admit = admission.admit(entry, self.state, self.now)
        self.decisions.append(admit)
        self.waits.pop(workload.id, None)
        if admit.admission is not None:
            self.ledger.reserve(Held(workload, entry.queue, entry.proposal.usage))
        self.state.pending[entry.queue].remove(workload.id, keep_mark=True)
        self.admitted.append(entry)

    def _requeue(self, entry: Entry) -> bool:
        if entry.outcome is Outcome.PREEMPTS:
            self.decisions += _evictions(entry)
        how = entry.requeue
        untried = self._note_progress(entry)
        parked = self.state.pending[entry.queue].requeue(
            entry.workload, how, untried_flavors=untried
        )
        self.waits[entry.workload.id] = Wait(
            workload=entry.workload.id, reason=entry.reason, parked=parked
        )
        if parked:
            return True
        if how is not Requeue.LOST and not untried:
            # The head stays where it is, and room only shrinks within a cycle: nothing behind it has a turn.
            self.closed.add(entry.queue)
            if entry.claim:
                self.claims.append((entry.queue, entry.claim))
        return entry.outcome is Outcome.PREEMPTS

    def _note_progress(self, entry: Entry) -> bool:
        """Remember how far the flavor scan came. True when there are flavors left to try."""
        if not entry.nominated or entry.requeue in (Requeue.PENDING_PREEMPTION, Requeue.GATED):
            self.state.progress.pop(entry.workload.id, None)
            return False
        tried = entry.proposal.tried()
        self.state.remember_tried(entry.workload, entry.queue, tried)
        return any(index != -1 for pod_set in tried for index in pod_set.values())

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Who was admitted is still waiting as far as the state knows, until the event says otherwise."""
        for entry in self.admitted:
            self.state.pending[entry.queue].add(entry.workload)

    def plan(self) -> Plan:
        return Plan(
            decisions=(*self.decisions, *self.waits.values()),
            rounds=self.rounds,
            skipped_preemptions=self.skipped,
        )


def _evictions(entry: Entry) -> Iterator[Evict]:
    for victim in entry.victims:
        yield Evict(
            workload=victim.held.id,
            preemptor=entry.workload.id,
            reason=Reason(
                kind="preempted",
                kueue="Preempted",
                preemptor=entry.workload.id,
                rule=victim.rule,
            ),
            already=victim.held.workload.evicted_at is not None,
        )

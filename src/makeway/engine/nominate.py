"""A head by itself: may it run here at all, on which flavors, and at whose expense?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from makeway.engine.demand import largest_step, smaller_counts
from makeway.engine.departures import Departures
from makeway.engine.entries import Entry
from makeway.engine.flavors import Assigner
from makeway.engine.joint import Joint
from makeway.engine.ledger import Held, Ledger, Part
from makeway.engine.policy import Policy
from makeway.engine.proposal import Mode, Offer, Possibility, Proposal, Tried
from makeway.engine.queueing import Requeue
from makeway.engine.quota import FlavorResource, Usage, borrowing_height
from makeway.engine.state import State
from makeway.engine.victims.candidates import Request, rule_named
from makeway.engine.victims.policies import ChooseVictims, choice_of
from makeway.engine.victims.roster import Candidate
from makeway.engine.victims.spare import Victim
from makeway.model.queue import QueueName
from makeway.model.workload import Workload, WorkloadId

NAMESPACE_MISMATCH = "workload namespace doesn't match ClusterQueue selector"


class Nominator:
    def __init__(
        self, state: State, now: float, policy: Policy, joint: Joint | None = None
    ) -> None:
        self.state = state
        self.now = now
        self.policy = policy
        self.joint = joint
        self.choose: ChooseVictims = choice_of(policy)
        self.claims: Mapping[WorkloadId, tuple[QueueName, Usage]] = {}  # shared with `Serving`
        self.reserved: set[WorkloadId] = set()  # of these: who has waited long; shared too
        # Who is no candidate in this cycle, whatever the rules say.
        self.out_of_reach: set[WorkloadId] = set()

    def nominate(self, head: WorkloadId, queue: QueueName) -> Entry:
        entry = Entry(self.state.workloads[head], queue)
        if not self._refused(entry):
            self._propose(entry)
            entry.tried = entry.proposal.tried()
        return entry

    # -- may it run here at all? ---------------------------------------------------------------------------------

    def _refused(self, entry: Entry) -> bool:
        workload = entry.workload
        if any(check.state in ("Retry", "Rejected") for check in workload.checks):
            entry.wait(
                Requeue.NOT_NOMINATED,
                "checks",
                "Misconfigured",
                "The workload has failed admission checks",
            )
            return True
        namespace = self.state.namespaces.get(workload.namespace)
        selector = self.state.queues[entry.queue].namespace_selector
        if namespace is None:
            entry.wait(
                Requeue.NOT_NOMINATED,
                "misconfigured",
                "Misconfigured",
                f"Could not obtain workload namespace: {workload.namespace} not found",
            )
            return True
        if selector is None or not selector.matches(namespace.labels):
            entry.wait(
                Requeue.NAMESPACE_MISMATCH, "misconfigured", "Misconfigured", NAMESPACE_MISMATCH
            )
            return True
        if workload.invalid:
            entry.wait(Requeue.NOT_NOMINATED, "misconfigured", "Misconfigured", workload.invalid)
            return True
        return False

    # -- which flavors, at whose expense? ------------------------------------------------------------------------

    def _propose(self, entry: Entry) -> None:
        assigner = self.assigner(entry.workload, entry.queue)
        tried = self.state.tried_flavors(entry.workload, entry.queue)
        full = assigner.assign(entry.workload, tried=tried)
        if self._fits_once_others_left(entry.workload, entry.queue, full):
            entry.propose(msgspec.structs.replace(full, mode=Mode.DEFERRED_FIT), [])
            return
        victims = self.victims_for(entry.workload, entry.queue, full)
        entry.propose(full, victims)
        if not _gets_in(full, victims) and self.policy.partial_admission:
            self._propose_smaller(entry, assigner, tried)

    def _fits_once_others_left(
        self, workload: Workload, queue: QueueName, proposal: Proposal
    ) -> bool:
        """Those who were told to stop free enough when they are gone: nobody else has to fall."""
        if proposal.mode is not Mode.PREEMPT or self.joint is None or not self.policy.by_loss:
            return False
        with self._beside_claims(workload):
            left = self.joint.release_leaving()
            return left and self.state.ledger.queue(queue).fits(proposal.usage)

    @contextmanager
    def _beside_claims(self, workload: Workload) -> Iterator[None]:
        """With the room counted that others have been promised, since what frees it was told to stop for them."""
        with self.state.ledger.what_if():
            for key, (queue, usage) in self.claims.items():
                if key != workload.id and not self._may_take(workload, key):
                    self.state.ledger.add_usage(queue, usage)
            yield

    def _may_take(self, workload: Workload, keeper: WorkloadId) -> bool:
        """What a weaker one merely keeps together while it waits."""
        return keeper in self.reserved and self.state.workloads[keeper].priority < workload.priority

    def _propose_smaller(self, entry: Entry, assigner: Assigner, tried: Tried) -> None:
        """The largest size that gets in, victims allowed: by bisection, since a smaller size never fits worse."""
        workload = entry.workload
        low, high = 1, largest_step(workload) + 1
        best: tuple[Proposal, list[Victim], tuple[int, ...]] | None = None
        while low < high:
            middle = (low + high) // 2
            counts = smaller_counts(workload, middle)
            proposal = assigner.assign(workload, counts=counts, tried=tried)
            victims = self.victims_for(workload, entry.queue, proposal)
            if _gets_in(proposal, victims):
                best = (proposal, victims, counts)
                high = middle
            else:
                low = middle + 1
        if best is not None:
            entry.propose(*best)

    def look_again(self, entry: Entry, without: Departures) -> None:
        """Earlier heads took some of its victims: with those gone, on the same flavors, what is needed now?"""
        ledger = self.state.ledger
        only = frozenset(entry.proposal.usage)
        with ledger.what_if():
            without.free_room(ledger)
            again = Nominator(self.state, self.now, self.policy)
            again.out_of_reach = self.out_of_reach | without.ids()
            assigner = again.assigner(entry.workload, entry.queue, only=only)
            proposal = assigner.assign(entry.workload, counts=entry.counts)
            victims = again.victims_for(entry.workload, entry.queue, proposal)
        if proposal.mode is Mode.FIT:
            proposal = msgspec.structs.replace(proposal, mode=Mode.DEFERRED_FIT)
        entry.propose(proposal, victims, entry.counts)

    def assigner(
        self, workload: Workload, queue: QueueName, only: frozenset[FlavorResource] | None = None
    ) -> Assigner:
        return Assigner(
            queue=self.state.queues[queue],
            node=self.state.ledger.queue(queue),
            flavors=self.state.flavors,
            policy=self.policy,
            oracle=lambda fr, amount: self._would_preemption_help(workload, queue, fr, amount),
            only=only,
        )

    def victims_for(self, workload: Workload, queue: QueueName, proposal: Proposal) -> list[Victim]:
        if proposal.mode is not Mode.PREEMPT:
            return []
        if self.joint is None or not self.policy.by_loss:
            return self._choose(workload, queue, proposal.usage, proposal.need)
        return self._by_loss(workload, queue, proposal, self.joint)

    def _by_loss(
        self, workload: Workload, queue: QueueName, proposal: Proposal, joint: Joint
    ) -> list[Victim]:
        """The cheapest for quota and nodes together. Only those that hold quota are named here; the rest falls with them."""
        if not workload.preempts:
            return []
        with self._beside_claims(workload):
            room = joint.room_by_evicting(workload, queue, proposal)
        if room is None:
            # What this very cycle admitted can still be taken back: nobody falls.
            found = self._choose(workload, queue, proposal.usage, proposal.need)
            return found if all(self._just_admitted(victim) for victim in found) else []
        return [
            Victim(held, rule)
            for fallen in room.victims
            if (held := self._quota_of(fallen)) is not None
            and (rule := rule_named(room.rules[fallen.workload.id])) is not None
        ]

    def _quota_of(self, fallen: Candidate) -> Held | None:
        """What comes back when it falls; single pods give nothing back, unless their job is lowered."""
        held = self.state.ledger.get(fallen.workload.id)
        if held is None or fallen.whole:
            return held
        which = ",".join(pod.id for pod in fallen.pods)
        return Part(held, len(fallen.pods), which) if fallen.lowers else None

    def _just_admitted(self, victim: Victim) -> bool:
        known = self.state.workloads.get(victim.held.id)
        return known is not None and known.admission is None

    def _choose(
        self, workload: Workload, queue: QueueName, usage: Usage, need: frozenset[FlavorResource]
    ) -> list[Victim]:
        if not workload.preempts:
            return []
        excluded: set[WorkloadId] | frozenset[WorkloadId] = self.out_of_reach
        prices = None
        if self.joint is not None and self.policy.victims != "kueue":
            excluded = excluded | self.joint.seating.eligible.out_of_bounds(workload)
        if self.joint is not None and self.policy.victims == "least-loss":
            excluded = excluded | self.joint.seating.eligible.protected
            prices = self.joint.seating.eligible.price_of
        request = Request(
            workload=workload,
            queue=queue,
            usage=usage,
            need=need,
            preemption=self.state.queues[queue].preemption,
            policy=self.policy,
            now=self.now,
            usable=self._is_usable,
            excluded=excluded,
            price=prices,
            used=self.state.usage,
        )
        return self._within_budgets(request)

    def _within_budgets(self, request: Request) -> list[Victim]:
        """Disruption budgets forbid: who would overdraw one is spared, and the others are asked again."""
        while True:
            victims = self.choose(self.state.ledger, request)
            spared = self._over_budget(victims)
            if spared is None:
                return victims
            request.excluded = {*request.excluded, spared}

    def _over_budget(self, victims: list[Victim]) -> WorkloadId | None:
        """The first who draws more than its budget has left after those before it."""
        if self.joint is None or not self.policy.budgets_are_hard:
            return None
        left = {budget.id: budget.allowed for budget in self.state.budgets.values()}
        for victim in victims if left else ():
            for budget in self.joint.seating.eligible.budgets_of(victim.held.id):
                left[budget] -= 1
                if left[budget] < 0:
                    return victim.held.id
        return None

    def _is_usable(self, queue: str) -> bool:
        name = QueueName(queue)
        return name in self.state.queues and self.state.is_active(name)

    def _would_preemption_help(
        self, workload: Workload, queue: QueueName, fr: FlavorResource, amount: int
    ) -> Offer:
        victims = self._choose(workload, queue, {fr: amount}, frozenset({fr}))
        return offer_after(self.state.ledger, queue, fr, amount, victims)


def offer_after(
    ledger: Ledger, queue: str, fr: FlavorResource, amount: int, victims: list[Victim]
) -> Offer:
    """What a flavor offers once these victims are gone."""
    node = ledger.queue(queue)
    if not victims:
        return Offer(Possibility.NO_CANDIDATES, borrowing_height(node, fr, amount)[0])
    with ledger.what_if():
        for victim in victims:
            ledger.release(victim.held.id)
        height, _ = borrowing_height(node, fr, amount)
    own = any(victim.held.queue == queue for victim in victims)
    return Offer(Possibility.PREEMPT if own else Possibility.RECLAIM, height)


def _gets_in(proposal: Proposal, victims: list[Victim]) -> bool:
    return proposal.mode is Mode.FIT or (proposal.mode is Mode.PREEMPT and bool(victims))

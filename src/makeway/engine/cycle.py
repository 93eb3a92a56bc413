"""One cycle: from the state to a plan.

    seat       pods without a node: of admitted workloads, and of those that have no queue
    heads      one workload from each queue
    nominate   each by itself: flavors, and victims where they are needed
    serve      one after the other, on a ledger that already holds what came before
    conclude   admit, evict, hold; and whoever did not get in back into line, with a reason

A cycle repeats such rounds until one changes nothing. All of it is what-if work on the ledger; the plan is the only result,
apart from who is parked, which the state remembers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import cached_property

import msgspec

from makeway.engine import admission
from makeway.engine.entries import Entry, Outcome
from makeway.engine.holds import hold_for
from makeway.engine.joint import Joint
from makeway.engine.ledger import Held
from makeway.engine.nominate import Nominator
from makeway.engine.policy import Policy
from makeway.engine.queueing import Requeue, shape_of
from makeway.engine.seating import Seating
from makeway.engine.serving import LOST, Serving, strength
from makeway.engine.state import State
from makeway.engine.victims.spare import Victim
from makeway.model.decision import Admit, Decision, Evict, Plan, Wait
from makeway.model.queue import QueueName
from makeway.model.reason import Reason
from makeway.model.workload import Admission, Workload, WorkloadId

EQUAL = "Bypassed scheduling evaluation because an equivalent workload recently failed"


def decide(state: State, now: float, policy: Policy, rounds: int | None = None) -> Plan:
    """What to do now. `rounds` limits how many heads of each queue are looked at; Kueue's cycle is one round."""
    state.order_by(policy, now)
    state.settle(now)
    cycle = _Cycle(state, now, policy)
    try:
        with cycle.seating.open(), state.ledger.what_if():
            cycle.pass_gates()
            cycle.seat_promised()
            while (rounds is None or cycle.rounds < rounds) and cycle.round():
                pass
            cycle.seat_the_rest()
    finally:
        cycle.close()
    cycle.explain_the_rest()
    return cycle.plan()


class _Cycle:
    def __init__(self, state: State, now: float, policy: Policy) -> None:
        self.state = state
        self.now = now
        self.policy = policy
        self.ledger = state.ledger
        self.seating = Seating(state, now, policy)
        self.joint = Joint(state, self.seating, now, policy)
        self.nominator = Nominator(state, now, policy, None if policy.quota_only else self.joint)
        self.serving = Serving(
            state, now, policy, self.nominator, self.joint, self.seat_stronger_than
        )
        self.expired = list(state.expired_holds)
        state.expired_holds.clear()
        self.rounds = 0
        self.decisions: list[Decision] = []
        self.waits: dict[WorkloadId, Wait] = {}
        self.seated: set[WorkloadId] = set()  # all their pods have the nodes they were promised
        self.took: dict[WorkloadId, Entry] = {}  # admitted in this cycle
        self.gates: dict[WorkloadId, Admission] = {}  # past their last check, and without nodes
        # Out of their line until the cycle ends: they have had their turn.
        self.aside: list[Entry] = []
        # Who was promised room counts as if it had got in.
        for key, (_, usage) in self.serving.held_claims.items():
            state.usage.give(state.workloads[key], usage)
        # Queues with heads still to look at. One whose head stays is closed: nobody behind it has a turn.
        self.open = [q for q in sorted(state.pending) if state.is_active(q)]

    # -- pods without a node -------------------------------------------------------------------------------------

    def seat_promised(self) -> None:
        """Pods of workloads that were admitted before: to the nodes they were promised."""
        if self.policy.quota_only:
            return
        for workload in self._waiting(_admitted, self.state.occupancy.waiting):
            decisions, rest = self.seating.seat_promised(workload)
            self._note(workload, decisions)
            if not rest:
                self.seated.add(workload.id)

    def seat_the_rest(self) -> None:
        if not self.policy.quota_only:
            self.seat_stronger_than(None)

    def seat_stronger_than(self, head: Workload | None) -> None:
        """Work that wants nodes and no quota goes before weaker heads; equal priorities by age. None: everybody's turn."""
        while self._seekers:
            seeker = self._seekers[0]
            if head is not None and (
                strength(seeker) < strength(head) or self._takes_what_is_left(seeker)
            ):
                break
            self._seekers.popleft()
            if seeker.id in self.gates:
                self._note(seeker, self.joint.pass_gate(seeker, self.gates[seeker.id]))
            elif seeker.needs == "nodes":
                self._note(seeker, self.joint.seat_unqueued(seeker))
            else:
                self._note(seeker, self.joint.seat_admitted(seeker))

    @cached_property
    def _seekers(self) -> deque[Workload]:
        """Past its last check, without a queue, or admitted and without a promise; the strongest first."""
        workloads = self.state.workloads
        found = [
            key
            for key in self.state.occupancy.waiting
            if key in workloads and (workloads[key].needs == "nodes" or _admitted(workloads[key]))
        ]
        waiting = self._waiting(lambda w: w.id not in self.seated, [*self.gates, *found])
        return deque(sorted(waiting, key=self._takes_what_is_left))

    def _takes_what_is_left(self, workload: Workload) -> bool:
        """It has begun already; and a queue could take its place back in this very cycle."""
        return _admitted(workload) and self.seating.has_begun(workload)

    def _waiting(
        self, wanted: Callable[[Workload], bool], among: Iterable[WorkloadId]
    ) -> list[Workload]:
        """With pods that want a node: highest priority first, then the oldest; not those known to fit nowhere."""
        generation = self.state.occupancy.generation
        found = []
        for key in among:
            workload = self.state.workloads.get(key)
            if workload is None or workload.evicted_at is not None or workload.foreign:
                continue
            if workload.held_back:
                if workload.gang is not None and workload.needs == "nodes":
                    self.waits[key] = _incomplete(workload)
                continue
            if self.state.node_parked.get(key) != generation and wanted(workload):
                found.append(workload)
        return sorted(found, key=lambda w: (-w.rank, w.created_at, w.id))

    def _note(self, workload: Workload, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Wait):
                self.waits[workload.id] = decision
                if decision.parked:
                    self.state.node_parked[workload.id] = self.state.occupancy.generation
            else:
                self.decisions.append(decision)

    # -- before the rounds ---------------------------------------------------------------------------------------

    def pass_gates(self) -> None:
        """Admission checks that have spoken, and queues that an administrator stopped."""
        self.decisions += admission.refused(self.state)
        self.decisions += admission.drain_stopped(self.state)
        sent_back = {d.workload for d in self.decisions if isinstance(d, Evict)}
        for workload, opened in admission.ready(self.state, self.now):
            if workload.id in sent_back:
                continue
            if self.joint.needs_nodes(workload, opened.assignments):
                self.gates[workload.id] = opened
            else:
                self.decisions.append(Admit(workload=workload.id, admission=opened))

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
        served = self.serving.serve(nominated)
        refused = [entry for entry in entries if not entry.nominated]
        for holder, taker in self.serving.broken_holds():
            self.seating.end_hold(holder, taker)
        return self._conclude([*served, *refused])

    def _heads(self) -> list[tuple[QueueName, WorkloadId]]:
        found = [(name, self.state.pending[name].head()) for name in self.open]
        heads = [(name, head.id) for name, head in found if head is not None]
        self.open = [name for name, _ in heads]
        if self.rounds == 0:
            # Whoever holds room comes for it, whoever stands before it in its line meanwhile.
            holders = [h for h in self.serving.holds.holders() if self.state.is_active(h[0])]
            heads = [*holders, *(head for head in heads if head not in holders)]
        return heads

    def _close(self, queue: QueueName) -> None:
        if queue in self.open:
            self.open.remove(queue)

    # -- after a round -------------------------------------------------------------------------------------------

    def _conclude(self, entries: Iterable[Entry]) -> bool:
        changed = False
        for entry in entries:
            self.decisions += entry.way
            if entry.outcome is not Outcome.WAITS:
                self._evict(entry)
            if entry.outcome is Outcome.ADMITTED:
                self._admit(entry)
                changed = True
            else:
                changed = self._requeue(entry) or changed
        return changed

    def _admit(self, entry: Entry) -> None:
        admit = admission.admit(entry, self.state, self.now)
        self.decisions.append(admit)
        self.waits.pop(entry.workload.id, None)
        if not entry.second_pass:
            workload = msgspec.structs.replace(entry.workload, admission=admit.admission)
            self.ledger.reserve(Held(workload, entry.queue, entry.usage))
            self.state.usage.give(entry.workload, entry.usage)
        self.serving.admitted.add(entry.workload.id)
        self.took[entry.workload.id] = entry
        self._set_aside(entry)

    def _set_aside(self, entry: Entry) -> None:
        self.state.pending[entry.queue].remove(entry.workload.id, keep_mark=True)
        self.aside.append(entry)

    def _evict(self, entry: Entry) -> None:
        for victim in entry.victims:
            if victim.held.id in self.serving.admitted:
                self._take_back(victim.held, entry)
            elif entry.room is None or victim.held.workload.evicted_at is not None:
                self.decisions.append(_eviction(entry, victim))

    def _take_back(self, held: Held, entry: Entry) -> None:
        """Admitted in an earlier round, in the way now: it simply was not admitted. Nobody fell, nothing was lost."""
        self.ledger.release(held.id)
        self.state.usage.take_back(held.workload)
        self.serving.victims.discard(held)
        self.serving.admitted.discard(held.id)
        self.serving.take_nodes(self.took.pop(held.id), -1)
        self.decisions = [
            d for d in self.decisions if not (isinstance(d, Admit) and d.workload == held.id)
        ]
        reason = Reason(
            kind="taken-back", kueue="WaitingForQuota", message=LOST, preemptor=entry.workload.id
        )
        self.waits[held.id] = Wait(workload=held.id, reason=reason)

    def _requeue(self, entry: Entry) -> bool:
        how = entry.requeue
        self._hold_room(entry)
        untried = self._note_progress(entry)
        parked = self.state.pending[entry.queue].requeue(
            entry.workload, how, untried_flavors=untried
        )
        self.waits[entry.workload.id] = Wait(
            workload=entry.workload.id, reason=entry.reason, parked=parked
        )
        if how is not Requeue.PENDING_PREEMPTION:
            self.serving.forget_claim(entry)
        if parked:
            self.state.refusals[entry.queue, shape_of(entry.workload)] = entry.reason
            return True
        if how is Requeue.PENDING_PREEMPTION and self._serves_next(entry.queue):
            self.state.usage.give(entry.workload, entry.usage)
            self._set_aside(entry)
            return True
        if how is not Requeue.LOST and not untried:
            # The head stays where it is, and room only shrinks within a cycle: nobody behind it has a turn.
            self._close(entry.queue)
            if how is Requeue.NO_CANDIDATES:
                self.serving.blocked[entry.queue] = entry
        return untried or entry.outcome is Outcome.PREEMPTS

    def _hold_room(self, entry: Entry) -> None:
        """Until its victims are gone and it gets in, in a later cycle."""
        waits = entry.requeue is Requeue.PENDING_PREEMPTION and self.policy.victims != "kueue"
        if waits and entry.workload.id not in self.seating.holds:
            self.decisions.append(hold_for(entry, self.now, self.policy))

    def _serves_next(self, queue: QueueName) -> bool:
        """A head whose room is on its way keeps its claim, and the next has its turn; in Kueue it blocks its queue."""
        return self.policy.victims != "kueue" and self.state.pending[queue].strategy != "StrictFIFO"

    def _note_progress(self, entry: Entry) -> bool:
        """Remember how far the flavor scan came. True when there are flavors left to try."""
        if entry.requeue in (Requeue.PENDING_PREEMPTION, Requeue.GATED):
            self.state.progress.pop(entry.workload.id, None)
            return False
        self.state.remember_tried(entry.workload, entry.queue, entry.tried)
        return any(index != -1 for pod_set in entry.tried for index in pod_set.values())

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Whoever is aside is still waiting as far as the state knows, until an event says otherwise."""
        for entry in self.aside:
            self.state.pending[entry.queue].add(entry.workload)
        self.state.usage.forget_given()
        if self.seating.eligible.has_been_asked:
            self.state.protected_until = self.seating.eligible.protected_until

    def explain_the_rest(self) -> None:
        """Who came and was not looked at is told why too: an equal one failed, or somebody is ahead."""
        for key in [*self.waits, *self.took]:
            self.state.unexplained.pop(key, None)
        for key in list(self.state.unexplained):
            queue = self.state.waits_in(key)
            if queue is None:
                continue
            reason = self._behind(self.state.workloads[key], queue)
            if reason is not None:
                self.waits[key] = Wait(workload=key, reason=reason, parked=True)
                del self.state.unexplained[key]

    def _behind(self, workload: Workload, queue: QueueName) -> Reason | None:
        twin = self.state.refusals.get((queue, shape_of(workload)))
        if twin is not None:
            return msgspec.structs.replace(
                twin, kind="equal-failed", message=f"{EQUAL}: {twin.message or twin.kind}"
            )
        head = self.state.pending[queue].head() if queue in self.state.pending else None
        if head is None or head.id == workload.id:
            return None
        message = f"{head.id} is ahead of it in ClusterQueue {queue} and waits"
        because = self.state.why_after(workload, head, queue)
        if because:
            message += f". {because}"
        return Reason(kind="behind", kueue="PendingEvaluation", message=message)

    def plan(self) -> Plan:
        fallen = {d.workload for d in self.decisions if isinstance(d, Evict) and not d.pods}
        # Pods that got a node a moment ago, of a workload that has to go: they simply were not bound.
        kept = [d for d in self.decisions if not (isinstance(d, Admit) and d.workload in fallen)]
        return Plan(
            decisions=(*_one_admit_each(kept), *self.waits.values()),
            rounds=self.rounds,
            skipped_preemptions=self.serving.skipped,
            ended_holds=tuple(dict.fromkeys([*self.expired, *self.seating.ended_holds])),
            lost_holds=tuple(dict.fromkeys(self.seating.lost_holds)),
            wake_at=self.seating.wake_at,
        )


def _incomplete(workload: Workload) -> Wait:
    """Members are missing: nobody looks for room before they are there, and those who are there are told."""
    reason = Reason(kind="gang-incomplete", message=workload.held_back)
    return Wait(workload=workload.id, reason=reason)


def _one_admit_each(decisions: list[Decision]) -> list[Decision]:
    """Pods of one workload that were seated at different moments of the cycle are bound together."""
    first: dict[WorkloadId, int] = {}
    result: list[Decision] = []
    for decision in decisions:
        if isinstance(decision, Admit) and decision.binds:
            place = first.setdefault(decision.workload, len(result))
            if place < len(result):
                earlier = result[place]
                assert isinstance(earlier, Admit)
                binds = (*earlier.binds, *decision.binds)
                result[place] = msgspec.structs.replace(earlier, binds=binds)
                continue
        result.append(decision)
    return result


def _admitted(workload: Workload) -> bool:
    """Its pods are ours to place: quota alone leaves that to another scheduler."""
    given = workload.admission is not None and workload.admission.admitted
    return given and workload.needs != "quota"


def _eviction(entry: Entry, victim: Victim) -> Evict:
    return Evict(
        workload=victim.held.id,
        preemptor=entry.workload.id,
        reason=Reason(
            kind="preempted", kueue="Preempted", preemptor=entry.workload.id, rule=victim.rule
        ),
        already=victim.held.workload.evicted_at is not None,
    )

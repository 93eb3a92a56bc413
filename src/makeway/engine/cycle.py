"""One cycle: from the state to a plan.

    seat       pods without a node: of admitted workloads, and of those that have no queue
    heads      one workload from each queue
    nominate   each by itself: flavors, and victims where they are needed
    order      who goes first among the heads
    process    one after the other on a ledger that already holds what came before
    requeue    whoever did not get in, with a reason

A cycle repeats such rounds until one changes nothing. All of it is what-if work on the ledger; the plan is the only result,
apart from who is parked, which the state remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from makeway.engine import admission
from makeway.engine.departures import Departures
from makeway.engine.entries import Entry, Outcome
from makeway.engine.joint import Joint
from makeway.engine.ledger import Held
from makeway.engine.nominate import Nominator
from makeway.engine.placement import Shortfall
from makeway.engine.policy import Policy
from makeway.engine.proposal import Mode
from makeway.engine.queueing import Requeue, shape_of
from makeway.engine.quota import FlavorResource, Usage
from makeway.engine.seating import Legality, Room, Seating, by_pod_priority
from makeway.engine.state import State
from makeway.engine.tournament import in_order
from makeway.engine.victims.loss import Intervals
from makeway.engine.victims.quota_room import QuotaRoom
from makeway.engine.victims.spare import Victim
from makeway.model.decision import Admit, Decision, Evict, Plan, Wait
from makeway.model.queue import QueueName
from makeway.model.reason import Reason
from makeway.model.workload import Workload, WorkloadId

OVERLAP = "Workload has overlapping preemption targets with another workload"
FITS_LATER = OVERLAP + ", but will fit after these preemptions complete"
LOST = "Workload no longer fits after processing another workload"
EQUAL = "Bypassed scheduling evaluation because an equivalent workload recently failed"
GATED = "Workload requires preemption, but it's gated"


def decide(state: State, now: float, policy: Policy, rounds: int | None = None) -> Plan:
    """What to do now. `rounds` limits how many heads of each queue are looked at; Kueue's cycle is one round."""
    state.order_by(policy)
    state.settle(now)
    cycle = _Cycle(state, now, policy)
    with cycle.seating.open(), state.ledger.what_if():
        cycle.pass_gates()
        cycle.seat_admitted()
        while rounds is None or cycle.rounds < rounds:
            cycle.seat_before_heads()
            if not cycle.round():
                break
        cycle.seat_the_rest()
    cycle.close()
    cycle.explain_the_rest()
    return cycle.plan()


class _Cycle:
    def __init__(self, state: State, now: float, policy: Policy) -> None:
        self.state = state
        self.now = now
        self.policy = policy
        self.ledger = state.ledger
        self.seating = Seating(
            state.occupancy,
            state.workloads,
            state.holds,
            state.budgets,
            now,
            policy,
            Intervals(state.workloads.values()).of,
            state.history,
        )
        self.joint = Joint(state, self.seating, now, policy)
        self.nominator = Nominator(state, now, policy, None if policy.quota_only else self.joint)
        self.expired = list(state.expired_holds)
        state.expired_holds.clear()
        self.rounds = 0
        self.decisions: list[Decision] = []
        self.waits: dict[WorkloadId, Wait] = {}
        self.seated: set[WorkloadId] = set()  # looked at in this cycle, whatever came of it
        self.skipped: dict[str, int] = {}
        self.admitted: dict[WorkloadId, Entry] = {}
        # Out of their line until the cycle ends: they have had their turn.
        self.aside: list[Entry] = []
        # Of all rounds: they hold their quota until they are gone.
        self.victims = Departures()
        # Heads of strict queues that nobody makes room for: in every round they keep, in their turn, what is free.
        self.blocked: dict[QueueName, Entry] = {}
        # What heads that wait for their victims will need: later rounds go around it.
        self.claims: dict[WorkloadId, tuple[QueueName, Usage]] = {}
        # Queues with heads still to look at. One whose head stays is closed: nobody behind it has a turn.
        self.open = [q for q in sorted(state.pending) if state.is_active(q)]

    # -- pods without a node -------------------------------------------------------------------------------------

    def seat_admitted(self) -> None:
        """Pods of workloads that were admitted before: to the nodes they were promised."""
        if self.policy.quota_only:
            return
        for workload in self._waiting(lambda w: w.admission is not None and w.admission.admitted):
            self._seat(workload, self.joint.legality_of_admitted(workload))

    def seat_before_heads(self) -> None:
        """Unqueued pods that rank at least as high as every head go first."""
        if self.policy.quota_only:
            return
        ranks = [self.state.workloads[head].rank for _, head in self._heads()]
        if ranks:
            highest = max(ranks)
            self._seat_unqueued(lambda w: w.rank >= highest and w.id not in self.seated)

    def seat_the_rest(self) -> None:
        if not self.policy.quota_only:
            self._seat_unqueued(lambda w: w.id not in self.seated)

    def _seat_unqueued(self, wanted: Callable[[Workload], bool]) -> None:
        for workload in self._waiting(lambda w: w.needs == "nodes" and wanted(w)):
            self._seat(workload, by_pod_priority)

    def _waiting(self, wanted: Callable[[Workload], bool]) -> list[Workload]:
        """With pods that want a node: highest priority first, then the oldest; not those known to fit nowhere."""
        generation = self.state.occupancy.generation
        found = []
        for key in self.state.occupancy.waiting:
            workload = self.state.workloads.get(key)
            if (
                workload is None
                or workload.evicted_at is not None
                or workload.foreign
                or workload.held_back
            ):
                continue
            if self.state.node_parked.get(key) != generation and wanted(workload):
                found.append(workload)
        return sorted(found, key=lambda w: (-w.rank, w.created_at, w.id))

    def _seat(self, workload: Workload, legality: Legality) -> None:
        self.seated.add(workload.id)
        for decision in self.seating.seat(workload, legality):
            if isinstance(decision, Wait):
                self.waits[workload.id] = decision
                if decision.parked:
                    self.state.node_parked[workload.id] = self.state.occupancy.generation
            else:
                self.decisions.append(decision)

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
        processed = self._process_all([*nominated, *self.blocked.values()])
        refused = [entry for entry in entries if not entry.nominated]
        return self._conclude([*processed, *refused])

    def _process_all(self, entries: list[Entry]) -> list[Entry]:
        """Those of this round, in the order in which they were served."""
        processed = []
        with self.ledger.what_if():
            for queue, usage in self.claims.values():
                self.ledger.add_usage(queue, usage)
            for entry in in_order(entries, self.ledger, self.policy):
                self._process(entry)
                if entry.queue in self.blocked:
                    self.claims.pop(entry.workload.id, None)
                else:
                    processed.append(entry)
        return processed

    def _heads(self) -> list[tuple[QueueName, WorkloadId]]:
        found = [(name, self.state.pending[name].head()) for name in self.open]
        heads = [(name, head.id) for name, head in found if head is not None]
        self.open = [name for name, _ in heads]
        return heads

    # -- one head, on the ledger that the earlier ones have changed --------------------------------------------

    def _process(self, entry: Entry) -> None:
        if self.policy.recompute_overlaps and self._overlaps(entry):
            self.nominator.look_again(entry, without=self.victims)
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
            self._wait_for_room(entry)
        elif self._overlaps(entry):
            self.skipped[entry.queue] = self.skipped.get(entry.queue, 0) + 1
            entry.wait(Requeue.LOST, "overlapping-victims", "WaitingForQuota", OVERLAP)
        elif not self._still_fits(entry):
            if proposal.mode is Mode.PREEMPT:
                self.skipped[entry.queue] = self.skipped.get(entry.queue, 0) + 1
            entry.wait(Requeue.LOST, "lost-the-round", "WaitingForQuota", LOST)
        elif proposal.mode is Mode.PREEMPT and not self._takes_back_only(entry):
            self._preempt(entry)
        elif not self._fits_before_victims_leave(entry):
            self._wait_for_room(entry)
        elif self._place(entry):
            self._take_room(entry)

    def _place(self, entry: Entry) -> bool:
        """Quota is there; are the nodes? What does not fit them waits for them, and is not admitted in vain."""
        if self.policy.quota_only or admission.checks_open(entry, self.state):
            return True  # with checks, nodes are chosen when the last is ready
        room = self.joint.room(entry.workload, entry.queue, entry.proposal)
        if isinstance(room, Shortfall):
            self.state.waiting_for_nodes[entry.queue] = None
            reason = self.seating.why_not(entry.workload, room)
            entry.requeue = Requeue.NO_FIT
            entry.reason = msgspec.structs.replace(reason, kueue="WaitingForNodes")
            return False
        entry.room = room
        if room.victims:
            self._make_way_on_nodes(entry, room)
            return False
        return True

    def _make_way_on_nodes(self, entry: Entry, room: Room) -> None:
        """Others fall for the nodes, and the room is held until they are gone."""
        quota = self.joint.quota_room(
            entry.workload, entry.queue, entry.proposal, need=frozenset(entry.proposal.usage)
        )
        self._claim(entry, entry.usage)
        self.decisions += self._way(entry, room, quota)
        names = ", ".join(sorted({victim.workload.id for victim in room.victims}))
        entry.outcome = Outcome.PREEMPTS
        entry.wait(
            Requeue.PENDING_PREEMPTION,
            "waiting-for-victims",
            "WaitingForPreemptedWorkloads",
            f"The quota is there; waiting for nodes that {names} will leave",
        )

    def _way(self, entry: Entry, room: Room, quota: QuotaRoom) -> list[Decision]:
        """The evictions, each by the rule of the queues that allows it, and the hold."""
        decisions = self.seating.make_way(entry.workload, room, placement=room.placement)
        return [
            _by_rule(decision, self.joint.rule(quota, decision.workload))
            if isinstance(decision, Evict)
            else decision
            for decision in decisions
            if not isinstance(decision, Wait)
        ]

    def _way_for_quota(self, entry: Entry) -> bool:
        """With these victims gone, are there nodes too? Then they fall and the room is held; else nobody falls."""
        workload, proposal = entry.workload, entry.proposal
        if self.policy.by_loss:
            room = self.joint.room_by_evicting(workload, entry.queue, proposal)
        else:
            room = self._room_after(entry)
        if room is None:
            return False
        entry.room = room
        quota = self.joint.quota_room(workload, entry.queue, proposal, need=proposal.need)
        self.decisions += self._way(entry, room, quota)
        return True

    def _room_after(self, entry: Entry) -> Room | None:
        """Kueue's victims are given; the nodes must suffice once they are gone."""
        roster = self.seating.roster
        chosen = [
            roster.candidates[unit]
            for victim in entry.victims
            for unit in roster.by_workload.get(victim.held.id, ())
            if roster.candidates[unit].whole
        ]
        demands = self.joint.demands(entry.workload, entry.proposal.assignments())
        return self.seating.room_without(entry.workload, demands, chosen)

    def _overlaps(self, entry: Entry) -> bool:
        return any(victim.held.id in self.victims for victim in entry.victims)

    def _still_fits(self, entry: Entry) -> bool:
        """With everybody gone who was asked to go, by this entry or by earlier ones."""
        with self.ledger.what_if():
            self.victims.free_room(self.ledger)
            for victim in entry.victims:
                self.ledger.release(victim.held.id)
            return self.ledger.queue(entry.queue).fits(entry.usage)

    def _fits_before_victims_leave(self, entry: Entry) -> bool:
        """Room that is only on its way is not there yet. Kueue does not ask, and may admit too much for a moment."""
        if self.policy.victims == "kueue" or not self.victims:
            return True
        with self.ledger.what_if():
            for queue, usage in self.claims.values():
                self.ledger.remove_usage(queue, usage)
            for victim in entry.victims:
                self.ledger.release(victim.held.id)
            return self.ledger.queue(entry.queue).fits(entry.usage)

    def _wait_for_room(self, entry: Entry) -> None:
        self._claim(entry, entry.usage)
        entry.wait(
            Requeue.PENDING_PREEMPTION,
            "fits-after-victims",
            "WaitingForPreemptedWorkloads",
            FITS_LATER,
        )

    def _take_room(self, entry: Entry) -> None:
        for victim in entry.victims:
            self.ledger.release(victim.held.id)
        self.ledger.add_usage(entry.queue, entry.usage)
        self._take_nodes(entry, 1)
        self.seating.end_hold(entry.workload.id)
        entry.outcome = Outcome.ADMITTED

    def _take_nodes(self, entry: Entry, sign: int) -> None:
        if entry.room is None:
            return
        for demand in self.joint.demands(entry.workload, entry.proposal.assignments()):
            mine = [place for place in entry.room.placement if place.pod_set == demand.pod_set]
            self.seating.take_rooms(demand.shape, mine, sign)

    def _takes_back_only(self, entry: Entry) -> bool:
        """All its victims were admitted a moment ago, in this same cycle: nobody has to be stopped for it."""
        return all(victim.held.id in self.admitted for victim in entry.victims)

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
        """For the rest of the round; if victims are on their way out for it, for the rest of the cycle."""
        self.ledger.add_usage(entry.queue, usage)
        self.claims[entry.workload.id] = (entry.queue, usage)

    def _preempt(self, entry: Entry) -> None:
        if not self.policy.quota_only and not self._way_for_quota(entry):
            entry.victims = []
            self._wait_without_victims(entry)
            return
        for victim in entry.victims:
            self.victims.add(victim.held)
        self._claim(entry, entry.usage)
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
        self.admitted[entry.workload.id] = entry
        self._set_aside(entry)

    def _set_aside(self, entry: Entry) -> None:
        self.state.pending[entry.queue].remove(entry.workload.id, keep_mark=True)
        self.aside.append(entry)

    def _evict(self, entry: Entry) -> None:
        for victim in entry.victims:
            if victim.held.id in self.admitted:
                self._take_back(victim.held, entry)
            elif entry.room is None or victim.held.workload.evicted_at is not None:
                self.decisions.append(_eviction(entry, victim))

    def _take_back(self, held: Held, entry: Entry) -> None:
        """Admitted in an earlier round, in the way now: it simply was not admitted. Nobody fell, nothing was lost."""
        self.ledger.release(held.id)
        self.victims.discard(held)
        self._take_nodes(self.admitted.pop(held.id), -1)
        self.decisions = [
            d for d in self.decisions if not (isinstance(d, Admit) and d.workload == held.id)
        ]
        reason = Reason(
            kind="taken-back", kueue="WaitingForQuota", message=LOST, preemptor=entry.workload.id
        )
        self.waits[held.id] = Wait(workload=held.id, reason=reason)

    def _requeue(self, entry: Entry) -> bool:
        how = entry.requeue
        untried = self._note_progress(entry)
        parked = self.state.pending[entry.queue].requeue(
            entry.workload, how, untried_flavors=untried
        )
        self.waits[entry.workload.id] = Wait(
            workload=entry.workload.id, reason=entry.reason, parked=parked
        )
        if how is not Requeue.PENDING_PREEMPTION:
            self.claims.pop(entry.workload.id, None)
        if parked:
            self.state.refusals[entry.queue, shape_of(entry.workload)] = entry.reason
            return True
        if how is Requeue.PENDING_PREEMPTION and self._serves_next(entry.queue):
            self._set_aside(entry)
            return True
        if how is not Requeue.LOST and not untried:
            # The head stays where it is, and room only shrinks within a cycle: nobody behind it has a turn.
            self.open.remove(entry.queue)
            if how is Requeue.NO_CANDIDATES:
                self.blocked[entry.queue] = entry
        return untried or entry.outcome is Outcome.PREEMPTS

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

    def explain_the_rest(self) -> None:
        """Who came and was not looked at is told why too: an equal one failed, or somebody is ahead."""
        for key in [*self.waits, *self.admitted]:
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
        return Reason(kind="behind", kueue="PendingEvaluation", message=message)

    def plan(self) -> Plan:
        fallen = {d.workload for d in self.decisions if isinstance(d, Evict) and not d.pods}
        # Pods that got a node a moment ago, of a workload that has to go: they simply were not bound.
        kept = [d for d in self.decisions if not (isinstance(d, Admit) and d.workload in fallen)]
        return Plan(
            decisions=(*kept, *self.waits.values()),
            rounds=self.rounds,
            skipped_preemptions=self.skipped,
            ended_holds=tuple(dict.fromkeys([*self.expired, *self.seating.ended_holds])),
            wake_at=self.seating.wake_at,
        )


def _eviction(entry: Entry, victim: Victim) -> Evict:
    return Evict(
        workload=victim.held.id,
        preemptor=entry.workload.id,
        reason=Reason(
            kind="preempted", kueue="Preempted", preemptor=entry.workload.id, rule=victim.rule
        ),
        already=victim.held.workload.evicted_at is not None,
    )


def _by_rule(evict: Evict, rule: str) -> Evict:
    reason = msgspec.structs.replace(evict.reason, kueue="Preempted", rule=rule)
    return msgspec.structs.replace(evict, reason=reason)

"""The heads of a round, served one after the other.

Each was nominated by itself; here they meet. Whoever comes first takes its room, claims the room its victims will leave, or
keeps what is free while nobody makes room for it; whoever comes later must fit beside that, or waits with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from makeway.engine.admission import checks_open
from makeway.engine.departures import Departures
from makeway.engine.entries import Entry, Outcome
from makeway.engine.holds import Holds, hold_for
from makeway.engine.joint import Joint
from makeway.engine.nominate import Nominator
from makeway.engine.placement import Shortfall
from makeway.engine.policy import Policy
from makeway.engine.proposal import Mode
from makeway.engine.queueing import Requeue
from makeway.engine.quota import FlavorResource, QuotaNode, Usage
from makeway.engine.rooms import Room
from makeway.engine.state import State
from makeway.engine.tournament import in_order
from makeway.model.decision import PATIENCE, RESERVATION
from makeway.model.queue import QueueName
from makeway.model.workload import Workload, WorkloadId

OVERLAP = "Workload has overlapping preemption targets with another workload"
FITS_LATER = OVERLAP + ", but will fit after these preemptions complete"
LOST = "Workload no longer fits after processing another workload"
KEPT = "{} has waited long and keeps this quota until it can start"
GATED = "Workload requires preemption, but it's gated"


def strength(workload: Workload) -> tuple[int, float]:
    """Where no queue is between two: pod priority, then age."""
    return workload.rank, -workload.created_at


class Serving:
    """Over all rounds of a cycle: what earlier heads took, claimed and asked to leave."""

    def __init__(
        self,
        state: State,
        now: float,
        policy: Policy,
        nominator: Nominator,
        joint: Joint,
        seat_stronger_than: Callable[[Workload], None],
    ) -> None:
        self.state = state
        self.now = now
        self.policy = policy
        self.joint = joint
        self.seating = joint.seating
        self.ledger = state.ledger
        self.nominator = nominator
        self.seat_stronger_than = seat_stronger_than  # work without a queue, in its turn
        self.skipped: dict[str, int] = {}  # preemptions given up, by queue
        self.admitted: set[WorkloadId] = set()
        # Of all rounds, and of holds: they keep their quota until they are gone.
        self.victims = Departures()
        # Heads of strict queues that nobody makes room for: in every round they keep, in their turn, what is free.
        self.blocked: dict[QueueName, Entry] = {}
        self.holds = Holds(state, now, policy)
        # What heads that wait for their victims will need, from earlier cycles and rounds: others go around it.
        self.held_claims = self.holds.claims()
        self.claims: dict[WorkloadId, tuple[QueueName, Usage]] = dict(self.held_claims)
        nominator.claims = self.claims
        # Claims of who has waited long: they outlast its turn, and give way to who is stronger or ends in time.
        self.reserved: set[WorkloadId] = set()
        nominator.reserved = self.reserved
        self._claim_reservations()
        self._broken: list[tuple[WorkloadId, WorkloadId | None]] = []
        # Claims that the entry whose turn it is may take.
        self._opened: dict[WorkloadId, tuple[QueueName, Usage]] = {}
        for held in self.holds.victims():
            self.victims.add(held)

    def _claim_reservations(self) -> None:
        with self.ledger.what_if():
            for queue, usage in self.claims.values():
                self.ledger.add_usage(queue, usage)
            for workload in self.holds.reservations:
                self._claim_reservation(workload)

    def _claim_reservation(self, workload: WorkloadId) -> None:
        queue, usage = self.holds.reservations[workload]
        room = _own_room(self.ledger.queue(queue), usage)
        self.ledger.add_usage(queue, room)
        self.claims[workload] = (queue, room)
        self.reserved.add(workload)

    @contextmanager
    def _past_reservations(self, entry: Entry) -> Iterator[None]:
        """What is kept for others may be used by who ranks higher, or ends before it is needed; what is left stays kept."""
        open_to_it = self.holds.open_to(entry.workload)
        passed = [k for k in open_to_it if k in self.reserved and k != entry.workload.id]
        for key in passed:
            self._withdraw_claim(key)
        yield
        for key in passed:
            self._claim_reservation(key)

    def serve(self, nominated: list[Entry]) -> list[Entry]:
        """Gives each entry its outcome, in turn, on a ledger that already holds what came before. Returns that order."""
        served = []
        entries = [*nominated, *self.blocked.values()]
        with self.ledger.what_if():
            for queue, usage in self.claims.values():
                self.ledger.add_usage(queue, usage)
            for entry in self._in_turn(entries):
                with self._past_reservations(entry):
                    self._serve(entry)
                    self._settle_opened(entry)
                if entry.queue in self.blocked:
                    self.claims.pop(entry.workload.id, None)
                else:
                    served.append(entry)
        return served

    def _in_turn(self, entries: list[Entry]) -> Iterator[Entry]:
        """Who was promised room comes for it before others keep it busy; only its own queue's line can put one before it."""
        holders = [entry for entry in entries if entry.workload.id in self.holds]
        others = [entry for entry in entries if entry.workload.id not in self.holds]
        for holder in holders:
            for entry in list(others):
                ahead = entry.workload.priority > holder.workload.priority
                if entry.queue == holder.queue and ahead:
                    others.remove(entry)
                    yield entry
            yield holder
        yield from in_order(others, self.ledger, self.policy)

    def _serve(self, entry: Entry) -> None:
        self._withdraw_claim(entry.workload.id)
        if entry.workload.id in self.holds and entry.proposal.mode is not Mode.FIT:
            if self.holds.comes_true(entry.workload.id):
                self._go_on_waiting(entry)
                return
            self._break(entry.workload.id)
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
        elif proposal.mode is Mode.DEFERRED_FIT and self._fits_when_all_have_left(entry):
            self._wait_for_room(entry)
        elif proposal.mode is Mode.DEFERRED_FIT:
            entry.wait(Requeue.LOST, "lost-the-round", "WaitingForQuota", LOST)
        elif self._overlaps(entry):
            self.skipped[entry.queue] = self.skipped.get(entry.queue, 0) + 1
            entry.wait(Requeue.LOST, "overlapping-victims", "WaitingForQuota", OVERLAP)
        elif not self._still_fits(entry) and not self._opens_weaker_holds(entry):
            if proposal.mode is Mode.PREEMPT:
                self.skipped[entry.queue] = self.skipped.get(entry.queue, 0) + 1
            self._lose(entry)
        elif proposal.mode is Mode.PREEMPT and not self._takes_back_only(entry):
            self._preempt(entry)
        elif not self._fits_before_victims_leave(entry):
            self._wait_for_room(entry)
        elif self._place(entry):
            self._take_room(entry)

    # -- the nodes' half -----------------------------------------------------------------------------------------

    def _place(self, entry: Entry) -> bool:
        """Quota is there; are the nodes? What does not fit them waits for them, and is not admitted in vain."""
        if self.policy.quota_only or checks_open(entry, self.state):
            return True  # with checks, nodes are chosen when the last is ready
        self._let_stronger_go_first(entry)
        room = self.joint.room(entry.workload, entry.queue, entry.proposal)
        if isinstance(room, Shortfall) and entry.workload.id in self.holds:
            self._go_on_waiting(entry)
            return False
        if isinstance(room, Shortfall):
            self.state.waiting_for_nodes[entry.queue] = None
            self._reserve(entry)
            reason = self.seating.refusals.why_not(entry.workload, room)
            entry.requeue = Requeue.NO_FIT
            entry.reason = msgspec.structs.replace(reason, kueue="WaitingForNodes")
            return False
        entry.room = room
        if room.victims or room.comes_at is not None:
            self._make_way_on_nodes(entry, room)
            return False
        return True

    def _reserve(self, entry: Entry) -> None:
        """A gang that has waited long keeps the nodes and the quota that are free, as its queue or the configuration says."""
        if entry.workload.gang is None:
            return  # one pod that fits is enough to start
        demands = self.joint.demands(entry.workload, entry.proposal.assignments())
        entry.way = self.seating.reserve(
            entry.workload,
            demands,
            after_s=self.state.queues[entry.queue].reserve_after_s,
            quota=None
            if self.policy.victims == "kueue"
            else hold_for(entry, self.now, self.policy),
        )
        if self._is_reserved(entry.workload.id):
            room = _own_room(self.ledger.queue(entry.queue), entry.usage)
            self._claim(entry, room)
            self.reserved.add(entry.workload.id)

    def _is_reserved(self, workload: WorkloadId) -> bool:
        hold = self.seating.holds.get(workload)
        return hold is not None and hold.rule == RESERVATION and hold.admission is not None

    def _let_stronger_go_first(self, entry: Entry) -> None:
        """Who has no queue and outranks this head would only evict it later."""
        self.seat_stronger_than(entry.workload)

    def _make_way_on_nodes(self, entry: Entry, room: Room) -> None:
        """Others fall for the nodes, or end by themselves; the room is held until they are gone."""
        self._claim(entry, entry.usage)
        entry.way = self.joint.way(entry, room)
        names = ", ".join(sorted({victim.workload.id for victim in room.victims}))
        entry.outcome = Outcome.PREEMPTS
        if room.comes_at is not None:
            self._wait_patiently(entry, room.comes_from, room.comes_at)
            return
        entry.wait(
            Requeue.PENDING_PREEMPTION,
            "waiting-for-victims",
            "WaitingForPreemptedWorkloads",
            f"The quota is there; waiting for nodes that {names} will leave",
        )

    def _wait_patiently(self, entry: Entry, others: Sequence[WorkloadId], until: float) -> None:
        entry.wait(
            Requeue.PENDING_PREEMPTION,
            "patience",
            "WaitingForNodes",
            f"The quota is there; waiting for {', '.join(others)} to end by itself rather than evict",
            until,
        )

    def _way_for_quota(self, entry: Entry) -> bool:
        """With these victims gone, are there nodes too? Then they fall and the room is held; else nobody falls."""
        self._let_stronger_go_first(entry)
        if self.policy.by_loss:
            room = self.joint.room_by_evicting(entry.workload, entry.queue, entry.proposal)
        else:
            room = self.joint.room_without(entry)
        if room is None:
            return False
        entry.room = room
        entry.way = self.joint.way(entry, room)
        return True

    def take_nodes(self, entry: Entry, sign: int = 1) -> None:
        """For the rest of the cycle (-1: it is taken back)."""
        if entry.room is None:
            return
        demands = self.joint.demands(entry.workload, entry.proposal.assignments())
        self.joint.take_nodes(demands, entry.room.placement, sign)

    # -- quota ---------------------------------------------------------------------------------------------------

    def _overlaps(self, entry: Entry) -> bool:
        return any(victim.held.id in self.victims for victim in entry.victims)

    def _still_fits(self, entry: Entry) -> bool:
        """With everybody gone who was asked to go, by this entry or by earlier ones."""
        if not self.victims and not entry.victims:
            return self.ledger.queue(entry.queue).fits(entry.usage)
        with self.ledger.what_if():
            self.victims.free_room(self.ledger)
            for victim in entry.victims:
                self.ledger.give_back(victim.held)
            return self.ledger.queue(entry.queue).fits(entry.usage)

    def _fits_when_all_have_left(self, entry: Entry) -> bool:
        """Beside what earlier heads claim of it."""
        with self.ledger.what_if():
            self.joint.release_leaving()
            self.victims.release_rest(self.ledger)
            return self.ledger.queue(entry.queue).fits(entry.usage)

    def _fits_without(self, entry: Entry, claims: Iterable[WorkloadId]) -> bool:
        open_to_it = [self.claims[key] for key in claims if key in self.claims]
        if not open_to_it:
            return False
        with self.ledger.what_if():
            for queue, usage in open_to_it:
                self.ledger.remove_usage(queue, usage)
            return self._still_fits(entry)

    def _lose(self, entry: Entry) -> None:
        """Others were first; who is kept waiting by a reservation waits for that, and lets those behind it have their turn."""
        keepers = [key for key in sorted(self.reserved) if key != entry.workload.id]
        if not self._fits_without(entry, keepers):
            entry.wait(Requeue.LOST, "lost-the-round", "WaitingForQuota", LOST)
            return
        self.state.waiting_for_nodes[entry.queue] = None  # what is kept may be room on nodes too
        entry.wait(
            Requeue.NO_FIT, "reservation", "WaitingForQuota", KEPT.format(", ".join(keepers))
        )

    def _opens_weaker_holds(self, entry: Entry) -> bool:
        """Room kept for a lower priority is open to it, as much as needed of it."""
        broken: list[WorkloadId] = []
        with self.ledger.what_if():
            for key in self.holds.weaker_than(entry):
                fell = self.seating.eligible.fell_for(entry.workload, self.state.workloads[key])
                if key in self.claims and not fell:
                    queue, usage = self.claims[key]
                    self.ledger.remove_usage(queue, usage)
                    broken.append(key)
                    if self._still_fits(entry):
                        break
            else:
                return False
        for key in broken:
            self._opened[key] = self.claims[key]
            self._withdraw_claim(key)
        return True

    def _settle_opened(self, entry: Entry) -> None:
        """Whoever took the room broke the holds; who then found no nodes leaves them as they were."""
        opened, self._opened = self._opened, {}
        took = entry.outcome is Outcome.ADMITTED or entry.workload.id in self.claims
        for key, (queue, usage) in opened.items():
            if took:
                self._break(key, entry.workload.id)
            else:
                self.ledger.add_usage(queue, usage)
                self.claims[key] = (queue, usage)

    def _break(self, holder: WorkloadId, taker: WorkloadId | None = None) -> None:
        self.holds.end(holder)
        self._broken.append((holder, taker))

    def broken_holds(self) -> list[tuple[WorkloadId, WorkloadId | None]]:
        """Since it was last asked: whose, and who took the room where that is known."""
        broken, self._broken = self._broken, []
        return broken

    def _fits_before_victims_leave(self, entry: Entry) -> bool:
        """Room that is only on its way is not there yet. Kueue does not ask, and may admit too much for a moment."""
        if self.policy.victims == "kueue" or not self.victims:
            return True
        with self.ledger.what_if():
            for queue, usage in self.claims.values():
                self.ledger.remove_usage(queue, usage)
            for victim in entry.victims:
                self.ledger.give_back(victim.held)
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
            self.ledger.give_back(victim.held)
        self.ledger.add_usage(entry.queue, entry.usage)
        self.take_nodes(entry)
        self.seating.end_hold(entry.workload.id)
        entry.outcome = Outcome.ADMITTED
        if entry.workload.id in self.holds:
            # Others stepped aside for it: it is not sent back in the very cycle in which it gets in.
            self.nominator.out_of_reach.add(entry.workload.id)

    def _takes_back_only(self, entry: Entry) -> bool:
        """All its victims were admitted a moment ago, in this same cycle: nobody has to be stopped for it."""
        return all(victim.held.id in self.admitted for victim in entry.victims)

    def _wait_without_victims(self, entry: Entry) -> None:
        """Nobody to take from. Keep what is free, lest others slip in and it never adds up; unless quota can be taken back."""
        if self.policy.victims != "kueue":
            self._reserve(entry)
        if (
            entry.workload.id not in self.claims
            and self.state.queues[entry.queue].preemption.reclaim != "Any"
        ):
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
            reserved[fr] = amount if limit is None else max(0, min(amount, room + limit))
        self._claim(entry, reserved)

    def _claim(self, entry: Entry, usage: Usage) -> None:
        """For the rest of the round; if victims are on their way out for it, for the rest of the cycle."""
        self.ledger.add_usage(entry.queue, usage)
        self.claims[entry.workload.id] = (entry.queue, usage)

    def forget_claim(self, entry: Entry) -> None:
        if entry.workload.id not in self.reserved:
            self.claims.pop(entry.workload.id, None)

    def _withdraw_claim(self, workload: WorkloadId) -> None:
        self.reserved.discard(workload)
        if workload in self.claims:
            queue, usage = self.claims.pop(workload)
            self.ledger.remove_usage(queue, usage)

    def _go_on_waiting(self, entry: Entry) -> None:
        """Its victims were told in an earlier cycle and have not left yet: no reason to tell others."""
        queue, usage = self.held_claims[entry.workload.id]
        self.ledger.add_usage(queue, usage)
        self.claims[entry.workload.id] = (queue, usage)
        hold = self.state.holds[entry.workload.id]
        if hold.rule == PATIENCE:
            self._wait_patiently(entry, hold.victims, hold.until)
            return
        message = (
            f"{entry.proposal.message}. Pending the preemption of {len(hold.victims)} workload(s)"
        )
        entry.wait(
            Requeue.PENDING_PREEMPTION, "hold", "WaitingForPreemptedWorkloads", message, hold.until
        )

    def _preempt(self, entry: Entry) -> None:
        if not self.policy.quota_only and not self._way_for_quota(entry):
            entry.victims = []
            self._wait_without_victims(entry)
            return
        for victim in entry.victims:
            self.victims.add(victim.held)
        self._claim(entry, entry.usage)
        message = entry.proposal.message
        fall = {victim.held.workload.id for victim in entry.victims}
        message += f". Pending the preemption of {len(fall)} workload(s)"
        entry.outcome = Outcome.PREEMPTS
        entry.wait(
            Requeue.PENDING_PREEMPTION,
            "waiting-for-victims",
            "WaitingForPreemptedWorkloads",
            message,
        )


def _own_room(node: QuotaNode, usage: Usage) -> dict[FlavorResource, int]:
    """What is free of a queue's own quota, as far as this asks for it: nothing that others own is kept from them."""
    return {fr: max(0, min(amount, node.quota(fr) - node.used(fr))) for fr, amount in usage.items()}

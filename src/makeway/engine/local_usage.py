"""How much the workloads of each local queue have used, lately more than long ago: who used least goes first.

Two things come in: what each LocalQueue says it had used at some moment (its last sample), and the workloads that hold quota now
or got in since. One number for each local queue comes out, for one moment. Used is a running average of what is in use: after a
half-life, half of the way from the old value to the new one is gone. So it follows from the sample and the time that has passed,
and nothing has to be remembered between two cycles.

Whoever gets in counts at once, by an entry penalty: what it would have added had it been running for one sampling interval. It is
part of the sum until a sample holds it, so that a team that submits a hundred jobs does not get all of them in before the first is
measured. docs/explanation/taking-turns.md tells it for people.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from makeway.engine import policy
from makeway.engine.ledger import usage_of
from makeway.engine.quota import Usage
from makeway.model.queue import LocalQueue, QueueName
from makeway.model.resources import Amounts, in_units
from makeway.model.workload import Workload, WorkloadId


class _Use(NamedTuple):
    """A workload's part in what its local queue uses."""

    door: str
    running: Amounts  # by resource; empty before it is admitted, and when it is over
    asked: Amounts
    admitted_at: float | None
    over: bool

    def counts_as_entry(self, sampled_at: float | None) -> bool:
        """No sample holds it yet. Samples are of whole seconds, as the API writes them: they hold who came before theirs."""
        if self.admitted_at is None:
            return True
        if sampled_at is None:
            return not self.over
        return math.floor(self.admitted_at) >= sampled_at


class LocalUsage:
    """Who uses what, by local queue; only of queues that ask for it. Kept up to date as workloads come, change and go."""

    def __init__(self) -> None:
        self.queues: set[QueueName] = set()
        self._sampled_at: dict[str, float] = {}
        self._door_of: dict[WorkloadId, str] = {}
        self._uses: dict[str, dict[WorkloadId, _Use]] = {}
        self._running: dict[str, dict[str, int]] = {}
        self._entries: dict[str, dict[WorkloadId, _Use]] = {}

    def running(self, door: str) -> Amounts:
        return self._running.get(door, {})

    def entries(self, door: str) -> dict[WorkloadId, _Use]:
        """Those who got in and are in no sample yet."""
        return self._entries.get(door, {})

    def note(self, workload: Workload) -> None:
        self.forget(workload.id)
        use = self._use_of(workload)
        if use is None:
            return
        self._door_of[workload.id] = use.door
        self._uses.setdefault(use.door, {})[workload.id] = use
        _add(self._running.setdefault(use.door, {}), use.running, 1)
        if use.counts_as_entry(self._sampled_at.get(use.door)):
            self._entries.setdefault(use.door, {})[workload.id] = use

    def _use_of(self, workload: Workload) -> _Use | None:
        admission = workload.admission
        if admission is None or admission.queue not in self.queues:
            return None
        over = workload.finished or not workload.active
        if over and not admission.admitted:
            return None
        runs = admission.admitted and not over
        asked: dict[str, int] = {}
        for assignment in admission.assignments:
            _add(asked, dict(assignment.usage), 1)
        return _Use(
            door=workload.door,
            running=_by_resource(usage_of(workload, admission)) if runs else {},
            asked=asked,
            admitted_at=_admitted_at(workload),
            over=over,
        )

    def forget(self, workload: WorkloadId) -> None:
        door = self._door_of.pop(workload, None)
        if door is None:
            return
        use = self._uses[door].pop(workload)
        _add(self._running[door], use.running, -1)
        self._entries.get(door, {}).pop(workload, None)
        if not self._uses[door]:
            del self._uses[door], self._running[door]
            self._entries.pop(door, None)

    def note_sample(self, door: str, sampled_at: float | None) -> None:
        """A new sample holds who got in before it."""
        if sampled_at is None:
            self._sampled_at.pop(door, None)
        else:
            self._sampled_at[door] = sampled_at
        entries = {
            key: use
            for key, use in self._uses.get(door, {}).items()
            if use.counts_as_entry(sampled_at)
        }
        self._entries.pop(door, None)
        if entries:
            self._entries[door] = entries


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What a LocalQueue's status is to say."""

    consumed: tuple[tuple[str, float], ...]
    at: float
    since: float | None  # the sample it goes on from; where another stands by now, it is void
    weighted: float  # what it counts for where local queues are compared


class UsageAt:
    """What each local queue counts as having used at one moment; within a cycle, with what the cycle has given out so far."""

    def __init__(self, usage: LocalUsage, doors: Mapping[str, LocalQueue]) -> None:
        self._usage = usage
        self._doors = doors
        self._rule: policy.UsageOrder | None = None
        self._weights: dict[str, float] = {}
        self._now = 0.0
        self._known: dict[str, float] = {}
        self._given: dict[str, dict[WorkloadId, Amounts]] = {}

    def look(self, rule: policy.UsageOrder | None, now: float) -> None:
        """From here on, as of `now`."""
        self._rule, self._now = rule, now
        self._weights = dict(rule.weights) if rule is not None else {}
        self.forget_given()

    # -- asking --------------------------------------------------------------------------------------------------

    def applies_to(self, queue: str) -> bool:
        return self._rule is not None and queue in self._usage.queues

    def of(self, door: str) -> float:
        """Small goes first."""
        known = self._known.get(door)
        if known is None:
            known = self._known[door] = self._weighted(door, self._used(door))
        return known

    def why_after(self, workload: Workload, other: Workload) -> str:
        """As a sentence, where what their local queues used puts it behind the other one; "" where it does not."""
        mine, theirs = self.of(workload.door), self.of(other.door)
        if mine <= theirs:
            return ""
        if mine == math.inf:
            return (
                f"LocalQueue {workload.door} has weight 0 and comes after LocalQueue {other.door}"
            )
        return (
            f"LocalQueue {workload.door} has used {_shown(mine)} and LocalQueue {other.door}"
            f" {_shown(theirs)} (weighted, lately): who used less goes first"
        )

    def _used(self, door: str) -> dict[str, float]:
        used = self._consumed(door, self._now)
        asked = [use.asked for use in self._usage.entries(door).values()]
        given = [a for key, a in self._given.get(door, {}).items() if not self._is_entry(door, key)]
        self._penalize(used, [*asked, *given])
        return used

    def _is_entry(self, door: str, workload: WorkloadId) -> bool:
        return workload in self._usage.entries(door)

    def _consumed(self, door: str, at: float) -> dict[str, float]:
        """The last sample, moved on: what it said fades, and what is in use now takes its place."""
        found = self._doors.get(door)
        if self._rule is None or found is None:
            return {}
        names = [name for name, _ in found.consumed]
        if found.sampled_at is None or not self._rule.half_life_s:
            return dict.fromkeys(names, 0.0)
        moved = _part(max(0.0, at - found.sampled_at), self._rule.half_life_s)
        used = {name: amount * (1.0 - moved) for name, amount in found.consumed}
        for name, amount in self._usage.running(door).items():
            used[name] = used.get(name, 0.0) + in_units(name, amount) * moved
        return used

    def _penalize(self, used: dict[str, float], entries: list[Amounts]) -> None:
        """Amounts are added up as whole numbers first: the sum does not depend on the order they come in."""
        if self._rule is None or not self._rule.half_life_s:
            return
        total: dict[str, int] = {}
        for asked in entries:
            _add(total, asked, 1)
        penalty = _part(self._rule.sampling_s, self._rule.half_life_s)
        for name, amount in total.items():
            used[name] = used.get(name, 0.0) + in_units(name, amount) * penalty

    def _weighted(self, door: str, used: Mapping[str, float]) -> float:
        found = self._doors.get(door)
        if found is None or found.weight <= 0:
            return math.inf
        return (
            sum(self._weights.get(name, 1.0) * used[name] for name in sorted(used)) / found.weight
        )

    # -- within a cycle ------------------------------------------------------------------------------------------

    def give(self, workload: Workload, usage: Usage) -> None:
        """It gets in, or is promised room: the next of its local queue stands further back."""
        if self._rule is not None:
            self._given.setdefault(workload.door, {})[workload.id] = _by_resource(usage)
            self._known.pop(workload.door, None)

    def take_back(self, workload: Workload) -> None:
        if self._given.get(workload.door, {}).pop(workload.id, None) is not None:
            self._known.pop(workload.door, None)

    def forget_given(self) -> None:
        self._given.clear()
        self._known.clear()

    # -- samples -------------------------------------------------------------------------------------------------

    def due(self) -> Iterator[tuple[str, Sample]]:
        """What is to be written now: an interval has passed, or somebody got in whom no sample holds."""
        for door, due_at in self._due_times():
            if due_at <= self._now:
                yield door, self._sample(door)

    def next_due_at(self) -> float | None:
        """When time alone makes the next one due."""
        return min((at for _, at in self._due_times() if at > self._now), default=None)

    def _due_times(self) -> Iterator[tuple[str, float]]:
        rule = self._rule
        if rule is None:
            return
        for door, found in self._doors.items():
            if found.queue not in self._usage.queues:
                continue
            if found.sampled_at is None:
                yield door, -math.inf
                continue
            entered = [
                math.floor(use.admitted_at) + 1.0
                for use in self._usage.entries(door).values()
                if use.admitted_at is not None
            ]
            yield door, min([found.sampled_at + max(1.0, rule.sampling_s), *entered])

    def _sample(self, door: str) -> Sample:
        at = float(math.floor(self._now))
        used = self._consumed(door, at)
        settled = [
            use.asked
            for use in self._usage.entries(door).values()
            if use.admitted_at is not None and math.floor(use.admitted_at) < at
        ]
        self._penalize(used, settled)
        return Sample(
            consumed=tuple(sorted(used.items())),
            at=at,
            since=self._doors[door].sampled_at,
            weighted=self.of(door),
        )


def _part(seconds: float, half_life_s: float) -> float:
    """How much of the way is gone after so long: half of it after a half-life."""
    return float(1.0 - 0.5 ** (seconds / half_life_s))


def _shown(used: float) -> str:
    """Bytes make long numbers, and long half-lives short ones."""
    return f"{used:,.0f}" if used >= 1000 else f"{used:.6g}"


def _admitted_at(workload: Workload) -> float | None:
    admission = workload.admission
    if admission is None or not admission.admitted:
        return None
    return admission.reserved_at if admission.admitted_at is None else admission.admitted_at


def _by_resource(usage: Usage) -> dict[str, int]:
    total: dict[str, int] = {}
    for (_, resource), amount in usage.items():
        total[resource] = total.get(resource, 0) + amount
    return total


def _add(total: dict[str, int], amounts: Amounts, sign: int) -> None:
    for name, amount in amounts.items():
        left = total.get(name, 0) + sign * amount
        if left:
            total[name] = left
        else:
            total.pop(name, None)

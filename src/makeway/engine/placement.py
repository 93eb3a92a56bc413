"""Which nodes: first filter, then score; whole pod sets at a time.

How many pods of a shape fit on each node is one array expression, kept up to date for the rows that changed since. A gang is
whole or absent: `place` returns a placement for every pod asked for, or what was missing. Ties end at the node's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from makeway.engine.filters import depends_on_neighbours, neighbour_mask, site_verdict
from makeway.engine.fragmentation import Mix
from makeway.engine.nodes import Mask, NodeTable, Rows
from makeway.model.queue import Flavor
from makeway.model.selectors import untolerated
from makeway.model.workload import Placed, Pod, PodShape, TopologyRequest

_MANY = 1 << 30
_MOST_VIEWS = 512
_MOST_FILL = 128  # a node takes no more of one shape in one go for the purpose of ranking
_NEVER = int(np.iinfo(np.int64).max)
_FEW = 4


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """`count` pods of one shape that must all be placed."""

    pod_set: str
    shape: PodShape
    count: int
    topology: TopologyRequest | None = None
    near: str = ""  # who asks for a topology under the same name is in one domain


class Shortfall(msgspec.Struct, frozen=True, kw_only=True):
    """The first demand that could not be met, and how many of its pods could."""

    demand: Demand
    placed: int


def with_flavors(shape: PodShape, flavors: Sequence[Flavor]) -> PodShape:
    """The shape as its pods will run: the flavors' node labels as selector, their tolerations added."""
    if not any(flavor.node_labels or flavor.tolerations for flavor in flavors):
        return shape
    selector = dict(shape.node_selector)
    tolerations = list(shape.tolerations)
    for flavor in flavors:
        selector |= flavor.node_labels
        tolerations += [t for t in flavor.tolerations if t not in tolerations]
    return msgspec.structs.replace(
        shape, node_selector=tuple(sorted(selector.items())), tolerations=tuple(tolerations)
    )


class Ranking:
    """Nodes in order of preference for one shape and number of pods; `made_for` says what it depends on besides room."""

    def __init__(self, made_for: tuple[Mix, int, int, bool], keys: Rows) -> None:
        self.made_for = made_for
        self.keys = keys
        self.position = 0


class View:
    """For one shape: the rows it may use, and how many of it fit there now."""

    def __init__(self, table: NodeTable, shape: PodShape) -> None:
        self.table = table
        self.shape = shape
        self.layout = self.epoch = self.position = -1
        self.suits: Mask = np.zeros(0, np.bool_)
        self.counts: Rows = np.zeros(0, np.int64)
        self.soft: Rows = np.zeros(0, np.int64)
        self.rankings: dict[int, Ranking] = {}
        self.refresh()

    def refresh(self) -> None:
        table = self.table
        if self.layout != table.layout or len(self.suits) != len(table.live):
            self._look_at_sites()
            self.epoch = -1
        if self.epoch != table.epoch:
            self.need = table.need(self.shape)
            self.counts = np.zeros(len(table.live), np.int64)
            self._count(np.flatnonzero(self.suits))
            self.epoch = table.epoch
        elif self.position != len(table.touched):
            self._count(table.rows_touched_since(self.position))
        self.position = len(table.touched)

    def _look_at_sites(self) -> None:
        table = self.table
        self.suits = np.zeros(len(table.live), np.bool_)
        self.soft = np.zeros(len(table.live), np.int64)
        plain = not (
            self.shape.node_name
            or self.shape.node_selector
            or self.shape.required_terms is not None
            or self.shape.volume_terms
            or self.shape.late_volume_terms
        )
        for row, node in enumerate(table.nodes):
            if node is None or self.shape.blocked:
                continue
            if plain and not node.taints and not node.unschedulable:
                self.suits[row] = True
            else:
                self.suits[row] = not site_verdict(self.shape, node)
            if self.shape.preferred_terms or node.taints:
                self.soft[row] = _dislike(self.shape, table, row)
        self.layout = table.layout

    def _count(self, rows: Rows) -> None:
        asked = np.flatnonzero(self.need)
        free = self.table.free[rows][:, asked]
        fits = (free // self.need[asked]).min(axis=1)
        self.counts[rows] = np.where(self.suits[rows], np.maximum(fits, 0), 0)


def _dislike(shape: PodShape, table: NodeTable, row: int) -> int:
    """Soft rules, small is good: preferred terms met, and taints that would rather not have it."""
    node = table.nodes[row]
    assert node is not None
    liked = sum(p.weight for p in shape.preferred_terms if p.term.matches(node.name, node.labels))
    shunned = 100 if untolerated(node.taints, shape.tolerations, ("PreferNoSchedule",)) else 0
    return shunned - liked


class Placer:
    """Places demands on a table. Keeps views of shapes between calls; they follow the table by themselves."""

    def __init__(self, table: NodeTable, *, spread: bool = False) -> None:
        self.table = table
        self.mix = Mix()
        self.spread = spread
        self._views: dict[PodShape, View] = {}

    def view(self, shape: PodShape) -> View:
        view = self._views.get(shape)
        if view is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.pop(next(iter(self._views)))
            view = self._views[shape] = View(self.table, shape)
        else:
            view.refresh()
        return view

    def place(
        self, demands: Sequence[Demand], within: Mask | None = None
    ) -> tuple[Placed, ...] | Shortfall:
        """Room for every pod of every demand, or the first shortfall. Leaves the table as it was."""
        with self.table.what_if():
            return self._place_all(demands, within)

    def _place_neighbours(
        self, demands: Sequence[Demand], request: TopologyRequest, within: Mask | None
    ) -> tuple[Placed, ...] | Shortfall:
        """Several that want to be near each other: one domain for all of them."""
        free = [msgspec.structs.replace(demand, topology=None) for demand in demands]
        codes, values = self.table.codes(request.level)
        best: Shortfall | None = None
        for domain in self._fullest_first(free, codes, values):
            inside = codes == domain
            with self.table.what_if():
                result = self._place_all(free, inside if within is None else within & inside)
            if not isinstance(result, Shortfall):
                return result
            best = _better(best, result)
        if not request.required:
            return self.place(free, within)
        return best or Shortfall(demand=demands[0], placed=0)

    def _fullest_first(
        self, demands: Sequence[Demand], codes: Rows, values: dict[str, int]
    ) -> list[int]:
        """Domains by how little room they have for the largest demand: what is nearly full is used up first."""
        largest = max(demands, key=self._size)
        counts = np.minimum(self.view(largest.shape).counts, _MANY)
        room = np.bincount(codes[codes >= 0], weights=counts[codes >= 0], minlength=len(values))
        return sorted(range(len(values)), key=lambda d: (room[d], _name_of(values, d)))

    def _place_all(
        self, demands: Sequence[Demand], within: Mask | None
    ) -> tuple[Placed, ...] | Shortfall:
        if len(demands) == 1:
            alone = self._place_one(demands[0], within)
            return alone if isinstance(alone, Shortfall) else _in_order(alone)
        needs = {demand.pod_set: self.table.need(demand.shape) for demand in demands}
        placed: list[Placed] = []
        for together in self._largest_first(demands):
            first = together[0]
            result: Sequence[Placed] | Shortfall
            if len(together) > 1 and first.topology is not None:
                result = self._place_neighbours(together, first.topology, within)
            else:
                result = self._place_one(first, within)
            if isinstance(result, Shortfall):
                return result
            placed += result
            for item in result:
                self.table.take(self.table.row_of[item.node], needs[item.pod_set] * item.count)
        return _in_order(placed)

    def _largest_first(self, demands: Sequence[Demand]) -> list[list[Demand]]:
        """Who must be together, together. Large pods first: small ones fit into what is left, rarely the other way round."""
        units: dict[object, list[Demand]] = {}
        for i, demand in enumerate(demands):
            key = i if demand.topology is None else (demand.near, demand.topology)
            units.setdefault(key, []).append(demand)
        return sorted(units.values(), key=lambda unit: -max(self._size(d) for d in unit))

    def _size(self, demand: Demand) -> int:
        """How hard one pod is to place: the share of the largest node it takes, in thousandths."""
        need = self.table.need(demand.shape)
        most = self.table.alloc.max(axis=0, initial=1)
        return int((need * 1000 // np.maximum(most, 1)).max())

    def _place_one(self, demand: Demand, within: Mask | None) -> list[Placed] | Shortfall:
        if demand.topology is not None:
            return self._place_near(demand, demand.topology, within)
        if depends_on_neighbours(self.table, demand.shape):
            return self._one_by_one(demand, within)
        return self._together(demand, within)

    def _together(self, demand: Demand, within: Mask | None) -> list[Placed] | Shortfall:
        view = self.view(demand.shape)
        counts, left = view.counts, demand.count
        if not counts.any():
            return Shortfall(demand=demand, placed=0)
        keys = self._ranking(view, min(left, _MOST_FILL))
        if within is not None:
            counts = np.where(within, counts, 0)
            keys = np.where(within, keys, _NEVER)
        best = int(keys.argmin())
        if counts[best] >= left:
            return [self._at(demand, best, left)]
        total = int(np.minimum(counts, left).sum())
        if total < left:
            return Shortfall(demand=demand, placed=total)
        placed: list[Placed] = []
        for row in np.argsort(keys).tolist():
            here = min(int(counts[row]), left)
            placed.append(self._at(demand, row, here))
            left -= here
            if not left:
                break
        return placed

    def _at(self, demand: Demand, row: int, count: int) -> Placed:
        node = self.table.nodes[row]
        assert node is not None
        return Placed(pod_set=demand.pod_set, node=node.name, count=count)

    # --- scores ---

    def _ranking(self, view: View, pods: int) -> Rows:
        """One number a row, smallest is best, for putting up to `pods` pods there; kept for the rows that did not change."""
        table = self.table
        ranking = view.rankings.get(pods)
        if ranking is None or ranking.made_for != (
            self.mix,
            table.layout,
            table.epoch,
            self.spread,
        ):
            keys = np.full(len(table.live), _NEVER, np.int64)
            rows = np.flatnonzero(view.counts)
            ranking = view.rankings[pods] = Ranking(
                (self.mix, table.layout, table.epoch, self.spread), keys
            )
        else:
            rows = table.rows_touched_since(ranking.position)
        if 0 < len(rows) <= _FEW:
            for row in rows.tolist():
                count = int(view.counts[row])
                ranking.keys[row] = self._key(view, row, min(count, pods)) if count else _NEVER
        elif len(rows):
            counts = view.counts[rows]
            ranking.keys[rows] = np.where(
                counts > 0, self._keys(view, rows, np.clip(counts, 1, pods)), _NEVER
            )
        ranking.position = len(table.touched)
        return ranking.keys

    def _keys(self, view: View, rows: Rows, fill: Rows) -> Rows:
        """Soft rules, then fragmentation added, then what stays free, then the name: in one number."""
        table = self.table
        free = table.free[rows]
        after = free - view.need[None, : free.shape[1]] * fill[:, None]
        added = np.zeros(len(rows), np.int64)
        if self.mix.shares:
            before = self.mix.fragmentation(table, free)
            added = self.mix.fragmentation(table, after) - before
        left = self._left(view, rows, after)
        if self.spread:
            left = 1023 - left
        soft = np.clip(view.soft[rows] + 512, 0, 1023)
        added = np.clip(added // np.maximum(fill, 1) + (1 << 19), 0, (1 << 20) - 1)
        return ((soft << 20 | added) << 10 | left) << 20 | table.rank[rows]

    def _key(self, view: View, row: int, fill: int) -> int:
        """The same as `_keys` for one row; after most placements few rows changed, and arrays would cost more than they save."""
        table = self.table
        free = table.free[row].tolist()
        after = [have - need * fill for have, need in zip(free, view.need.tolist(), strict=False)]
        added = 0
        if self.mix.shares:
            added = self.mix.fragmentation_of(table, after) - self.mix.fragmentation_of(table, free)
        left = self._left_of(view, row, after)
        if self.spread:
            left = 1023 - left
        soft = min(max(int(view.soft[row]) + 512, 0), 1023)
        added = min(max(added // max(fill, 1) + (1 << 19), 0), (1 << 20) - 1)
        return ((soft << 20 | added) << 10 | left) << 20 | int(table.rank[row])

    def _left_of(self, view: View, row: int, after: list[int]) -> int:
        table = self.table
        alloc = table.alloc[row].tolist()
        devices = table.devices
        asked = self._asked(view)
        left: int = max(after[c] * 511 // max(alloc[c], 1) for c in asked)
        left = min(max(left, 0), 511)
        if (
            devices
            and not any(view.need[c] for c in devices)
            and sum(alloc[c] for c in devices) > 0
        ):
            left += 512
        return left

    def _asked(self, view: View) -> list[int]:
        """The columns whose rest counts: devices if it asks for any, else CPU and memory, else pod slots."""
        columns = self.table.columns
        asked = [c for c in self.table.devices if view.need[c]]
        asked = asked or [
            columns[r] for r in ("cpu", "memory") if r in columns and view.need[columns[r]]
        ]
        return asked or [0]

    def _left(self, view: View, rows: Rows, after: Rows) -> Rows:
        """What stays free of the scarcest asked-for resource, in thousandths; nodes with idle devices last for CPU work."""
        table = self.table
        devices = table.devices
        asked = self._asked(view)
        alloc = np.maximum(table.alloc[rows][:, asked], 1)
        left: Rows = np.clip((after[:, asked] * 511 // alloc).max(axis=1), 0, 511)
        if devices and not any(view.need[c] for c in devices):
            left += np.where(table.alloc[rows][:, devices].sum(axis=1) > 0, 512, 0)
        return left

    # --- rules about other pods, and about nearness ---

    def _one_by_one(self, demand: Demand, within: Mask | None) -> list[Placed] | Shortfall:
        """Each pod changes what the next may use, so they go one after the other."""
        placed: dict[int, int] = {}
        with self.table.what_if():
            for i in range(demand.count):
                view = self.view(demand.shape)
                counts = view.counts if within is None else np.where(within, view.counts, 0)
                allowed = neighbour_mask(self.table, demand.shape)
                if allowed is not None:
                    counts = np.where(allowed, counts, 0)
                if not (counts > 0).any():
                    return Shortfall(demand=demand, placed=i)
                row = int(np.where(counts > 0, self._ranking(view, 1), _NEVER).argmin())
                placed[row] = placed.get(row, 0) + 1
                node = self.table.nodes[row]
                assert node is not None
                stand_in = Pod(
                    id=f"{demand.pod_set}#{i}",  # type: ignore[arg-type]  # never leaves this what-if
                    workload="",  # type: ignore[arg-type]
                    shape=demand.shape,
                    node=node.name,
                )
                self.table.put(stand_in, row)
        return [self._at(demand, row, count) for row, count in placed.items()]

    def _place_near(
        self, demand: Demand, request: TopologyRequest, within: Mask | None
    ) -> list[Placed] | Shortfall:
        """Inside one domain of the level: the one that stays fullest, else (if only preferred) anywhere."""
        plain = msgspec.structs.replace(demand, topology=None)
        view = self.view(demand.shape)
        counts = view.counts if within is None else np.where(within, view.counts, 0)
        codes, values = self.table.codes(request.level)
        room = np.bincount(
            codes[codes >= 0], weights=np.minimum(counts, _MANY)[codes >= 0], minlength=len(values)
        )
        best: Shortfall | None = None
        for domain in sorted(range(len(values)), key=lambda d: (room[d], _name_of(values, d))):
            if room[domain] < demand.count:
                best = _better(best, Shortfall(demand=demand, placed=int(room[domain])))
                continue
            inside = codes == domain
            result = self._place_one(plain, inside if within is None else within & inside)
            if not isinstance(result, Shortfall):
                return result
            best = _better(best, msgspec.structs.replace(result, demand=demand))
        if not request.required:
            return self._place_one(plain, within)
        return best or Shortfall(demand=demand, placed=0)


def _in_order(placed: Iterable[Placed]) -> tuple[Placed, ...]:
    return tuple(sorted(placed, key=lambda p: (p.pod_set, p.node)))


def _name_of(values: dict[str, int], code: int) -> str:
    return next(name for name, value in values.items() if value == code)


def _better(first: Shortfall | None, second: Shortfall) -> Shortfall:
    return second if first is None or second.placed > first.placed else first

"""When each owner's work was evicted, read from the Preemption objects and kept up to date one object at a time.

Protection against repeated losses asks for it in every cycle, and there may be many thousand records of the last week.
"""

from __future__ import annotations

from makeway.kinds.metadata import Object
from makeway.kinds.preemption import losses
from makeway.kube.copy import LocalCopy


class History:
    def __init__(self, copy: LocalCopy) -> None:
        self.times: dict[str, tuple[float, ...]] = {}  # by owner, oldest first
        copy.listen(self._note)

    def _note(self, kind: str, _key: str, before: Object | None, after: Object | None) -> None:
        if kind != "Preemption":
            return
        was = losses(before) if before is not None else []
        now = losses(after) if after is not None else []
        if was == now:
            return
        for owner, at in was:
            self._forget(owner, at)
        for owner, at in now:
            self.times[owner] = tuple(sorted((*self.times.get(owner, ()), at)))

    def _forget(self, owner: str, at: float) -> None:
        left = list(self.times.get(owner, ()))
        if at in left:
            left.remove(at)
        if left:
            self.times[owner] = tuple(left)
        else:
            self.times.pop(owner, None)

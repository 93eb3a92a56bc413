"""What is remembered of each owner's evictions, read from the Preemption objects and kept up to date one object at a time.

Protection against repeated losses asks for it in every cycle, and there may be many thousand records of the last week.
"""

from __future__ import annotations

from makeway.kinds.metadata import Object
from makeway.kinds.preemption import Loss, losses
from makeway.kube.copy import LocalCopy
from makeway.model.history import Past


class History:
    def __init__(self, copy: LocalCopy) -> None:
        self.past: dict[str, Past] = {}  # by owner
        self._losses: dict[str, list[Loss]] = {}
        copy.listen(self._note)

    def _note(self, kind: str, _key: str, before: Object | None, after: Object | None) -> None:
        if kind != "Preemption":
            return
        was = losses(before) if before is not None else []
        now = losses(after) if after is not None else []
        if was == now:
            return
        for loss in was:
            self._losses[loss.owner].remove(loss)
        for loss in now:
            self._losses.setdefault(loss.owner, []).append(loss)
        for owner in dict.fromkeys(loss.owner for loss in (*was, *now)):
            self._sum_up(owner)

    def _sum_up(self, owner: str) -> None:
        found = self._losses[owner]
        if not found:
            del self._losses[owner]
            self.past.pop(owner, None)
            return
        saves = [loss.save_s for loss in found if loss.save_s is not None]
        self.past[owner] = Past(
            evictions=tuple(sorted((loss.eviction for loss in found), key=lambda e: (e.at, e.by))),
            save_s=max(saves, default=None),
        )

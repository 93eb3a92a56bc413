"""Time to save: a pod that saves its work on SIGTERM gets a grace that is long enough for it.

The pods of a suspended Job are deleted by its controller, with the grace in their spec; so it has to be there from the start.
"""

from __future__ import annotations

from typing import Final

from makeway.kinds.durations import read_duration
from makeway.kinds.promises import CHECKPOINT_ON_TERM
from makeway.kinds.serving.refusal import Obj

SPARE_S: Final = 5
# Longest time that a pod may ask for: the default of `maxNotice`.
LONGEST_NOTICE_S: Final = 600
USUAL_GRACE_S: Final = 30


def give_notice(pod: Obj) -> None:
    said = (pod["metadata"].get("annotations") or {}).get(CHECKPOINT_ON_TERM)
    try:
        needed = min(int(read_duration(said)) + SPARE_S, LONGEST_NOTICE_S) if said else 0
    except ValueError:
        return
    spec = pod["spec"]
    if needed > spec.get("terminationGracePeriodSeconds", USUAL_GRACE_S):
        spec["terminationGracePeriodSeconds"] = needed

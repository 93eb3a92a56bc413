"""Time to save: a pod that saves its work on SIGTERM gets a grace that is long enough for it.

The pods of a suspended Job are deleted by its controller, with the grace in their spec; so it has to be there from the start.
"""

from __future__ import annotations

from typing import Final

from makeway.kinds.pod import notice_s
from makeway.kinds.serving.refusal import Obj

# Longest time that a pod may ask for: the default of `maxNotice`.
LONGEST_NOTICE_S: Final = 600


def give_notice(pod: Obj) -> None:
    needed = notice_s(pod, LONGEST_NOTICE_S)
    if needed is not None:
        pod["spec"]["terminationGracePeriodSeconds"] = needed

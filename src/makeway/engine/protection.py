"""Who is left in peace for a while: exemption labels, minimum runtime, and peace after repeated losses.

Protections are granted by administrators: what a workload asks for counts up to its queue's maximum, and nothing outlasts an
hour a start. Who was evicted twice within a day is left alone for five minutes, doubling with each further loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from makeway.engine.policy import Policy
from makeway.model.workload import Pod, Workload

DAY_S = 86_400.0
LONGEST_S = 3_600.0
_FIRST_PEACE_S = 300.0
_LOSSES_BEFORE_PEACE = 2


def protection_of(
    workload: Workload,
    pods: Sequence[Pod],
    now: float,
    policy: Policy,
    history: Mapping[str, tuple[float, ...]],
) -> tuple[str, float | None]:
    """Why it is safe ("" if it is not), and until when if that ends by itself."""
    if workload.protected:
        return workload.protected, None
    key = workload.owner_uid or workload.uid
    if not workload.checkpoint.min_runtime_s and key not in history:
        return "", None
    started = max((pod.started_at for pod in pods if pod.started_at is not None), default=None)
    granted = min(workload.checkpoint.min_runtime_s, policy.max_protection_s, LONGEST_S)
    if granted and started is not None and now < started + granted:
        return f"runs for less than its minimum of {granted:.0f} s", started + granted
    losses = [t for t in history.get(key, ()) if now - DAY_S < t <= now]
    if len(losses) >= _LOSSES_BEFORE_PEACE and started is not None:
        peace = min(_FIRST_PEACE_S * 2 ** (len(losses) - _LOSSES_BEFORE_PEACE), LONGEST_S)
        if now < started + peace:
            return (
                f"was evicted {len(losses)} times within 24 h and has peace for {peace:.0f} s",
                started + peace,
            )
    return "", None

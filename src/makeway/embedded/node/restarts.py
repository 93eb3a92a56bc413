"""Whether a container that ended is started again, and how long that waits."""

from __future__ import annotations

from makeway.client.resource import Object
from makeway.embedded.podstatus import Terminated

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 10.0, 300.0
# A container that ran this long is no crash loop: its next back-off starts from the beginning.
FORGIVEN_AFTER_S = 600.0


def is_sidecar(container: Object) -> bool:
    return container.get("restartPolicy") == "Always"


def restarts(container: Object, policy: str, exit_code: int, *, starts_first: bool) -> bool:
    """`starts_first`: it is an init container."""
    if is_sidecar(container):
        return True
    if starts_first:
        # An init container that succeeded is done, whatever the policy.
        return exit_code != 0 and policy != "Never"
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


class Backoff:
    """How often each container of a pod has ended: the first restart is at once, the others wait ever longer."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}

    def pause_before_restart(self, name: str, ended: Terminated | None) -> float:
        if ended and ended.finished_at - ended.started_at >= FORGIVEN_AFTER_S:
            self.failures[name] = 0
        failures = self.failures.get(name, 0)
        self.failures[name] = failures + 1
        if not failures:
            return 0.0
        doubled: float = FIRST_BACKOFF_S * 2 ** min(failures - 1, 10)
        return min(LONGEST_BACKOFF_S, doubled)

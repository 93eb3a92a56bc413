"""What owners say about saving and restarting: the `makeway.dev/*` annotations, read into a Checkpoint.

Annotations may stand on the job, on its Workload or on its pods; the first place that says something wins. A value that
nobody can read counts as not said: it must not make a workload cheaper or dearer than its owner meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from makeway.control.durations import duration
from makeway.kinds.metadata import Json, annotations_of, integer, seconds
from makeway.model.workload import Checkpoint

PREFIX: Final = "makeway.dev/"
CHECKPOINT_EVERY: Final = PREFIX + "checkpoint-every"
CHECKPOINT_ON_TERM: Final = PREFIX + "checkpoint-on-term"
LAST_CHECKPOINT: Final = PREFIX + "last-checkpoint"
RESTART_TAKES: Final = PREFIX + "restart-takes"
EXPECTED_RUNTIME: Final = PREFIX + "expected-runtime"
PATIENCE: Final = PREFIX + "patience"
MIN_RUNTIME: Final = PREFIX + "min-runtime"
MIN_PODS: Final = PREFIX + "min-pods"
PLACEMENT: Final = PREFIX + "placement"
EXTERNAL: Final = "external"


def checkpoint(*places: Mapping[str, str]) -> Checkpoint:
    """What the first of these annotation maps that speaks of each subject says."""

    def said(key: str) -> str | None:
        return next((place[key] for place in places if key in place), None)

    def length(key: str) -> float | None:
        return duration(said(key))

    restart = length(RESTART_TAKES)
    return Checkpoint(
        every_s=length(CHECKPOINT_EVERY),
        on_term_s=length(CHECKPOINT_ON_TERM),
        last_at=seconds(said(LAST_CHECKPOINT)),
        restart_s=60.0 if restart is None else restart,
        expected_runtime_s=length(EXPECTED_RUNTIME),
        patience_s=length(PATIENCE) or 0.0,
        min_runtime_s=length(MIN_RUNTIME) or 0.0,
    )


def last_checkpoint(obj: Json) -> float:
    """When it says that it last saved; 0 where it never did, or nobody can read when."""
    return seconds(annotations_of(obj).get(LAST_CHECKPOINT)) or 0.0


def min_pods(*places: Mapping[str, str]) -> int | None:
    """How many pods are enough to start, where the owner says so."""
    for place in places:
        number = integer(place.get(MIN_PODS, ""))
        if number is not None and number >= 1:
            return number
    return None


def placed_by_others(*label_maps: Mapping[str, str]) -> bool:
    """Quota here, nodes elsewhere: the label on the job or its namespace."""
    return any(labels.get(PLACEMENT) == EXTERNAL for labels in label_maps)

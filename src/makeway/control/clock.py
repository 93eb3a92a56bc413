"""The one file that reads the real clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SystemClock:
    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()


def timestamp(seconds: float) -> str:
    """RFC 3339 with whole seconds, as the Kubernetes API writes `metav1.Time`."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(seconds: float) -> str:
    """RFC 3339 with exactly six decimals, as the Kubernetes API writes `metav1.MicroTime`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_timestamp(text: str) -> float:
    """The inverse of both, for any RFC 3339 text."""
    return datetime.fromisoformat(text).timestamp()

"""A pod that saves on SIGTERM gets the time for it."""

from __future__ import annotations

import pytest

from makeway.kinds.serving.notice import give_notice
from makeway.kinds.serving.refusal import Obj


@pytest.mark.parametrize(
    ("saves", "own", "grace"),
    [
        ("45s", 30, 50),
        ("45s", None, 50),
        ("45s", 120, 120),
        ("10s", 30, 30),
        ("1h", 30, 600),
        ("soon", 30, 30),
        ("", 30, 30),
    ],
)
def test_the_grace_is_long_enough_to_save_and_never_shortened(
    saves: str, own: int | None, grace: int
) -> None:
    spec: Obj = {} if own is None else {"terminationGracePeriodSeconds": own}
    pod: Obj = {
        "metadata": {"annotations": {"makeway.dev/checkpoint-on-term": saves}},
        "spec": spec,
    }

    give_notice(pod)

    assert pod["spec"]["terminationGracePeriodSeconds"] == grace

"""Label selectors in all their forms."""

from __future__ import annotations

import pytest

from makeway.embedded.api.selectors import parse_labels
from makeway.kinds.serving.refusal import Refusal

LABELS = {"app": "web", "tier": "front", "n": "5"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("app=web", True),
        ("app==web", True),
        ("app = web", True),
        ("app!=web", False),
        ("app=other", False),
        ("gone!=x", True),
        ("app", True),
        ("!app", False),
        ("!gone", True),
        ("app in (web, api)", True),
        ("app in (api)", False),
        ("app notin (api,db)", True),
        ("gone notin (api)", True),
        ("gone in (api)", False),
        ("app=web,tier=front", True),
        ("app in (web,api),tier!=front", False),
        ("n>4", True),
        ("n<5", False),
        ("app>1", False),
        ("app=", False),
    ],
)
def test_selectors(text: str, matches: bool) -> None:
    selector = parse_labels(text)
    assert selector is not None
    assert selector(LABELS) is matches


@pytest.mark.parametrize("text", ["a=b=c", "in (x)", "app in x", "-bad=1", "a=b c", "n>x", "a=(x)"])
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match=r"unable to parse requirement|must be an integer"):
        parse_labels(text)


def test_an_empty_selector_matches_everything() -> None:
    assert parse_labels("") is None

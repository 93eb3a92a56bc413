"""Quantities in the form that the API answers with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.kinds.serving.quantity import NotAQuantityError, canonical, parse

suffixes = st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e3", "u", "n"])
texts = st.builds(lambda n, s: f"{n}{s}", st.integers(-(10**6), 10**6), suffixes)


@pytest.mark.parametrize(
    ("given_", "shown"),
    [
        ("1000m", "1"), ("0.5", "500m"), (0.5, "500m"), (4, "4"), ("2048Mi", "2Gi"), ("1024", "1024"), ("1000", "1k"),
        ("1500m", "1500m"), ("64Gi", "64Gi"), ("1.5Gi", "1536Mi"), ("0", "0"), ("0Gi", "0"), ("100e6", "100e6"),
        ("1e3", "1e3"), ("+1", "1"), ("-1", "-1"), ("0.1Ki", "102400m"), (".5", "500m"), ("1E", "1E"),
        ("1e30", "9223372036854775807"), ("9" * 400, "9223372036854775807"), ("1e999999999", "9223372036854775807"),
        ("1e-30", "1e-9"), ("-1e30", "-9223372036854775807"),
    ],
)  # fmt: skip
def test_canonical(given_: Any, shown: str) -> None:
    assert canonical(given_) == shown


@given(texts)
def test_the_canonical_form_means_the_same_and_is_its_own(text: str) -> None:
    form = canonical(text)
    assert parse(form) == parse(text)
    assert canonical(form) == form


@pytest.mark.parametrize("text", ["", "x", "1x", "1 Gi", "--1", "1.2.3", "Gi", True, None, []])
def test_what_is_no_quantity_is_refused(text: Any) -> None:
    with pytest.raises(NotAQuantityError, match="quantities must match"):
        canonical(text)

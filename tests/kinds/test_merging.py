"""Merge patches, there and back."""

from __future__ import annotations

from makeway.kinds.merging import merge_patch, merged

OLD = {"a": 1, "gone": 2, "deep": {"kept": [1], "changed": "x", "gone": {}}, "list": [1, 2]}
NEW = {"a": 1, "deep": {"kept": [1], "changed": {"y": 1}, "new": 0}, "list": [2]}


def test_a_patch_names_only_what_differs() -> None:
    assert merge_patch(OLD, NEW) == {
        "gone": None,
        "deep": {"gone": None, "changed": {"y": 1}, "new": 0},
        "list": [2],
    }


def test_after_the_patch_the_one_is_the_other() -> None:
    assert merged(OLD, merge_patch(OLD, NEW)) == NEW
    assert merged(OLD, {}) == OLD
    assert merged({}, {"a": {"b": {"c": None}}}) == {"a": {"b": {}}}

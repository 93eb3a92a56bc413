"""Patches as pure functions: the laws of merging, and the directives of strategic merge."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from makeway.embedded.api.patch import merge_patch, strategic_merge
from makeway.kinds.serving.refusal import Refusal
from makeway.kinds.serving.schemas import definitions

POD = "io.k8s.api.core.v1.Pod"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("abc", max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
objects = st.dictionaries(st.text("abc", max_size=3), json_values, max_size=4)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value


def strategic(target: dict[str, Any], patch: dict[str, Any], name: str = POD) -> dict[str, Any]:
    known = definitions()
    return strategic_merge(target, patch, known.get(name), known)


@given(objects, objects)
def test_merging_twice_is_merging_once(target: dict[str, Any], patch: dict[str, Any]) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@given(objects)
def test_merging_into_nothing_gives_the_patch_without_nulls(patch: dict[str, Any]) -> None:
    assert merge_patch({}, patch) == without_nulls(patch)


@given(objects, objects)
def test_merging_does_not_change_its_input(target: dict[str, Any], patch: dict[str, Any]) -> None:
    before = repr((target, patch))
    merge_patch(target, patch)
    assert repr((target, patch)) == before


names = st.sampled_from("abcd")
containers = st.lists(
    st.fixed_dictionaries({"name": names, "image": st.text("abc", max_size=3)}),
    max_size=4,
    unique_by=lambda c: c["name"],
)


@given(containers, containers)
def test_keyed_lists_merge_item_by_item(
    mine: list[dict[str, str]], theirs: list[dict[str, str]]
) -> None:
    merged = strategic({"spec": {"containers": mine}}, {"spec": {"containers": theirs}})
    images = {c["name"]: c["image"] for c in mine} | {c["name"]: c["image"] for c in theirs}
    assert {c["name"]: c["image"] for c in merged["spec"]["containers"]} == images


@given(containers, containers)
def test_strategic_merge_twice_is_once(
    mine: list[dict[str, str]], theirs: list[dict[str, str]]
) -> None:
    patch = {"spec": {"containers": theirs}}
    once = strategic({"spec": {"containers": mine}}, patch)
    assert strategic(once, patch) == once


def test_an_item_is_deleted_by_directive() -> None:
    target = {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}
    patch = {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}
    assert strategic(target, patch)["spec"]["containers"] == [{"name": "b"}]


def test_a_list_is_replaced_by_directive() -> None:
    target = {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}
    patch = {"spec": {"containers": [{"$patch": "replace"}, {"name": "c"}]}}
    assert strategic(target, patch)["spec"]["containers"] == [{"name": "c"}]


def test_a_map_is_replaced_by_directive() -> None:
    target = {"metadata": {"labels": {"a": "1", "b": "2"}}}
    patch = {"metadata": {"labels": {"$patch": "replace", "c": "3"}}}
    assert strategic(target, patch) == {"metadata": {"labels": {"c": "3"}}}


def test_the_order_of_items_is_set() -> None:
    target = {"spec": {"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}}
    patch = {
        "spec": {
            "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
            "containers": [{"name": "c", "image": "x"}],
        }
    }
    assert [c["name"] for c in strategic(target, patch)["spec"]["containers"]] == ["c", "a", "b"]


def test_values_are_deleted_from_a_list_of_words() -> None:
    target = {"metadata": {"finalizers": ["x", "y"]}}
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]}}
    assert strategic(target, patch) == {"metadata": {"finalizers": ["y"]}}


def test_keys_are_retained() -> None:
    target = {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}
    patch = {
        "spec": {
            "volumes": [
                {"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}
            ]
        }
    }
    assert strategic(target, patch)["spec"]["volumes"] == [{"name": "v", "hostPath": {"path": "/"}}]


def test_atomic_lists_are_replaced() -> None:
    target = {"spec": {"tolerations": [{"key": "a"}]}}
    assert strategic(target, {"spec": {"tolerations": [{"key": "b"}]}})["spec"]["tolerations"] == [
        {"key": "b"}
    ]


def test_an_item_without_its_key_is_refused() -> None:
    with pytest.raises(Refusal, match="does not contain declared merge key: name"):
        strategic({"spec": {}}, {"spec": {"containers": [{"image": "x"}]}})

"""The local copy: newer wins, gone stays gone."""

from __future__ import annotations

from typing import Any

from makeway.kube.copy import LocalCopy


def obj(version: int, uid: str = "u", **labels: str) -> dict[str, Any]:
    meta = {
        "name": "a",
        "namespace": "n",
        "uid": uid,
        "resourceVersion": str(version),
        "labels": labels,
    }
    return {"metadata": meta}


def indexed() -> LocalCopy:
    copy = LocalCopy()
    copy.index("by color", "Pod", lambda o: [o["metadata"]["labels"].get("color", "")])
    return copy


def test_an_older_version_changes_nothing() -> None:
    copy = indexed()
    copy.take("Pod", obj(5, color="red"))
    copy.take("Pod", obj(4, color="blue"))
    assert len(copy.by("by color", "red")) == 1
    assert copy.by("by color", "blue") == []


def test_an_index_forgets_what_changed() -> None:
    copy = indexed()
    copy.take("Pod", obj(5, color="red"))
    copy.take("Pod", obj(6, color="blue"))
    assert copy.by("by color", "red") == []
    assert len(copy.by("by color", "blue")) == 1


def test_what_is_gone_does_not_come_back_with_a_late_answer() -> None:
    copy = indexed()
    copy.take("Pod", obj(5))
    copy.drop("Pod", obj(6))
    copy.take("Pod", obj(7))
    assert copy.get("Pod", "n/a") is None


def test_a_successor_of_the_same_name_is_another_object() -> None:
    copy = indexed()
    copy.take("Pod", obj(5, "old"))
    copy.take("Pod", obj(7, "new"))
    copy.drop("Pod", obj(6, "old"))
    found = copy.get("Pod", "n/a")
    assert found is not None
    assert found["metadata"]["uid"] == "new"


def test_an_assumption_lasts_until_something_newer_is_heard() -> None:
    copy = indexed()
    copy.take("Pod", obj(5, color="red"))
    copy.assume("Pod", obj(5, color="blue"))
    assert len(copy.by("by color", "blue")) == 1
    copy.take("Pod", obj(6, color="red"))
    assert len(copy.by("by color", "red")) == 1


def test_listeners_hear_of_each_change_once() -> None:
    copy = indexed()
    heard: list[tuple[bool, bool]] = []
    copy.listen(lambda _kind, _key, before, after: heard.append((before is None, after is None)))
    copy.take("Pod", obj(5))
    copy.take("Pod", obj(5))
    copy.take("Pod", obj(6))
    copy.drop("Pod", obj(6))
    copy.drop("Pod", obj(6))
    assert heard == [(True, False), (False, False), (False, True)]


def test_items_of_a_list_know_what_they_are() -> None:
    """A list of Jobs says it once, for all its items; a Workload's owner reference needs it."""
    copy = LocalCopy()
    copy.take("Job", obj(1))
    (found,) = copy.all("Job")
    assert (found["apiVersion"], found["kind"]) == ("batch/v1", "Job")


def test_it_knows_a_version_that_it_has_or_has_passed() -> None:
    copy = indexed()
    copy.take("Pod", obj(5))
    assert copy.knows("Pod", ("n", "a"), "u", "5")
    assert copy.knows("Pod", ("n", "a"), "u", "4")
    assert not copy.knows("Pod", ("n", "a"), "u", "6")
    assert not copy.knows("Pod", ("n", "a"), "another", "4")
    assert not copy.knows("Pod", ("n", "b"), "u", "4")


def test_an_object_that_stands_for_several_is_kept_as_several() -> None:
    def parts(whole: dict[str, Any]) -> list[dict[str, Any]]:
        meta = whole["metadata"]
        rest = enumerate(whole["spec"]["rest"], 1)
        return [whole, *({"metadata": {**meta, "name": f"a#{n}"}, "spec": s} for n, s in rest)]

    copy, heard = LocalCopy(), []
    copy.divide("Preemption", parts)
    copy.listen(lambda _kind, key, _before, after: heard.append((key, (after or {}).get("spec"))))

    copy.take("Preemption", obj(1) | {"spec": {"rest": ["x", "y"]}})
    assert [key for key, _ in heard] == ["n/a", "n/a#1", "n/a#2"]
    heard.clear()
    copy.take("Preemption", obj(2) | {"spec": {"rest": ["x", "z"]}})
    assert heard == [("n/a", {"rest": ["x", "z"]}), ("n/a#2", "z")]
    copy.drop("Preemption", obj(3))
    assert copy.count("Preemption") == 0

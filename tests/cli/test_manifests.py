"""Files as objects, and what people read when a file is not what it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from makeway.cli.apply import _merged, _removals, in_order
from makeway.cli.manifests import existing_file, parse, read
from makeway.cli.nearby import nearest
from makeway.errors import UserError

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"


def test_many_documents_and_lists_are_all_read() -> None:
    text = f"{POD}---\n---\napiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {{name: b}}\n"

    assert [one.name for one in parse(text, "x.yaml")] == ["a", "b"]


def test_a_mistake_names_the_file_and_the_line() -> None:
    with pytest.raises(UserError, match=r"x\.yaml, line 5: kind is missing"):
        parse(f"{POD}---\napiVersion: v1\n", "x.yaml")


def test_lost_indentation_is_recognized() -> None:
    text = (
        "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata:\nname: high\nvalue: 1\n"
    )

    with pytest.raises(UserError, match="Has the file lost its indentation") as caught:
        parse(text, "x.yaml")

    assert caught.value.where == "x.yaml, line 1"


def test_text_that_is_not_yaml_names_the_place() -> None:
    with pytest.raises(UserError, match="line 1, column"):
        parse("a: [", "x.yaml")


def test_a_task_is_sent_to_launch() -> None:
    with pytest.raises(UserError, match="makeway launch"):
        parse("run: echo hi\n", "x.yaml")


@pytest.mark.parametrize(
    ("said", "also", "expected"),
    [("lwo.yaml", "", "low.yaml"), ("task.yaml", "low", "low.yaml"), ("low", "", "low.yaml")],
)
def test_a_mistyped_file_is_answered_with_the_near_one(
    tmp_path: Path, said: str, also: str, expected: str
) -> None:
    for name in ("low.yaml", "high.yaml", "queues.yaml"):
        (tmp_path / name).write_text(POD)

    with pytest.raises(UserError) as caught:
        existing_file(tmp_path / said, also)

    assert caught.value.hint == f'Did you mean "{tmp_path / expected}"?'


def test_without_a_near_one_the_files_that_exist_are_listed(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yaml"):
        (tmp_path / name).write_text(POD)

    with pytest.raises(UserError, match=r"In that folder: a\.yaml, b\.yaml"):
        existing_file(tmp_path / "quite-different.yaml")


def test_a_folder_means_its_yaml_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POD)
    (tmp_path / "README.md").write_text("# not an object")

    assert [one.name for one in read([str(tmp_path)])] == ["a"]


def test_what_others_need_comes_first() -> None:
    kinds = ["Job", "LocalQueue", "ClusterQueue", "Namespace", "ConfigMap"]
    text = "---\n".join(f"apiVersion: v1\nkind: {k}\nmetadata: {{name: x}}\n" for k in kinds)

    ordered = [one.obj["kind"] for one in in_order(parse(text, "x"))]

    assert ordered == ["Namespace", "ClusterQueue", "LocalQueue", "ConfigMap", "Job"]


def test_a_field_that_left_the_file_leaves_the_object() -> None:
    before = {"spec": {"a": 1, "b": {"c": 1, "d": 2}}, "data": {"x": "1"}}
    now = {"spec": {"b": {"d": 2}}}

    patch = _merged(_removals(before, now), now)

    assert patch == {"spec": {"a": None, "b": {"c": None, "d": 2}}, "data": None}


@pytest.mark.parametrize(
    ("said", "expected"),
    [("pdos", "pods"), ("workload", "workloads"), ("team-b", "team-b-job"), ("zzz", None)],
)
def test_the_nearest_name(said: str, expected: str | None) -> None:
    assert nearest(said, ["pods", "workloads", "jobs", "team-b-job"]) == expected

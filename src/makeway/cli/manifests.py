"""YAML files as objects: every mistake is told with the file, the line and what was expected there.

A file may hold many documents, and a `List` counts as its items. A folder means the YAML and JSON files in it; `-` is what
comes in through the pipe.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from makeway.cli.nearby import nearest
from makeway.errors import UserError

Object = dict[str, Any]
_ENDINGS = (".yaml", ".yml", ".json")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One object and where it was written."""

    obj: Object
    where: str  # file and line, for messages

    @property
    def name(self) -> str:
        return str(self.obj["metadata"].get("name") or "")


def read(paths: list[str], *, recursive: bool = False) -> list[Manifest]:
    found: list[Manifest] = []
    for path in paths:
        for source, text in _texts(path, recursive=recursive):
            found += parse(text, source)
    if not found:
        raise UserError(f"no objects in {', '.join(paths)}.")
    return found


def _texts(path: str, *, recursive: bool) -> Iterator[tuple[str, str]]:
    if path == "-":
        yield "standard input", sys.stdin.read()
        return
    place = Path(path)
    if place.is_dir():
        files = sorted(place.rglob("*") if recursive else place.iterdir())
        for file in files:
            if file.suffix in _ENDINGS and file.is_file():
                yield str(file), _text(file)
        return
    yield path, _text(existing_file(place))


def existing_file(path: Path, also: str = "") -> Path:
    """The path, or an error that names the file that was probably meant; `also` is another word that was said for it."""
    if path.is_file():
        return path
    if path.is_dir():
        raise UserError(f'"{path}" is a folder; a file is expected here.')
    folder = path.parent
    if not folder.is_dir():
        raise UserError(f'there is no folder "{folder}".', where=str(path))
    names = [p.name for p in folder.iterdir() if p.is_file() and p.suffix in _ENDINGS]
    raise UserError(f'there is no file "{path}".', hint=_meant(path, names, also))


def _meant(path: Path, names: list[str], also: str) -> str:
    """The near match; where no name is near, what there is (a folder with one YAML file leaves little doubt)."""
    for name in names:
        if also and Path(name).stem == also:
            return f'Did you mean "{path.with_name(name)}"?'
    near = nearest(path.name, names)
    if near:
        return f'Did you mean "{path.with_name(near)}"?'
    if not names:
        return "The folder has no YAML files."
    if len(names) == 1:
        return f'Did you mean "{path.with_name(names[0])}"?'
    return f"In that folder: {', '.join(sorted(names)[:8])}."


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}.", where=str(file)) from error


def parse(text: str, source: str) -> list[Manifest]:
    found: list[Manifest] = []
    try:
        loader = yaml.SafeLoader(text)
        while loader.check_node():
            node = loader.get_node()
            assert node is not None
            document = loader.construct_document(node)
            found += _objects(document, f"{source}, line {node.start_mark.line + 1}")
    except yaml.YAMLError as error:
        raise UserError(f"is not YAML: {_yaml_problem(error)}", where=source) from error
    return found


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}." if mark else f"{problem}."


def _objects(document: Any, where: str) -> Iterator[Manifest]:
    if document is None:
        return
    if not isinstance(document, dict):
        raise UserError(
            f"expected an object with apiVersion and kind, got {_kind_of(document)}.", where=where
        )
    for key in ("apiVersion", "kind"):
        if not isinstance(document.get(key), str):
            raise UserError(f"{key} is missing.", where=where, hint=_missing_hint(document))
    if document["kind"] == "List" and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _objects(item, where)
        return
    yield Manifest(obj=_with_metadata(document, where), where=where)


def _with_metadata(document: Object, where: str) -> Object:
    metadata = document.get("metadata")
    if isinstance(metadata, dict) and (metadata.get("name") or metadata.get("generateName")):
        return document
    hint = ""
    if metadata is None and "name" in document:
        hint = "`name` must stand below `metadata:`, indented by two spaces. Has the file lost its indentation?"
    raise UserError(f"metadata.name of the {document['kind']} is missing.", where=where, hint=hint)


def _missing_hint(document: Object) -> str:
    if "run" in document or "resources" in document:
        return "This looks like a SkyPilot task: makeway launch FILE, or makeway jobs launch FILE."
    return "Every Kubernetes object begins with apiVersion, kind and metadata."


def _kind_of(value: Any) -> str:
    return {list: "a list", str: "text", bool: "true or false"}.get(type(value), "a number")

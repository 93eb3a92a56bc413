"""`makeway get KIND [NAME]`: the server's own columns, or the objects as JSON or YAML; for people without kubectl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from makeway.cli.cluster import with_client
from makeway.cli.discovery import Served, ServedKind, served
from makeway.cli.nearby import did_you_mean
from makeway.cli.output import out
from makeway.client import ApiError, Client
from makeway.errors import UserError

Object = dict[str, Any]
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
FORMS = ("json", "yaml", "wide", "name")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line names: kinds, names, and where to look."""

    kinds: tuple[ServedKind, ...]
    names: tuple[str, ...] = ()
    namespace: str = "default"
    everywhere: bool = False
    selector: str = ""

    def path(self, kind: ServedKind, name: str = "") -> str:
        place = "" if self.everywhere else self.namespace
        return kind.resource.path(place, name)

    @property
    def params(self) -> dict[str, str]:
        return {"labelSelector": self.selector} if self.selector else {}


def read_asked(
    kinds: Served, what: list[str], namespace: str, *, everywhere: bool, selector: str
) -> list[Asked]:
    """`pods`, `pods,jobs`, `pod NAME …`, `pod/NAME job/NAME`, `all`."""
    base = Asked(kinds=(), namespace=namespace, everywhere=everywhere, selector=selector)
    if any("/" in word for word in what):
        pairs = [word.partition("/") for word in what]
        if not all(slash and name for _, slash, name in pairs):
            raise UserError("write KIND/NAME for each, or KIND NAME.")
        return [
            msgspec.structs.replace(base, kinds=(kinds.by_name(kind),), names=(name,))
            for kind, _, name in pairs
        ]
    first, *names = what
    chosen = tuple(one for word in first.split(",") for one in _expand(kinds, word))
    if names and everywhere:
        raise UserError("a name cannot be looked up in all namespaces.", hint="Use -n NAMESPACE.")
    return [msgspec.structs.replace(base, kinds=chosen, names=tuple(names))]


def _expand(kinds: Served, word: str) -> list[ServedKind]:
    """A kind, or a category such as `all` or `kueue` that stands for several."""
    members = [one for one in kinds.kinds if one.preferred and word in one.categories]
    return members or [kinds.by_name(word)]


def get(
    home: Path | None,
    what: list[str],
    namespace: str,
    form: str,
    selector: str,
    *,
    everywhere: bool,
) -> None:
    if form and form not in FORMS:
        raise UserError(
            f'no output form called "{form}".',
            where="-o",
            hint=did_you_mean(form, FORMS) or f"There are: {', '.join(FORMS)}.",
        )
    if out.as_json:
        form = "json"

    async def work(client: Client) -> None:
        asked = read_asked(
            await served(client), what, namespace, everywhere=everywhere, selector=selector
        )
        if form in ("json", "yaml", "name"):
            await _print_objects(client, asked, form)
        else:
            await _print_tables(client, asked, wide=form == "wide")

    with_client(home, work)


# -- objects --


async def objects(client: Client, asked: Asked) -> list[tuple[ServedKind, Object]]:
    found: list[tuple[ServedKind, Object]] = []
    for kind in asked.kinds:
        if asked.names:
            found += [(kind, await one(client, asked, kind, name)) for name in asked.names]
            continue
        answer = await client.request("GET", asked.path(kind), params=asked.params)
        head = {"apiVersion": kind.resource.api_version, "kind": kind.kind}
        found += [(kind, {**head, **item}) for item in answer.get("items") or []]
    return found


async def one(client: Client, asked: Asked, kind: ServedKind, name: str) -> Object:
    """The object, or an error that names one that is nearly called so, or the namespace it is in."""
    try:
        return await client.request("GET", asked.path(kind, name))
    except ApiError as error:
        if not error.not_found:
            raise
        raise await missing(client, asked, kind, name) from error


async def missing(client: Client, asked: Asked, kind: ServedKind, name: str) -> UserError:
    everywhere = await client.list(kind.resource)
    elsewhere = [
        o["metadata"].get("namespace", "") for o in everywhere if o["metadata"]["name"] == name
    ]
    here = [
        o["metadata"]["name"]
        for o in everywhere
        if not kind.resource.namespaced or o["metadata"].get("namespace") == asked.namespace
    ]
    where = f" in namespace {asked.namespace}" if kind.resource.namespaced else ""
    hint = did_you_mean(name, here)
    if elsewhere:
        hint = f"There is one in namespace {elsewhere[0]}: add -n {elsewhere[0]}"
    elif not hint:
        hint = f"List them: makeway get {kind.resource.plural}" + (" -A" if where else "")
    return UserError(f'no {kind.kind} called "{name}"{where}.', hint=hint)


async def _print_objects(client: Client, asked: list[Asked], form: str) -> None:
    found = [pair for each in asked for pair in await objects(client, each)]
    if form == "name":
        for kind, obj in found:
            print(f"{kind.label}/{obj['metadata']['name']}")
        return
    single = len(asked) == 1 and len(asked[0].names) == 1 and len(found) == 1
    content: Any = found[0][1] if single else _list_of([obj for _, obj in found])
    if form == "json":
        print(msgspec.json.format(msgspec.json.encode(content), indent=2).decode())
    else:
        print(yaml.safe_dump(content, sort_keys=True, width=100), end="")


def _list_of(items: list[Object]) -> Object:
    return {"apiVersion": "v1", "kind": "List", "items": items, "metadata": {"resourceVersion": ""}}


# -- tables --


async def _print_tables(client: Client, asked: list[Asked], *, wide: bool) -> None:
    several = sum(len(each.kinds) for each in asked) > 1
    printed = 0
    for each in asked:
        for kind in each.kinds:
            columns, rows = await table(client, each, kind, wide=wide, prefix=several)
            if not rows:
                continue
            if printed:
                print()
            out.table(columns, rows)
            printed += 1
    if not printed:
        scoped = any(kind.resource.namespaced for each in asked for kind in each.kinds)
        where = f" in {asked[0].namespace} namespace" if scoped and not asked[0].everywhere else ""
        out.complain(f"No resources found{where}.")


async def table(
    client: Client, asked: Asked, kind: ServedKind, *, wide: bool = False, prefix: bool = False
) -> tuple[list[str], list[list[str]]]:
    paths = [asked.path(kind, name) for name in asked.names] or [asked.path(kind)]
    columns: list[str] = []
    rows: list[list[str]] = []
    for path, name in zip(paths, asked.names or ("",), strict=True):
        try:
            answer = await client.raw("GET", path, params=asked.params, accept=_TABLE)
        except ApiError as error:
            if name and error.not_found:
                raise await missing(client, asked, kind, name) from error
            raise
        columns, more = _cells(msgspec.json.decode(answer), kind, asked, wide=wide, prefix=prefix)
        rows += more
    return columns, rows


def _cells(
    answer: Object, kind: ServedKind, asked: Asked, *, wide: bool, prefix: bool
) -> tuple[list[str], list[list[str]]]:
    definitions = answer["columnDefinitions"]
    shown = [i for i, column in enumerate(definitions) if wide or not column.get("priority")]
    with_namespace = asked.everywhere and kind.resource.namespaced
    columns = [definitions[i]["name"].upper() for i in shown]
    rows: list[list[str]] = []
    for row in answer.get("rows") or []:
        cells = [_cell(row["cells"][i]) for i in shown]
        if prefix and cells:
            cells[0] = f"{kind.label}/{cells[0]}"
        if with_namespace:
            cells.insert(0, str(row["object"]["metadata"].get("namespace") or ""))
        rows.append(cells)
    return (["NAMESPACE", *columns] if with_namespace else columns), rows


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)

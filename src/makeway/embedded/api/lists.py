"""Lists, whole or page by page.

A page ends with a `continue` value that names the last object shown and the version the list began with. The next page goes on behind
that object in what is there now; who then watches from the list's version hears of everything that changed in between.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import itertools

import msgspec

from makeway.embedded.api.http import Request
from makeway.embedded.api.selectors import Selection
from makeway.embedded.store import Entry, Key, Store
from makeway.kinds.serving.kind import Kind
from makeway.kinds.serving.refusal import Obj, bad_request

# What kubectl asks for when nobody chose a page.
USUAL_PAGE = 500


async def read_page(
    store: Store, kind: Kind, selection: Selection, request: Request, *, table: bool = False
) -> tuple[list[Entry], Obj]:
    """What a list request shows, and the metadata of the list."""
    limit = request.number("limit") or 0
    if table and limit >= USUAL_PAGE:
        # kubectl shows nothing before the last page, and lets 0.2 s pass between pages after the tenth: 20,000 pods would take it
        # seven seconds. Servers may leave the limit aside.
        limit = 0
    _check_version(request.query.get("resourceVersion", ""))
    after, version = _parse_continue(request.query.get("continue", ""))
    await store.committed(store.version)
    found = _selected(store, kind, selection, after, limit + 1 if limit > 0 else None)
    metadata: Obj = {"resourceVersion": str(version or store.version)}
    if 0 < limit < len(found):
        found.pop()
        metadata["continue"] = _make_continue(version or store.version, found[-1])
        if selection.plain:  # with a selector nobody knows without looking at the rest
            metadata["remainingItemCount"] = _behind(store, kind, selection, found[-1])
    return found, metadata


def _check_version(text: str) -> None:
    """Lists show the latest state whatever version is asked for, which must be one."""
    if text and not text.isdecimal():
        raise bad_request(
            f'invalid resource version: resourceVersion: Invalid value: "{text}":'
            f' strconv.ParseUint: parsing "{text}": invalid syntax'
        )


def select_all(store: Store, kind: Kind, selection: Selection) -> list[Entry]:
    return _selected(store, kind, selection, None, None)


def _selected(
    store: Store, kind: Kind, selection: Selection, after: Key | None, most: int | None
) -> list[Entry]:
    if selection.name and (selection.namespace or not kind.namespaced):
        only = store.get(kind.store_key, selection.namespace, selection.name)
        return [only] if only is not None and selection(only) else []
    ordered = store.sorted(kind.store_key, selection.namespace, after)
    return list(itertools.islice(filter(selection, ordered), most))


def _behind(store: Store, kind: Kind, selection: Selection, last: Entry) -> int:
    key = (last.namespace, last.name)
    return store.count_after(kind.store_key, selection.namespace, key)


def _make_continue(version: int, last: Entry) -> str:
    text = msgspec.json.encode([version, last.namespace, last.name])
    return base64.urlsafe_b64encode(text).decode()


def _parse_continue(text: str) -> tuple[Key | None, int]:
    if not text:
        return None, 0
    with contextlib.suppress(binascii.Error, ValueError, msgspec.MsgspecError):
        version, namespace, name = msgspec.json.decode(
            base64.urlsafe_b64decode(text), type=tuple[int, str, str]
        )
        return (namespace, name), version
    raise bad_request(
        "invalid continue token: continue key is not valid: the token does not come from this server"
    )

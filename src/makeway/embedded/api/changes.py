"""An object after a patch: which kind of patch it is, what comes out, and whether that still has known fields of the right types."""

from __future__ import annotations

from makeway.embedded.api.bodies import check_fields, parse, to_storage
from makeway.embedded.api.http import Request, encode
from makeway.embedded.api.patch import json_patch, merge_patch, strategic_merge
from makeway.embedded.api.target import Target
from makeway.embedded.store import Entry
from makeway.kinds.serving.refusal import Obj, Refusal, bad_request
from makeway.kinds.serving.schemas import definitions

_JSON_PATCH = "application/json-patch+json"
_MERGE_PATCH = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"
APPLY = (
    "application/apply-patch+yaml",
    "application/apply-patch+json",
    "application/apply-patch+cbor",
)


def patched(request: Request, target: Target, entry: Entry, body: bytes) -> Obj:
    """The object after the patch, checked and in the stored version."""
    kind, version = target.kind, target.version
    current = entry.decode()
    if version.conversion is not None:
        version.conversion.from_storage(current)
    current["apiVersion"], current["kind"] = kind.api_version(version.name), kind.kind
    changed = _merged(request, target, current, parse("application/json", body))
    if not isinstance(changed, dict):
        raise bad_request("the patch left something that is not an object")
    changed.setdefault("metadata", {})
    text = encode(changed)
    check_fields(request, changed, kind, version, text)
    # What was stored has no nulls outside its status, so that merging brings only those of the patch.
    return to_storage(changed, version, text if request.content_type == _JSON_PATCH else body)


def _merged(request: Request, target: Target, current: Obj, patch: object) -> object:
    builtin = target.kind.builtin
    match request.content_type:
        case "application/json-patch+json":
            return json_patch(current, patch)
        case "application/merge-patch+json":
            return merge_patch(current, patch)
        case "application/strategic-merge-patch+json" if builtin:
            known = definitions()
            return strategic_merge(current, patch, known.get(target.version.schema), known)
    accepted = [_JSON_PATCH, _MERGE_PATCH, *([_STRATEGIC] if builtin else []), APPLY[0]]
    raise Refusal(
        415,
        "UnsupportedMediaType",
        f"the body of the request was in an unknown format - accepted media types include:"
        f" {', '.join(accepted)}",
    )

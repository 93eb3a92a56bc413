"""Reading JSON with care: what is missing gets a default, what is wrong gets an error that names object, field and remedy."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from makeway.errors import InvalidObject, UserError
from makeway.model.resources import amount_of, parse_quantity

Json = Mapping[str, Any]
# Go's zero time: what an object without a timestamp is as old as. Older than everything.
ZERO_TIME = -62135596800.0


def name_of(obj: Json) -> str:
    return str((obj.get("metadata") or {}).get("name") or "")


def namespace_of(obj: Json) -> str:
    return str((obj.get("metadata") or {}).get("namespace") or "")


def key_of(obj: Json) -> str:
    """`namespace/name`."""
    return f"{namespace_of(obj)}/{name_of(obj)}"


def title_of(obj: Json) -> str:
    """For people: `ClusterQueue team-a`."""
    namespace = namespace_of(obj)
    kind = obj.get("kind") or "object"
    return f"{kind} {namespace}/{name_of(obj)}" if namespace else f"{kind} {name_of(obj)}"


def spec_of(obj: Json) -> Json:
    return obj.get("spec") or {}


def status_of(obj: Json) -> Json:
    return obj.get("status") or {}


def labels_of(obj: Json) -> dict[str, str]:
    return dict((obj.get("metadata") or {}).get("labels") or {})


def annotations_of(obj: Json) -> dict[str, str]:
    return dict((obj.get("metadata") or {}).get("annotations") or {})


def is_terminating(obj: Json) -> bool:
    return bool((obj.get("metadata") or {}).get("deletionTimestamp"))


def timestamp(text: str | None, default: float | None = None) -> float | None:
    return default if not text else datetime.fromisoformat(text).timestamp()


def created_at(obj: Json) -> float:
    text = (obj.get("metadata") or {}).get("creationTimestamp")
    return ZERO_TIME if not text else datetime.fromisoformat(text).timestamp()


def condition(obj: Json, kind: str) -> Json | None:
    for found in status_of(obj).get("conditions") or ():
        if found.get("type") == kind:
            return cast("Json", found)
    return None


def true_condition(obj: Json, kind: str) -> Json | None:
    found = condition(obj, kind)
    return found if found is not None and found.get("status") == "True" else None


def amount(obj: Json, field: str, resource: str, quantity: Any) -> int:
    """A quantity of a resource, not negative."""
    try:
        value = amount_of(resource, quantity)
    except UserError as error:
        raise InvalidObject(error.what, obj=title_of(obj), field=field, hint=error.hint) from error
    if value < 0:
        raise InvalidObject(
            f'Invalid value: "{quantity}": must be greater than or equal to 0.',
            obj=title_of(obj),
            field=field,
            hint="Write 0 or more.",
        )
    return value


def one_of(obj: Json, field: str, value: Any, allowed: tuple[str, ...]) -> Any:
    """`value` if it is one of `allowed`."""
    if value in allowed:
        return value
    listed = ", ".join(f'"{word}"' for word in allowed if word)
    raise InvalidObject(
        f'Unsupported value: "{value}": supported values: {listed}.',
        obj=title_of(obj),
        field=field,
        hint="Write one of these.",
    )


def weight(obj: Json) -> float:
    """`spec.fairSharing.weight`; 1 where nothing is said."""
    block = spec_of(obj).get("fairSharing") or {}
    text = block.get("weight")
    if text is None:
        return 1.0
    try:
        billionths = parse_quantity(str(text), 9)
    except UserError as error:
        raise InvalidObject(
            error.what, obj=title_of(obj), field="spec.fairSharing.weight", hint=error.hint
        ) from error
    if billionths < 0:
        raise InvalidObject(
            f'Invalid value: "{text}": must be greater than or equal to 0.',
            obj=title_of(obj),
            field="spec.fairSharing.weight",
            hint="Write 0 or more; 1 is the default.",
        )
    return billionths / 1e9

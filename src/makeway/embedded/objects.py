"""Questions that every controller asks of an object."""

from __future__ import annotations

from makeway.client.resource import Object
from makeway.control.clock import parse_timestamp, timestamp


def uid_of(obj: Object) -> str:
    return str(obj["metadata"].get("uid") or "")


def name_of(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def namespace_of(obj: Object) -> str:
    return str(obj["metadata"].get("namespace") or "")


def deleted(obj: Object) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def created_at(obj: Object) -> float:
    text = obj["metadata"].get("creationTimestamp")
    return parse_timestamp(text) if text else 0.0


def status_of(obj: Object) -> Object:
    return obj.get("status") or {}


def phase(pod: Object) -> str:
    return str(status_of(pod).get("phase") or "Pending")


def active(pod: Object) -> bool:
    return not deleted(pod) and phase(pod) not in ("Succeeded", "Failed")


def condition(obj: Object, kind: str) -> Object | None:
    for entry in status_of(obj).get("conditions") or []:
        if entry["type"] == kind:
            return dict(entry)
    return None


def true(obj: Object, kind: str) -> bool:
    return among(status_of(obj).get("conditions") or [], kind)


def among(conditions: list[Object], kind: str) -> bool:
    """Whether this one is true, in a list that need not be written yet."""
    return any(entry["type"] == kind and entry["status"] == "True" for entry in conditions)


def ready(pod: Object) -> bool:
    return true(pod, "Ready")


def ready_since(pod: Object) -> float | None:
    found = condition(pod, "Ready")
    if found is None or found["status"] != "True":
        return None
    return parse_timestamp(found["lastTransitionTime"]) if found.get("lastTransitionTime") else 0.0


def controller_ref(obj: Object) -> Object | None:
    for reference in obj["metadata"].get("ownerReferences") or []:
        if reference.get("controller"):
            return dict(reference)
    return None


def owned_by(owner: Object, api_version: str, kind: str) -> list[Object]:
    """The `ownerReferences` of what `owner` makes."""
    return [
        {
            "apiVersion": api_version,
            "kind": kind,
            "name": name_of(owner),
            "uid": uid_of(owner),
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def with_condition(
    conditions: list[Object],
    kind: str,
    *,
    status: str,
    reason: str,
    message: str,
    now: float,
    also: str = "",
) -> list[Object]:
    """The list with this condition as told; its time changes only with its status.

    `also` names a second time that some kinds have, when the condition was last said anew.
    """
    new = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": timestamp(now),
    }
    if also:
        new[also] = timestamp(now)
    result: list[Object] = []
    found = False
    for old in conditions:
        if old["type"] != kind:
            result.append(old)
            continue
        found = True
        kept = {} if old["status"] != status else {"lastTransitionTime": _changed(old, new)}
        if also in old and (old["reason"], old["message"]) == (reason, message):
            kept[also] = old[also]
        result.append({**old, **new, **kept})
    return result if found else [*result, new]


def _changed(old: Object, new: Object) -> str:
    return str(old.get("lastTransitionTime") or new["lastTransitionTime"])


def deletion_order(pods: list[Object]) -> list[Object]:
    """Who goes first when there are too many: the least that is lost."""

    def worth(pod: Object) -> tuple[bool, bool, bool, float, float, str]:
        bound = bool(pod["spec"].get("nodeName"))
        since = ready_since(pod)
        younger_first = -(since if since is not None else created_at(pod))
        return (
            bound,
            phase(pod) == "Running",
            since is not None,
            younger_first,
            -created_at(pod),
            name_of(pod),
        )

    return sorted(pods, key=worth)

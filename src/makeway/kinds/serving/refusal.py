"""Why an API request is refused, in the words and the shape of the Kubernetes API (`Status`)."""

from __future__ import annotations

from typing import Any, NamedTuple

Obj = dict[str, Any]


class Cause(NamedTuple):
    """One thing wrong with one field; `kind` and `detail` as the API server words them."""

    field: str
    kind: str
    detail: str
    reason: str = "FieldValueInvalid"

    def __str__(self) -> str:
        return (
            f"{self.field}: {self.kind}: {self.detail}"
            if self.detail
            else f"{self.field}: {self.kind}"
        )


class Refusal(Exception):
    """A request that is answered with a `Status` instead of an object."""

    def __init__(self, code: int, reason: str, message: str, *, details: Obj | None = None) -> None:
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        super().__init__(message)

    def status(self) -> Obj:
        body: Obj = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if not self.reason:
            del body["reason"]
        # Also when empty: some commands of kubectl look into it without asking whether it is there.
        body["details"] = self.details
        return body


# ---- the field errors of the API server ----------------------------------------------------------


def invalid_value(field: str, value: Any, why: str) -> Cause:
    return Cause(field, f"Invalid value: {_shown(value)}", why)


def required(field: str, why: str = "") -> Cause:
    return Cause(field, "Required value", why, "FieldValueRequired")


def forbidden_field(field: str, why: str) -> Cause:
    return Cause(field, "Forbidden", why, "FieldValueForbidden")


def duplicate(field: str, value: Any) -> Cause:
    return Cause(field, f"Duplicate value: {_shown(value)}", "", "FieldValueDuplicate")


def unsupported(field: str, value: Any, supported: tuple[str, ...] | list[str]) -> Cause:
    options = ", ".join(_shown(option) for option in supported)
    return Cause(
        field,
        f"Unsupported value: {_shown(value)}",
        f"supported values: {options}",
        "FieldValueNotSupported",
    )


_JSON_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}  # fmt: skip


def json_type(value: Any) -> str:
    return _JSON_NAMES.get(type(value), "null")


def wrong_type(field: str, value: Any, wanted: str) -> Cause:
    given = json_type(value)
    why = f'{field} in body must be of type {wanted}: "{given}"'
    return Cause(field, f'Invalid value: "{given}"', why, "FieldValueTypeInvalid")


def wrong_format(field: str, value: str, wanted: str) -> Cause:
    """A text that is not of the form that its schema names."""
    why = f"{field} in body must be of type {wanted}: {_shown(value)}"
    return Cause(field, f"Invalid value: {_shown(value)}", why, "FieldValueTypeInvalid")


def bare_invalid(field: str, why: str) -> Cause:
    """How rules of a CustomResourceDefinition (CEL) are reported: without the value."""
    return Cause(field, "Invalid value", why)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    import msgspec

    return msgspec.json.encode(value).decode()


# ---- refusals ------------------------------------------------------------------------------------


def invalid(kind: str, group: str, name: str, causes: list[Cause]) -> Refusal:
    texts = [str(cause) for cause in causes]
    joined = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    shown_kind = f"{kind}.{group}" if group else kind
    return Refusal(
        422,
        "Invalid",
        f'{shown_kind} "{name}" is invalid: {joined}',
        details={
            "name": name,
            "group": group,
            "kind": kind,
            "causes": [
                {
                    "reason": cause.reason,
                    "message": f"{cause.kind}: {cause.detail}" if cause.detail else cause.kind,
                    "field": cause.field,
                }
                for cause in causes
            ],
        },
    )


def not_found(resource: str, group: str, name: str) -> Refusal:
    return Refusal(
        404,
        "NotFound",
        f'{_qualified(resource, group)} "{name}" not found',
        details=_details(resource, group, name),
    )


def already_exists(resource: str, group: str, name: str) -> Refusal:
    return Refusal(
        409,
        "AlreadyExists",
        f'{_qualified(resource, group)} "{name}" already exists',
        details=_details(resource, group, name),
    )


def conflict(resource: str, group: str, name: str, why: str = "") -> Refusal:
    why = why or (
        "the object has been modified; please apply your changes to the latest version"
        " and try again"
    )
    return Refusal(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {_qualified(resource, group)} "{name}": {why}',
        details=_details(resource, group, name),
    )


def forbidden(resource: str, group: str, name: str, why: str) -> Refusal:
    return Refusal(
        403,
        "Forbidden",
        f'{_qualified(resource, group)} "{name}" is forbidden: {why}',
        details=_details(resource, group, name),
    )


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def webhook_denied(webhook: str, causes: list[Cause], code: int = 403) -> Refusal:
    """How a refusal by one of Kueue's webhooks reaches the user."""
    texts = [str(cause) for cause in causes]
    joined = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    reason = "Forbidden" if code == 403 else ""
    return Refusal(code, reason, f'admission webhook "{webhook}" denied the request: {joined}')


def _qualified(resource: str, group: str) -> str:
    return f"{resource}.{group}" if group else resource


def _details(resource: str, group: str, name: str) -> Obj:
    details: Obj = {"name": name, "kind": resource}
    if group:
        details["group"] = group
    return details

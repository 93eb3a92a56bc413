"""Forms that a schema may ask of a text: whether it is one. Those that are not listed are not checked, as on a real server."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Callable
from datetime import date
from typing import Any, Final

from makeway.kinds.serving.cel.functions import duration, timestamp


def _reads(
    read: Callable[[str], Any], *, also: Callable[[str], bool] = bool
) -> Callable[[str], bool]:
    def asks(text: str) -> bool:
        try:
            read(text)
        except ValueError:
            return False
        return also(text)

    return asks


def _matches(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern)
    return lambda text: compiled.fullmatch(text) is not None


_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

FORMATS: Final[dict[str, Callable[[str], bool]]] = {
    "date-time": _reads(lambda text: timestamp(text.upper())),
    "datetime": _reads(lambda text: timestamp(text.upper())),
    "date": _reads(date.fromisoformat, also=_matches(r"\d{4}-\d\d-\d\d")),
    "duration": _reads(duration),
    "byte": _reads(lambda text: base64.b64decode(text, validate=True)),
    "ipv4": _reads(ipaddress.IPv4Address),
    "ipv6": _reads(ipaddress.IPv6Address),
    "cidr": _reads(ipaddress.ip_interface, also=lambda text: "/" in text),
    "mac": _matches(r"[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}"),
    "uuid": _matches(r"[0-9A-Fa-f]{8}-?(?:[0-9A-Fa-f]{4}-?){3}[0-9A-Fa-f]{12}"),
    "hostname": _matches(rf"{_LABEL}(?:\.{_LABEL})*\.?"),
    "email": _matches(r"[^@\s]+@[^@\s]+"),
    "uri": _matches(r"(?:[A-Za-z][A-Za-z0-9+.-]*:|/)\S*"),
}

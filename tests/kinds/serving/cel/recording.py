"""What a real API server makes of the rules in `cases.txt`: `python -m tests.kinds.serving.cel.recording` writes `recorded.txt`.

Each rule is tried in a definition of its own, without keeping it. Those that compile are put into one definition, each on a field of the
same shape, and one object tells how each came out.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from tools.control_plane import ControlPlane

from makeway.client import ApiError, Client, Resource, from_kubeconfig
from makeway.client.resource import Object

FOLDER = Path(__file__).parent
CASES = (FOLDER / "cases.txt").read_text().splitlines()
RECORDED = FOLDER / "recorded.txt"
DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
THINGS = Resource("example.com", "v1", "things")

TEXT = {"type": "string", "maxLength": 50}
WHOLE = {"type": "integer"}
SHAPE: Object = {
    "type": "object",
    "properties": {
        "n": WHOLE,
        "f": {"type": "number"},
        "s": TEXT,
        "b": {"type": "boolean"},
        "l": {"type": "array", "maxItems": 5, "items": TEXT},
        "set": {"type": "array", "maxItems": 5, "items": TEXT, "x-kubernetes-list-type": "set"},
        "o": {
            "type": "array",
            "maxItems": 5,
            "items": {"type": "object", "properties": {"name": TEXT, "m": WHOLE, "note": TEXT}},
        },
        "m": {"type": "object", "maxProperties": 5, "additionalProperties": TEXT},
        "t": {"type": "string", "format": "date-time"},
        "d": {"type": "string", "format": "duration"},
        "q": TEXT,
        "u": TEXT,
        "ip": TEXT,
        "absent": WHOLE,
        "nested": {"type": "object", "properties": {"x": TEXT}},
        "a-b": WHOLE,
        "namespace": TEXT,
        "x.y": WHOLE,
    },
}
VALUE: Object = {
    "n": 12,
    "f": 1.5,
    "s": "green",
    "b": True,
    "l": ["a", "b", "c"],
    "set": ["x", "y", "z"],
    "o": [{"name": "one", "m": 1}, {"name": "two", "m": 2, "note": "second"}],
    "m": {"k1": "v1", "k2": "v2"},
    "t": "2024-05-06T07:08:09Z",
    "d": "90m",
    "q": "1Gi",
    "u": "https://example.com:80/path?k=a&k=b",
    "ip": "10.1.2.3",
    "nested": {},
    "a-b": 1,
    "namespace": "team",
    "x.y": 2,
}


def definition(fields: dict[str, Any]) -> Object:
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }


def with_rule(rule: str) -> Object:
    return {**SHAPE, "x-kubernetes-validations": [{"rule": rule, "message": "broken"}]}


async def refused(client: Client, rule: str) -> str:
    """Why the server does not take a rule; empty if it does."""
    body = definition({"c": with_rule(rule)})
    try:
        await client.request("POST", DEFINITIONS.path(), body=body, params={"dryRun": "All"})
    except ApiError as error:
        found = re.search(r"ERROR: <input>:\d+:\d+: ([^\n]*)", error.message)
        # The server numbers its own types anew each time.
        return re.sub(r"selfType\d+", "selfType", found[1].strip() if found else error.message)
    return ""


async def outcomes(client: Client, rules: dict[str, str]) -> dict[str, str]:
    fields = {name: with_rule(rule) for name, rule in rules.items()}
    await client.create(DEFINITIONS, definition(fields))
    thing = {
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "metadata": {"name": "it", "namespace": "default"},
        "spec": dict.fromkeys(rules, VALUE),
    }
    await asyncio.sleep(3)
    try:
        await client.create(THINGS, thing)
    except ApiError as error:
        said = {
            cause["field"].removeprefix("spec."): str(cause["message"])
            for cause in error.details.get("causes") or []
        }
        return {name: _outcome(said.get(name)) for name in rules}
    return dict.fromkeys(rules, "true")


def _outcome(message: str | None) -> str:
    if message is None:
        return "true"
    error = re.search(r"(?:Invalid value: )?(?:\"object\": )?(.*) evaluating rule: broken", message)
    return f"error: {error[1]}" if error else "false"


async def record() -> str:
    with ControlPlane.start(controllers=False) as plane:
        async with Client(from_kubeconfig(plane.kubeconfig)) as client:
            why = {rule: await refused(client, rule) for rule in CASES}
            good = {f"c{i}": rule for i, rule in enumerate(CASES) if not why[rule]}
            found = await outcomes(client, good)
    by_rule = {good[name]: outcome for name, outcome in found.items()}
    return "".join(f"{by_rule.get(r) or f'refused: {why[r]}'}\t{r}\n" for r in CASES)


if __name__ == "__main__":
    RECORDED.write_text(asyncio.run(record()))

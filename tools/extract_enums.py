"""Which values fields of Kubernetes' own kinds may have, as a real API server describes them; written beside the definitions that are served.

The package that the definitions come from leaves them out. `kubectl explain` shows them.

    python -m tools.extract_enums        # needs the binaries: make cluster
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tools.control_plane import ControlPlane

from makeway.client import Client, from_kubeconfig
from makeway.kinds.serving.schemas import PREFIX, definitions

TARGET = Path(__file__).parent.parent / "src/makeway/kinds/serving/data/enums.json"


async def schemas(client: Client) -> dict[str, Any]:
    index = await client.request("GET", "/openapi/v3")
    found: dict[str, Any] = {}
    for path in index["paths"]:
        if path.startswith("api"):
            document = await client.request("GET", f"/openapi/v3/{path}")
            found |= (document.get("components") or {}).get("schemas") or {}
    return found


def enums(schema: Any) -> dict[str, list[str]]:
    """By field; items of lists under the list's name."""
    found: dict[str, list[str]] = {}
    for name, field in (schema.get("properties") or {}).items():
        values = field.get("enum") or (field.get("items") or {}).get("enum")
        if values:
            found[name] = values
    return found


async def extract() -> dict[str, dict[str, list[str]]]:
    with ControlPlane.start(controllers=False) as plane:
        async with Client(from_kubeconfig(plane.kubeconfig)) as client:
            served = await schemas(client)
    known = definitions()
    return {
        name: values
        for name, schema in sorted(served.items())
        if name.removeprefix(PREFIX) in known and (values := enums(schema))
    }


if __name__ == "__main__":
    lines = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in asyncio.run(extract()).items()]
    TARGET.write_text("{\n" + ",\n".join(lines) + "\n}\n")

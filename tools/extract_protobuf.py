"""Read the protobuf field numbers of Kubernetes' types, for request bodies that clients send in
that form.

Field numbers are part of the wire format and never change. They are in the struct tags of the Go
modules `k8s.io/api` and `k8s.io/apimachinery` (Apache-2.0), which the kubectl build downloads.
This writes the table that the embedded API decodes with: message → field number → JSON name, kind,
and whether zero is kept.

    python tools/extract_protobuf.py "$(go env GOMODCACHE)"
"""

from __future__ import annotations

import json
import lzma
import re
import sys
from pathlib import Path

RELEASE = "v0.36.3"
TARGET = Path(__file__).parent.parent / "src/makeway/kinds/serving/data/protobuf.json.xz"

PACKAGES = {
    "api": [
        "apps/v1",
        "authentication/v1",
        "authorization/v1",
        "autoscaling/v1",
        "autoscaling/v2",
        "batch/v1",
        "coordination/v1",
        "core/v1",
        "events/v1",
        "networking/v1",
        "node/v1",
        "policy/v1",
        "rbac/v1",
        "scheduling/v1",
        "storage/v1",
    ],
    "apimachinery": ["pkg/apis/meta/v1"],
}
SCALARS = {
    "string": "text",
    "bool": "bool",
    "int": "int",
    "int32": "int",
    "int64": "int",
    "uint32": "int",
    "uint64": "int",
    "float64": "float",
    "[]byte": "bytes",
    "byte": "int",
}
SPECIAL = {
    "meta/v1.Time": "time",
    "meta/v1.MicroTime": "microtime",
    "meta/v1.Duration": "duration",
    "meta/v1.FieldsV1": "raw",
    "runtime.RawExtension": "raw",
    "resource.Quantity": "quantity",
    "intstr.IntOrString": "int-or-text",
    "types.UID": "text",
    "types.NodeName": "text",
    "types.NamespacedName": "text",
}

_STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_ALIAS = re.compile(r"^type (\w+) ([\w.\[\]*]+)(?: |$)", re.MULTILINE)
_FIELD = re.compile(r"^\t(?:(\w+)\s+)?([\w.\[\]*]+)\s+`([^`]*)`", re.MULTILINE)
_IMPORTS = {"metav1": "meta/v1", "v1": "core/v1", "corev1": "core/v1", "apiv1": "core/v1"}

Table = dict[str, dict[str, list[object]]]


def main(modules: Path) -> None:
    sources: dict[str, str] = {}
    for module, packages in PACKAGES.items():
        for package in packages:
            folder = modules / "k8s.io" / f"{module}@{RELEASE}" / package
            text = "\n".join(path.read_text() for path in sorted(folder.glob("*types*.go")))
            sources[package.removeprefix("pkg/apis/")] = text
    aliases = {
        f"{package}.{name}": target
        for package, text in sources.items()
        for name, target in _ALIAS.findall(text)
        if target != "struct"
    }
    table: Table = {}
    for package, text in sources.items():
        for name, body in _STRUCT.findall(text):
            fields = _fields(package, body, aliases)
            if fields:
                table[f"{package}.{name}"] = fields
    content = json.dumps(table, sort_keys=True, separators=(",", ":")).encode()
    TARGET.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(table)} messages, {len(content)} bytes, {TARGET.stat().st_size} compressed")


def _fields(package: str, body: str, aliases: dict[str, str]) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for _, go_type, tags in _FIELD.findall(body):
        wire = re.search(r'protobuf:"\w+,(\d+),', tags)
        named = re.search(r'json:"([^",]*)', tags)
        if not wire or not named:
            continue
        # An empty JSON name is an inlined struct: its fields stand beside the others.
        found[wire[1]] = [
            named[1],
            _kind(package, go_type.removeprefix("*"), aliases),
            go_type.startswith("*"),
        ]
    return found


def _kind(package: str, go_type: str, aliases: dict[str, str]) -> str:
    if go_type in SCALARS:
        return SCALARS[go_type]
    if go_type.startswith(("map[string]", "map[")):
        return "map:" + _kind(package, go_type.partition("]")[2], aliases)
    if go_type.startswith("[]"):
        return "list:" + _kind(package, go_type[2:].removeprefix("*"), aliases)
    prefix, dot, name = go_type.rpartition(".")
    if prefix == "v1" and package == "core/v1":
        prefix = "metav1"
    full = f"{_IMPORTS.get(prefix, prefix)}.{name}" if dot else f"{package}.{name}"
    if full in SPECIAL:
        return SPECIAL[full]
    if full in aliases:
        return _kind(full.rpartition(".")[0], aliases[full], aliases)
    return full


if __name__ == "__main__":
    main(Path(sys.argv[1]))

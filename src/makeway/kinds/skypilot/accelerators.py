"""`T4:4` as a number of GPUs, and as the nodes that have them.

Clusters say in different labels which accelerator a node has. The first of the known labels that any node carries decides; all
of its values that mean the asked accelerator go into one affinity. A node without any such label may have anything: it
satisfies every name, and the user is warned.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from makeway.errors import UserError

Labels = Mapping[str, str]

# In the order in which they are looked for.
ACCELERATOR_LABELS = (
    "skypilot.co/accelerator",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "nvidia.com/gpu.product",
    "gpu.nvidia.com/class",
    "nebius.com/gpu-name",
)
# The longest names first: `Tesla-T4` must not be read as T4g, nor an L40S as an L4.
CANONICAL = [
    "GB300",
    "GB200",
    "B300",
    "B200",
    "B100",
    "GH200",
    "H200",
    "H100-80GB",
    "H100-MEGA",
    "H100",
    "A100-80GB",
    "A100",
    "A10G",
    "A10",
    "A16",
    "A30",
    "A40",
    "RTX6000-Ada",
    "L40S",
    "L40",
    "L4",
    "A6000",
    "A5000",
    "A4000",
    "V100-32GB",
    "V100",
    "P100",
    "P40",
    "P4000",
    "P4",
    "T4g",
    "T4",
    "K80",
    "M60",
]
MEMORY_GB = {
    "GB300": 288, "GB200": 192, "B300": 288, "B200": 192, "B100": 192, "GH200": 96, "H200": 141, "H100-80GB": 80,
    "H100-MEGA": 80, "H100": 80, "A100-80GB": 80, "A100": 40, "A10G": 24, "A10": 24, "A16": 16, "A30": 24, "A40": 48,
    "RTX6000-Ada": 48, "L40S": 48, "L40": 48, "L4": 24, "A6000": 48, "A5000": 24, "A4000": 16, "V100-32GB": 32,
    "V100": 16, "P100": 16, "P40": 24, "P4000": 8, "P4": 8, "T4g": 16, "T4": 16, "K80": 12, "M60": 8,
}  # fmt: skip
_BY_MEMORY = re.compile(
    r"^(?:(?P<maker>nvidia|amd):)?(?P<size>\d+)\s*(?:GB|G)(?P<more>\+)?(?::(?P<count>\S+))?$",
    re.IGNORECASE,
)


class Accelerators(msgspec.Struct, frozen=True, kw_only=True):
    """How many, and which: a name, or at least so much memory."""

    name: str
    count: int
    memory_gb: int = 0  # asked for by memory instead of by name
    or_more: bool = False

    @property
    def resource(self) -> str:
        lowered = self.name.lower()
        if lowered.startswith(("mi1", "mi2", "mi3")) or lowered == "amd":
            return "amd.com/gpu"
        return "google.com/tpu" if lowered.startswith("tpu") else "nvidia.com/gpu"

    @property
    def text(self) -> str:
        if self.memory_gb:
            return f"{self.memory_gb}GB{'+' if self.or_more else ''}:{self.count}"
        return f"{self.name}:{self.count}"


def read_accelerators(said: Any, where: str) -> tuple[Accelerators, ...]:
    """Every form that SkyPilot takes, as alternatives in the order they were written; the first is the one to use."""
    if said is None:
        return ()
    if isinstance(said, str):
        return (_one(said, None, where),)
    if isinstance(said, dict) and said:
        return tuple(_one(str(name), count, where) for name, count in said.items())
    if isinstance(said, list | set) and said:
        return tuple(alternative for item in said for alternative in read_accelerators(item, where))
    raise UserError(
        f"expected a name such as T4:4, a map or a list of them; found: {said!r}.", where=where
    )


def _one(text: str, count: Any, where: str) -> Accelerators:
    by_memory = _BY_MEMORY.match(text.strip())
    if by_memory:
        said = by_memory["count"] if count is None else count
        return Accelerators(
            name=(by_memory["maker"] or "nvidia").lower(),
            count=_count(1 if said is None else said, text, where),
            memory_gb=int(by_memory["size"]),
            or_more=bool(by_memory["more"]),
        )
    name, *rest = text.strip().split(":")
    if not name or len(rest) > 1 or (rest and count is not None):
        raise UserError(
            f'The "accelerators" field as a str should be <name> or <name>:<cnt>. Found: {text!r}.',
            where=where,
        )
    said = rest[0] if rest else 1 if count is None else count
    return Accelerators(name=name, count=_count(said, text, where))


def _count(said: Any, text: str, where: str) -> int:
    try:
        number = float(said)
    except (TypeError, ValueError):
        raise UserError(
            f'The "accelerators" field as a str should be <name> or <name>:<cnt>. Found: {text!r}.',
            where=where,
        ) from None
    if number <= 0:
        raise UserError(
            f"the number of accelerators must be above 0; found: {text!r}.", where=where
        )
    if number != int(number):
        raise UserError(
            f"parts of a GPU cannot be asked for; found: {text!r}.",
            where=where,
            hint="Write a whole number.",
        )
    return int(number)


# -- where --


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The affinity for an accelerator, and what its user should know."""

    affinity: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()


def place(asked: Accelerators, nodes: Sequence[Labels]) -> Place:
    """`nodes` are the labels of the nodes that have such a device."""
    key = next((k for k in ACCELERATOR_LABELS if any(k in labels for labels in nodes)), None)
    unlabelled = sum(not _labelled(labels) for labels in nodes)
    warnings: list[str] = []
    if unlabelled:
        warnings.append(
            f"{unlabelled} node(s) with {asked.resource} do not say which accelerator they have;"
            f" they are taken to satisfy {asked.text}."
            f" Label them: kubectl label node NODE skypilot.co/accelerator={asked.name.lower()}"
        )
    if key is None:
        return Place(warnings=tuple(warnings))
    known = sorted({labels[key] for labels in nodes if key in labels})
    values = [value for value in known if _means(value, asked)]
    if not values and not unlabelled:
        warnings.append(
            f"no node has {asked.text}; there are: {', '.join(known)}. It waits until one comes."
        )
    terms: list[dict[str, Any]] = [
        {
            "matchExpressions": [
                {"key": key, "operator": "In", "values": values or [_guess(key, asked)]}
            ]
        }
    ]
    if unlabelled:
        terms.append(
            {
                "matchExpressions": [
                    {"key": each, "operator": "DoesNotExist"} for each in ACCELERATOR_LABELS
                ]
            }
        )
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return Place(affinity={"nodeAffinity": required}, warnings=tuple(warnings))


def _labelled(labels: Labels) -> bool:
    return any(key in labels for key in ACCELERATOR_LABELS)


def _guess(key: str, asked: Accelerators) -> str:
    """The value a node would carry that is not there yet."""
    if key == "cloud.google.com/gke-accelerator":
        return f"nvidia-tesla-{asked.name.lower()}"
    upper = key in ("gpu.nvidia.com/class", "nebius.com/gpu-name", "nvidia.com/gpu.product")
    return asked.name.upper() if upper else asked.name.lower()


def canonical(value: str) -> str:
    """`Tesla-T4`, `nvidia-tesla-t4`, `NVIDIA-H100-80GB-HBM3`, `H100_NVLINK_80GB` by the name people use."""
    words = re.split(r"[-_ ]", value.upper())
    joined = f"-{'-'.join(words)}-"
    for name in CANONICAL:
        if f"-{name.upper()}-" in joined:
            return name
    plain = value.upper().removeprefix("NVIDIA-")
    return plain.replace("GEFORCE-", "").replace("RTX-", "RTX")


def _means(value: str, asked: Accelerators) -> bool:
    found = canonical(value)
    memory = MEMORY_GB.get(found, 0)
    if asked.memory_gb:
        return memory >= asked.memory_gb if asked.or_more else memory == asked.memory_gb
    wanted = canonical(asked.name)
    if found.upper() == wanted.upper():
        return True
    return _prefix(found, wanted) and memory >= MEMORY_GB.get(wanted, 0)


def _prefix(one: str, other: str) -> bool:
    """`A100` and `A100-80GB` are one family."""
    a, b = one.upper(), other.upper()
    return a.startswith(f"{b}-") or b.startswith(f"{a}-")


def devices(nodes: Iterable[Mapping[str, Any]], resource: str) -> list[Labels]:
    """The labels of the Node objects that offer such a device."""
    found: list[Labels] = []
    for node in nodes:
        offered = ((node.get("status") or {}).get("allocatable") or {}).get(resource)
        if offered not in (None, "0", 0):
            found.append((node.get("metadata") or {}).get("labels") or {})
    return found

"""LimitRanges: what they give to pods that ask for nothing, and what of pods and claims they refuse, in the API server's words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal

from makeway.kinds.serving.kind import Rules
from makeway.kinds.serving.quantity import canonical, canonical_map, parse
from makeway.kinds.serving.refusal import Cause, Obj, forbidden, invalid_value

NOTE = "kubernetes.io/limit-ranger"
CLAIM = "PersistentVolumeClaim"
_AMOUNTS = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")
_FIELDS = (("initContainers", "init container"), ("containers", "container"))
# For each pair: which amount must not be above which, where it is said, whose value is shown, and how.
_ORDER = (
    ("min", "max", "min", "min", "min value {} is greater than max value {}"),
    ("min", "defaultRequest", "defaultRequest", "defaultRequest",
     "min value {} is greater than default request value {}"),
    ("defaultRequest", "max", "defaultRequest", "defaultRequest",
     "default request value {} is greater than max value {}"),
    ("defaultRequest", "default", "defaultRequest", "defaultRequest",
     "default request value {} is greater than default limit value {}"),
    ("min", "default", "default", "min", "min value {} is greater than default value {}"),
    ("default", "max", "default", "max", "default value {} is greater than max value {}"),
)  # fmt: skip


class LimitRangeRules(Rules):
    def default(self, obj: Obj) -> None:
        """No default means the maximum, and no default request the default, else the minimum."""
        for item in _items(obj):
            for field in _AMOUNTS:
                canonical_map(item.get(field) or {})
            if item.get("type") != "Container":
                continue
            for source, target in (
                ("max", "default"),
                ("default", "defaultRequest"),
                ("min", "defaultRequest"),
            ):
                for resource, amount in (item.get(source) or {}).items():
                    item.setdefault(target, {}).setdefault(resource, amount)

    def validate(self, obj: Obj) -> list[Cause]:
        return [
            cause
            for index, item in enumerate(_items(obj))
            for resource in sorted({r for field in _AMOUNTS for r in item.get(field) or {}})
            for cause in _causes(item, resource, f"spec.limits[{index}]")
        ]


def _causes(item: Obj, resource: str, path: str) -> Iterator[Cause]:
    said = {f: item[f][resource] for f in _AMOUNTS if resource in (item.get(f) or {})}
    for low, high, field, shown, text in _ORDER:
        if low in said and high in said and parse(said[low]) > parse(said[high]):
            why = text.format(said[low], said[high])
            yield invalid_value(f"{path}.{field}[{resource}]", said[shown], why)
    ratio = said.get("maxLimitRequestRatio")
    if ratio is not None and parse(ratio) < 1:
        field = f"{path}.maxLimitRequestRatio[{resource}]"
        yield invalid_value(field, ratio, f"ratio {ratio} is less than 1")


def _items(obj: Obj) -> list[Obj]:
    found: list[Obj] = (obj.get("spec") or {}).get("limits") or []
    return found


# ---- pods ----------------------------------------------------------------------------------------


def apply_limit_ranges(pod: Obj, ranges: Iterable[Obj]) -> None:
    """Defaults for what a container leaves open, then everything that is above or below what is allowed."""
    items = [item for found in ranges for item in _items(found)]
    notes = [
        note
        for item in items
        if item.get("type") == "Container"
        for field, word in _FIELDS
        for container in pod["spec"].get(field) or []
        for note in _fill(container, item, word)
    ]
    if notes:
        notes_of_pod = pod["metadata"].setdefault("annotations", {})
        notes_of_pod[NOTE] = "LimitRanger plugin set: " + "; ".join(notes)
    _refuse("pods", pod, (p for item in items for p in _problems(pod["spec"], item)))


def check_claim(claim: Obj, ranges: Iterable[Obj]) -> None:
    asked = (claim["spec"].get("resources") or {}).get("requests") or {}
    items = [item for found in ranges for item in _items(found) if item.get("type") == CLAIM]
    _refuse("persistentvolumeclaims", claim, (p for item in items for p in _out(item, asked)))


def _out(item: Obj, asked: Obj) -> Iterator[str]:
    for field, word in (("min", "minimum"), ("max", "maximum")):
        for name, bound in (item.get(field) or {}).items():
            gap = parse(asked.get(name, bound)) - parse(bound)
            if (gap < 0) if field == "min" else (gap > 0):
                yield f"{word} {name} usage per {CLAIM} is {bound}, but request is {asked[name]}"


def _refuse(resource: str, obj: Obj, problems: Iterable[str]) -> None:
    said = list(dict.fromkeys(problems))
    if said:
        why = said[0] if len(said) == 1 else f"[{', '.join(said)}]"
        raise forbidden(resource, "", obj["metadata"].get("name", ""), why)


def _fill(container: Obj, item: Obj, word: str) -> Iterator[str]:
    """What it is given, and a note of that."""
    resources = container.setdefault("resources", {})
    for kind, given in (("requests", item.get("defaultRequest")), ("limits", item.get("default"))):
        known = resources.get(kind) or {}
        missing = sorted(name for name in given or {} if name not in known)
        if missing:
            resources[kind] = known | {name: canonical((given or {})[name]) for name in missing}
            yield f"{', '.join(missing)} {kind[:-1]} for {word} {container['name']}"


def _problems(spec: Obj, item: Obj) -> Iterator[str]:
    kind = item.get("type")
    if kind == "Container":
        for field in ("containers", "initContainers"):
            for container in spec.get(field) or []:
                asked, bounds = _amounts(container, "requests"), _amounts(container, "limits")
                yield from _beyond(item, kind, asked, bounds)
    elif kind == "Pod":
        yield from _beyond(item, kind, _total(spec, "requests"), _total(spec, "limits"))


def _beyond(item: Obj, kind: str, asked: Obj, bounds: Obj) -> Iterator[str]:
    for name, least in sorted((item.get("min") or {}).items()):
        head = f"minimum {name} usage per {kind} is {least}"
        if name not in asked:
            yield f"{head}.  No request is specified"
        elif parse(asked[name]) < parse(least):
            yield f"{head}, but request is {asked[name]}"
        elif name in bounds and parse(bounds[name]) < parse(least):
            yield f"{head}, but limit is {bounds[name]}"
    for name, most in sorted((item.get("max") or {}).items()):
        head = f"maximum {name} usage per {kind} is {most}"
        if name not in bounds:
            yield f"{head}.  No limit is specified"
        elif parse(bounds[name]) > parse(most):
            yield f"{head}, but limit is {bounds[name]}"
        elif name in asked and parse(asked[name]) > parse(most):
            yield f"{head}, but request is {asked[name]}"
    for name, ratio in sorted((item.get("maxLimitRequestRatio") or {}).items()):
        head = f"{name} max limit to request ratio per {kind} is {ratio}"
        if not parse(asked.get(name, "0")):
            yield f"{head}, but no request is specified or request is 0"
        elif not parse(bounds.get(name, "0")):
            yield f"{head}, but no limit is specified or limit is 0"
        elif (given := parse(bounds[name]) / parse(asked[name])) > parse(ratio):
            yield f"{head}, but provided ratio is {given:.6f}"


def _total(spec: Obj, kind: str) -> Obj:
    """What the pod as a whole asks for or may use at its peak."""
    containers, first = spec.get("containers") or [], spec.get("initContainers") or []
    beside = [c for c in first if c.get("restartPolicy") == "Always"]
    peaks = [_sum([*containers, *beside], kind)]
    for number, container in enumerate(first):
        # It runs before the others, beside the sidecars that have started.
        started = [c for c in first[:number] if c.get("restartPolicy") == "Always"]
        peaks.append(_sum([*started, container], kind))
    units = {
        name: amount
        for container in reversed([*containers, *first])
        for name, amount in _amounts(container, kind).items()
    }
    most = {name: max(peak.get(name, Decimal(0)) for peak in peaks) for name in units}
    # Its unit is that of the first who named it.
    return {name: canonical(_in_unit_of(units[name], amount)) for name, amount in most.items()}


def _sum(containers: list[Obj], kind: str) -> dict[str, Decimal]:
    total: dict[str, Decimal] = {}
    for container in containers:
        for name, amount in _amounts(container, kind).items():
            total[name] = total.get(name, Decimal(0)) + parse(amount)
    return total


def _amounts(container: Obj, kind: str) -> Obj:
    found: Obj = (container.get("resources") or {}).get(kind) or {}
    return found


def _in_unit_of(text: str, value: Decimal) -> str:
    binary = text.rstrip("i") != text
    return f"{format(value / 1024, 'f')}Ki" if binary else format(value, "f")

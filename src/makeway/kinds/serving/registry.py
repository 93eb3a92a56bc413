"""All served kinds, found by resource key or by the path of a request. The rows are in the modules named in `build`."""

from __future__ import annotations

from collections.abc import Iterator

from makeway.kinds.serving import jobs, kubernetes_kinds, queue_kinds, stored_kinds
from makeway.kinds.serving.kind import Kind


class Registry:
    """Kinds by resource key (`plural` or `plural.group`) and by the path of a request."""

    def __init__(self, kinds: tuple[Kind, ...]) -> None:
        self._by_resource = {kind.resource: kind for kind in kinds}
        self._by_path: dict[tuple[str, str], Kind] = {}
        for kind in kinds:
            self._by_path[kind.group, kind.plural] = kind

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._by_resource.values())

    def __getitem__(self, resource: str) -> Kind:
        return self._by_resource[resource]

    def get(self, group: str, plural: str) -> Kind | None:
        return self._by_path.get((group, plural))

    def of(self, group: str, kind: str) -> Kind | None:
        return next((one for one in self if one.group == group and one.kind == kind), None)

    def add(self, kind: Kind) -> None:
        """A kind that came by CustomResourceDefinition."""
        self._by_resource[kind.resource] = kind
        self._by_path[kind.group, kind.plural] = kind

    def remove(self, resource: str) -> None:
        kind = self._by_resource.pop(resource, None)
        if kind:
            self._by_path.pop((kind.group, kind.plural), None)


def build() -> Registry:
    return Registry(
        (
            *kubernetes_kinds.kinds(),
            *queue_kinds.kinds(),
            *jobs.kinds(),
            *stored_kinds.kinds(),
        )
    )

"""`spec.resourceGroups`, which ClusterQueues and Cohorts share."""

from __future__ import annotations

from makeway.errors import InvalidObject
from makeway.kinds.fields import Json, amount, spec_of, title_of
from makeway.model.queue import FlavorName, FlavorQuotas, Quota, ResourceGroup


def read_resource_groups(obj: Json) -> tuple[ResourceGroup, ...]:
    reader = _Reader(obj)
    groups = spec_of(obj).get("resourceGroups") or ()
    return tuple(reader.group(f"spec.resourceGroups[{i}]", group) for i, group in enumerate(groups))


class _Reader:
    """That a resource or a flavor stands in one group only is the API's to enforce; here the first group counts."""

    def __init__(self, obj: Json) -> None:
        self.obj = obj

    def group(self, path: str, group: Json) -> ResourceGroup:
        covered = tuple(str(name) for name in group.get("coveredResources") or ())
        flavors = tuple(
            self.flavor(f"{path}.flavors[{index}]", flavor, covered)
            for index, flavor in enumerate(group.get("flavors") or ())
        )
        return ResourceGroup(resources=covered, flavors=flavors)

    def flavor(self, path: str, flavor: Json, covered: tuple[str, ...]) -> FlavorQuotas:
        name = str(flavor.get("name") or "")
        items = flavor.get("resources") or ()
        if len(items) != len(covered):
            raise InvalidObject(
                "flavors must have the same number of resources as the coveredResources.",
                obj=title_of(self.obj),
                field=f"{path}.resources",
                hint=f"List a quota for each of: {', '.join(covered)}.",
            )
        quotas = tuple(
            self.quota(f"{path}.resources[{index}]", item, covered[index])
            for index, item in enumerate(items)
        )
        return FlavorQuotas(flavor=FlavorName(name), quotas=quotas)

    def quota(self, path: str, item: Json, covered: str) -> Quota:
        resource = str(item.get("name") or "")
        if resource != covered:
            raise InvalidObject(
                f'Invalid value: "{resource}": must match the name in coveredResources.',
                obj=title_of(self.obj),
                field=f"{path}.name",
                hint=f'Write "{covered}" here: quotas follow the order of coveredResources.',
            )
        return Quota(
            resource=resource,
            nominal=amount(
                self.obj, f"{path}.nominalQuota", resource, item.get("nominalQuota", "0")
            ),
            borrowing_limit=self._limit(path, item, "borrowingLimit", resource),
            lending_limit=self._limit(path, item, "lendingLimit", resource),
        )

    def _limit(self, path: str, item: Json, field: str, resource: str) -> int | None:
        value = item.get(field)
        if value is None:
            return None
        return amount(self.obj, f"{path}.{field}", resource, value)

"""Where a pod's volumes let it run, and which volumes its claims get there.

A claim that is bound ties the pod to where its volume can be reached from. One that waits for its first pod (`WaitForFirstConsumer`)
takes a volume that is there already, if one matches it, or has one made on the node that is chosen for the pod; a class whose
provisioner makes none (local disks) leaves only those that are there. Any other claim has to be bound before the pod can go anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from makeway.kinds.labels import read_node_terms, read_selector
from makeway.kinds.metadata import (
    Json,
    Object,
    key,
    labels,
    metadata,
    name,
    namespace,
    spec,
    status,
    uid,
)
from makeway.model.resources import amount_of
from makeway.model.selectors import NodeTerm, Requirement
from makeway.model.workload import PodShape

WAITS_FOR_POD: Final = "WaitForFirstConsumer"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
PROVISIONER: Final = "volume.kubernetes.io/storage-provisioner"  # who is asked to make a volume
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
UNBOUND: Final = "pod has unbound immediate PersistentVolumeClaims"

Terms = tuple[NodeTerm, ...] | None  # OR-ed; None: anywhere


class Storage(msgspec.Struct, frozen=True):
    """What claims ask: an object by kind and key, and the volumes of a class."""

    find: Callable[[str, str], Json | None]
    of_class: Callable[[str], Iterable[Json]]


class Option(msgspec.Struct, frozen=True):
    """A way to serve a claim: a volume that is there, or (None) one that will be made."""

    volume: Json | None
    terms: Terms


def claim_names(pod: Json) -> list[str]:
    """The claims a pod uses: named ones, and those made for it alone, which a template does not know yet."""
    return list(claims_by_volume(pod).values())


def claims_by_volume(pod: Json) -> dict[str, str]:
    """Which claim each of a pod's volumes is, where it is one."""
    found: dict[str, str] = {}
    for volume in spec(pod).get("volumes") or []:
        volume_name = str(volume.get("name"))
        if volume.get("persistentVolumeClaim"):
            found[volume_name] = str(volume["persistentVolumeClaim"].get("claimName") or "")
        elif volume.get("ephemeral") and name(pod):
            found[volume_name] = f"{name(pod)}-{volume_name}"
    return found


def storage_class(obj: Json) -> str:
    """Of a claim or of a volume."""
    return str(spec(obj).get("storageClassName") or "")


def bound(claim: Json) -> bool:
    return bool(status(claim).get("phase") == "Bound")


# ---- where -----------------------------------------------------------------------------------------


def with_volumes(shape: PodShape, pod: Json, storage: Storage) -> PodShape:
    """The shape with what its claims add to it."""
    terms: list[Terms] = []
    late: list[Json] = []
    for claim_name in claim_names(pod):
        claim = storage.find("PersistentVolumeClaim", f"{shape.namespace}/{claim_name}")
        if claim is None or metadata(claim).get("deletionTimestamp"):
            return _blocked(shape, f'persistentvolumeclaim "{claim_name}" not found')
        if bound(claim):
            volume = storage.find("PersistentVolume", str(spec(claim).get("volumeName") or ""))
            terms.append(_reachable_from(volume or {}))
        elif _binds_late(claim, storage):
            late.append(claim)
        else:
            return _blocked(shape, UNBOUND)
    if not any(terms) and not late:
        return shape
    return msgspec.structs.replace(
        shape,
        volume_terms=_required(terms),
        late_volume_terms=_required(_where_late(late, storage)),
    )


def _required(terms: Iterable[Terms]) -> tuple[tuple[NodeTerm, ...], ...]:
    return tuple(one for one in terms if one is not None)


def _where_late(late: Sequence[Json], storage: Storage) -> list[Terms]:
    options = [_options(claim, storage) for claim in late]
    found = [_any_of(of_one) for of_one in options]
    return [*found, _where_all_are_served(options)] if len(options) > 1 else found


def _blocked(shape: PodShape, why: str) -> PodShape:
    return msgspec.structs.replace(shape, blocked=why)


def _binds_late(claim: Json, storage: Storage) -> bool:
    found = storage.find("StorageClass", storage_class(claim)) or {}
    return found.get("volumeBindingMode") == WAITS_FOR_POD


def _reachable_from(volume: Json) -> Terms:
    return read_node_terms((spec(volume).get("nodeAffinity") or {}).get("required")) or None


def _options(claim: Json, storage: Storage) -> list[Option]:
    """The smallest volume first: a larger one may be what another claim needs."""
    volumes = [v for v in storage.of_class(storage_class(claim)) if serves(v, claim)]
    given = [v for v in volumes if given_to(v, claim)]
    if given:
        return [Option(volume, _reachable_from(volume)) for volume in given[:1]]
    volumes.sort(key=lambda v: (capacity(v), name(v)))
    made = storage.find("StorageClass", storage_class(claim)) or {}
    found = [Option(volume, _reachable_from(volume)) for volume in volumes]
    if made.get("provisioner") != NO_PROVISIONER:
        found.append(Option(None, _allowed_topologies(made)))
    return found


def _allowed_topologies(made: Json) -> Terms:
    found = tuple(
        NodeTerm(
            labels=tuple(
                Requirement(
                    key=str(one.get("key", "")),
                    operator="In",
                    values=tuple(map(str, one.get("values") or ())),
                )
                for one in term.get("matchLabelExpressions") or ()
            )
        )
        for term in made.get("allowedTopologies") or ()
    )
    return found or None


def _any_of(options: Sequence[Option]) -> Terms:
    if any(option.terms is None for option in options):
        return None
    found = (term for option in options for term in option.terms or ())
    return tuple(dict.fromkeys(found))


def _where_all_are_served(options: Sequence[Sequence[Option]]) -> Terms:
    """Two claims cannot share a volume: the places that have one for each."""
    places = {option.terms for of_one in options for option in of_one}
    good: list[NodeTerm] = []
    for place in places:
        here = [[o for o in of_one if not _apart(o.terms, place)] for of_one in options]
        if _distribute(here) is None:
            continue
        if place is None:
            return None
        good += place
    return tuple(sorted(dict.fromkeys(good), key=msgspec.json.encode))


def _apart(one: Terms, other: Terms) -> bool:
    """Whether no node can be in both: as far as single labels tell, which is all that local volumes use."""
    if one is None or other is None or len(one) != 1 or len(other) != 1:
        return False
    values = {r.key: set(r.values) for r in one[0].labels if r.operator == "In"}
    return any(
        r.operator == "In" and r.key in values and values[r.key].isdisjoint(r.values)
        for r in other[0].labels
    )


def _distribute(options: Sequence[Sequence[Option]]) -> list[Option] | None:
    """An option for each claim, no volume twice; None if there is no way."""
    takers: dict[str, int] = {}  # who has which volume
    chosen: list[Option | None] = [None] * len(options)

    def serve(claim: int, tried: set[str]) -> bool:
        for option in options[claim]:
            volume = name(option.volume) if option.volume is not None else ""
            if volume in tried:
                continue
            if volume:
                tried.add(volume)
                if volume in takers and not serve(takers[volume], tried):
                    continue
                takers[volume] = claim
            chosen[claim] = option
            return True
        return False

    if not all(serve(claim, set()) for claim in range(len(options))):
        return None
    return [option for option in chosen if option is not None]


# ---- which -----------------------------------------------------------------------------------------


def late_claims(pod: Json, storage: Storage) -> list[Json]:
    """Claims that wait for a node to be chosen, or for the volume that they get there."""
    found = (
        storage.find("PersistentVolumeClaim", f"{namespace(pod)}/{claim}")
        for claim in claim_names(pod)
    )
    return [c for c in found if c is not None and not bound(c) and _binds_late(c, storage)]


def served_on(
    node: Json, claims: Sequence[Json], storage: Storage
) -> list[tuple[Json, Json | None]] | None:
    """Each claim with the volume that it gets on this node, or with None where one is made; None if one gets nothing."""
    own = labels(node)
    options = [
        [option for option in _options(claim, storage) if _includes(option.terms, node, own)]
        for claim in claims
    ]
    found = _distribute(options)
    if found is None:
        return None
    return [(claim, option.volume) for claim, option in zip(claims, found, strict=True)]


def _includes(terms: Terms, node: Json, own: Mapping[str, str]) -> bool:
    return terms is None or any(term.matches(name(node), own) for term in terms)


def give(volume: Json, claim: Json) -> Object | None:
    """The patch that keeps a volume for a claim, as kube-scheduler writes it; None if it is so already."""
    if given_to(volume, claim):
        return None
    reference = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": namespace(claim),
        "name": name(claim),
        "uid": uid(claim),
    }
    return {
        "metadata": {"annotations": {BOUND_BY_CONTROLLER: "yes"}},
        "spec": {"claimRef": reference},
    }


def given_to(volume: Json, claim: Json) -> bool:
    kept = spec(volume).get("claimRef") or {}
    same = f"{kept.get('namespace')}/{kept.get('name')}" == key(claim)
    return same and kept.get("uid") in (None, "", uid(claim))


def serves(volume: Json, claim: Json) -> bool:
    """Whether the claim may have this volume: nobody else has it, and it is what was asked for."""
    asked, offered = spec(claim), spec(volume)
    if metadata(volume).get("deletionTimestamp") or asked.get("volumeName") not in (
        None,
        "",
        name(volume),
    ):
        return False
    if given_to(volume, claim):
        return True
    if offered.get("claimRef") or status(volume).get("phase") != "Available":
        return False
    selector = read_selector(asked.get("selector") or {})
    return (
        set(asked.get("accessModes") or ()) <= set(offered.get("accessModes") or ())
        and asked.get("volumeMode", "Filesystem") == offered.get("volumeMode", "Filesystem")
        and asked.get("volumeAttributesClassName") == offered.get("volumeAttributesClassName")
        and capacity(volume) >= _requested(claim)
        and selector is not None
        and selector.matches(labels(volume))
    )


def capacity(volume: Json) -> int:
    return amount_of("storage", (spec(volume).get("capacity") or {}).get("storage") or "0")


def _requested(claim: Json) -> int:
    asked = (spec(claim).get("resources") or {}).get("requests") or {}
    return amount_of("storage", asked.get("storage") or "0")

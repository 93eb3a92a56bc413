"""Puts makeway into a cluster, renews it there, and takes it away again, without harm to what runs.

Definitions of kinds are ours only where the cluster has none: another owner's (Kueue's, Koordinator's, KubeAI's) stay as
they are. Uninstalling takes away the program, its rights and its policies; definitions and with them everybody's queues and
workloads stay unless asked for, since deleting a definition deletes all its objects. What only makeway could remove later
(its finalizers) it removes itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from makeway.certificates import Pems, make_certificates
from makeway.client import ApiError, Client, Resource
from makeway.client.resource import SECRETS
from makeway.control.ports import Clock
from makeway.errors import UserError
from makeway.kinds.crds import custom_resource_definitions
from makeway.kube.manifests import (
    CONFIG_FILE,
    DEFAULT_REPLICAS,
    NAME,
    PART_OF,
    WEBHOOK_SECRET,
    Options,
    cluster_objects,
    webhook_names,
)
from makeway.kube.neighbours import kueue_runs
from makeway.kube.resources import RESOURCES
from makeway.kube.webhook import pems_of

Object = dict[str, Any]
Tell = Callable[[str], None]

MANAGER: Final = "makeway-install"
DEFINITIONS: Final = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", False)
ESTABLISHED_WITHIN_S: Final = 30.0
FINALIZERS: Final = frozenset({"kueue.x-k8s.io/resource-in-use", "kueue.x-k8s.io/managed"})
WITH_FINALIZERS: Final = ("ClusterQueue", "ResourceFlavor", "Workload", "Pod")

PLACES: Final = {
    "Namespace": Resource("", "v1", "namespaces", False),
    "ServiceAccount": Resource("", "v1", "serviceaccounts"),
    "ConfigMap": Resource("", "v1", "configmaps"),
    "Service": Resource("", "v1", "services"),
    "Secret": SECRETS,
    "Deployment": Resource("apps", "v1", "deployments"),
    "ClusterRole": Resource("rbac.authorization.k8s.io", "v1", "clusterroles", False),
    "ClusterRoleBinding": Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", False),
    "Role": Resource("rbac.authorization.k8s.io", "v1", "roles"),
    "RoleBinding": Resource("rbac.authorization.k8s.io", "v1", "rolebindings"),
    "PriorityClass": Resource("scheduling.k8s.io", "v1", "priorityclasses", False),
    "MutatingAdmissionPolicy": Resource(
        "admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies", False
    ),
    "MutatingAdmissionPolicyBinding": Resource(
        "admissionregistration.k8s.io", "v1", "mutatingadmissionpolicybindings", False
    ),
    "MutatingWebhookConfiguration": Resource(
        "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", False
    ),
    "ValidatingAdmissionPolicy": Resource(
        "admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", False
    ),
    "ValidatingAdmissionPolicyBinding": Resource(
        "admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", False
    ),
    "CustomResourceDefinition": DEFINITIONS,
}


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What is in the cluster already and changes what we do."""

    foreign: tuple[str, ...]  # definitions of others
    unreadable: tuple[
        str, ...
    ]  # definitions whose objects cannot be read: their conversion webhook is dead
    kueue_runs: bool
    admission_policies: bool

    def notes(self) -> list[str]:
        said = []
        if self.foreign:
            said.append(
                f"{len(self.foreign)} definitions of others stay as they are: {', '.join(self.foreign)}."
            )
        said += [
            f"The conversion webhook of {name} does not answer: its objects cannot be read."
            f" Start its owner again, or delete that webhook from the definition."
            for name in self.unreadable
        ]
        if self.kueue_runs:
            said.append(
                "Kueue runs here (its lease is fresh): it admits, makeway only places pods on nodes."
                " Scale Kueue down and makeway takes over what it admitted."
            )
        if not self.admission_policies:
            said.append(
                "This API server has no MutatingAdmissionPolicy v1 (Kubernetes 1.36): a webhook does the same, and what"
                " names a queue can only be submitted while a replica of makeway answers."
            )
        return said


async def look_around(client: Client, clock: Clock) -> Found:
    existing = {one["metadata"]["name"]: one for one in await client.list(DEFINITIONS)}
    wanted = [crd["metadata"]["name"] for crd in custom_resource_definitions()]
    foreign = tuple(name for name in wanted if name in existing and not is_ours(existing[name]))
    unreadable = [name for name in foreign if not await _readable(client, existing[name])]
    return Found(
        foreign=foreign,
        unreadable=tuple(unreadable),
        kueue_runs=await kueue_runs(client, clock),
        admission_policies=await _serves_policies(client),
    )


async def install(
    client: Client, options: Options, clock: Clock, tell: Tell, *, webhook: bool | None = None
) -> Found:
    """Apply everything; what is there already is brought up to date. Also the upgrade.

    With or without a `webhook` where the API server has admission policies; without a say as it was installed before.
    """
    found = await look_around(client, clock)
    for note in found.notes():
        tell(note)
    crds = [c for c in custom_resource_definitions() if c["metadata"]["name"] not in found.foreign]
    for crd in crds:
        await apply(client, crd)
    await asyncio.gather(*(_established(client, crd["metadata"]["name"]) for crd in crds))
    tell(f"{len(crds)} definitions are in place.")
    if await _by_webhook(client, found, webhook, tell):
        options = msgspec.structs.replace(
            options, webhook=await _certificates(client, options, clock)
        )
    options = await as_it_was(client, options, tell)
    chosen = cluster_objects(options)
    for one in chosen:
        await apply(client, one)
    for one in _either_way(options):
        if _id(one) not in map(_id, chosen):
            # Of the way that was not chosen: a webhook that nobody serves any more would refuse everybody's work.
            await _remove(client, one)
    tell(f"makeway is installed in namespace {options.namespace}.")
    return found


async def uninstall(
    client: Client, options: Options, tell: Tell, *, definitions: bool = False
) -> None:
    """Take it away in the opposite order: nothing is left that waits for a makeway that is gone."""
    for one in reversed(_either_way(options)):
        if one["kind"] != "Namespace":
            await _remove(client, one)
    freed = await _drop_finalizers(client)
    tell(f"makeway is gone; {freed} objects no longer wait for it. Workloads that run go on.")
    if definitions:
        ours = [crd for crd in await client.list(DEFINITIONS) if is_ours(crd)]
        for crd in ours:
            await _remove(client, crd | {"kind": "CustomResourceDefinition"})
        tell(f"{len(ours)} definitions are gone, and their objects with them.")
    else:
        tell("Queues and workloads stay, with their definitions. To delete them too: --definitions")
    await _remove(client, cluster_objects(options)[0])


async def _by_webhook(client: Client, found: Found, asked: bool | None, tell: Tell) -> bool:
    if not found.admission_policies or asked is not None:
        return not found.admission_policies or bool(asked)
    there = await _get_if_there(client, "MutatingWebhookConfiguration", "") is not None
    if there:
        tell("The webhook stays; admission policies instead: --no-webhook")
    return there


def _either_way(options: Options) -> list[Object]:
    """What belongs to makeway with policies or with a webhook."""
    ways = (
        cluster_objects(msgspec.structs.replace(options, webhook=pems))
        for pems in (None, Pems(b"", b"", b""))
    )
    return list({_id(one): one for way in ways for one in way}.values())


def _id(obj: Object) -> tuple[str, str]:
    return obj["kind"], obj["metadata"]["name"]


async def as_it_was(client: Client, options: Options, tell: Tell) -> Options:
    """Whoever says nothing about image, replicas or configuration keeps those of an earlier install."""
    kept: dict[str, Any] = {}
    deployment = await _get_if_there(client, "Deployment", options.namespace)
    if deployment is not None:
        containers = deployment["spec"]["template"]["spec"]["containers"]
        container = next(c for c in containers if c["name"] == NAME)  # others may stand beside it
        # A default image is of the version that installed it, and is renewed.
        if not options.image and not container["image"].startswith(f"{NAME}:"):
            kept["image"] = container["image"]
        if options.replicas is None:
            kept["replicas"] = deployment["spec"].get("replicas", DEFAULT_REPLICAS)
    config = await _get_if_there(client, "ConfigMap", options.namespace)
    if config is not None and not options.config:
        kept["config"] = (config.get("data") or {}).get(CONFIG_FILE, "")
    if "image" in kept:
        tell(f"The image stays {kept['image']}; another one: --image")
    return msgspec.structs.replace(options, **kept)


async def _get_if_there(client: Client, kind: str, namespace: str) -> Object | None:
    """The object of ours of this kind."""
    try:
        return await client.get(PLACES[kind], NAME, namespace)
    except ApiError as error:
        if not error.not_found:
            raise
        return None


async def _certificates(client: Client, options: Options, clock: Clock) -> Pems:
    """Those of an earlier install, so that replicas that run go on to be believed; else new ones."""
    try:
        known = pems_of(await client.get(SECRETS, WEBHOOK_SECRET, options.namespace))
    except ApiError as error:
        if not error.not_found:
            raise
        known = None
    return known or new_certificates(options, clock)


def new_certificates(options: Options, clock: Clock) -> Pems:
    return make_certificates("makeway webhook", clock.now(), webhook_names(options.namespace))


async def apply(client: Client, obj: Object) -> None:
    metadata = obj["metadata"]
    try:
        await client.patch(
            PLACES[obj["kind"]],
            metadata["name"],
            obj,
            metadata.get("namespace", ""),
            kind="apply",
            field_manager=MANAGER,
            force=True,
        )
    except ApiError as error:
        raise UserError(
            f"the API server refused it: {error.message}",
            where=f"{obj['kind']} {metadata['name']}",
            hint="Installing takes an administrator's rights.",
        ) from error


def is_ours(obj: Object) -> bool:
    labels = obj["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in PART_OF.items())


async def _readable(client: Client, crd: Object) -> bool:
    """Whether objects can be read in every served version: a dead conversion webhook fails exactly there."""
    if (crd["spec"].get("conversion") or {}).get("strategy") != "Webhook":
        return True
    for version in crd["spec"]["versions"]:
        if not version.get("served"):
            continue
        path = f"/apis/{crd['spec']['group']}/{version['name']}/{crd['spec']['names']['plural']}"
        try:
            await client.request("GET", path, params={"limit": "1"})
        except ApiError as error:
            if "conversion webhook" in error.message:
                return False
            raise
    return True


async def _serves_policies(client: Client) -> bool:
    try:
        answer = await client.request("GET", "/apis/admissionregistration.k8s.io/v1")
    except ApiError as error:
        if error.not_found:
            return False
        raise
    return any(r["name"] == "mutatingadmissionpolicies" for r in answer.get("resources") or [])


async def _established(client: Client, name: str) -> None:
    try:
        async with asyncio.timeout(ESTABLISHED_WITHIN_S):
            while not _is_established(await client.get(DEFINITIONS, name)):
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise UserError(
            f"was not established within {ESTABLISHED_WITHIN_S:.0f} s.",
            where=f"CustomResourceDefinition {name}",
            hint=f"See why: kubectl describe crd {name}",
        ) from None


def _is_established(crd: Object) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


async def _remove(client: Client, obj: Object) -> None:
    metadata = obj["metadata"]
    try:
        await client.delete(PLACES[obj["kind"]], metadata["name"], metadata.get("namespace", ""))
    except ApiError as error:
        if not error.not_found:
            raise


async def _drop_finalizers(client: Client) -> int:
    """Nobody would remove them any more, and a namespace could never be deleted."""
    freed = 0
    for kind in WITH_FINALIZERS:
        try:
            found = await client.list(RESOURCES[kind])
        except ApiError as error:
            if error.not_found:
                continue
            raise
        for obj in found:
            kept = [f for f in obj["metadata"].get("finalizers") or [] if f not in FINALIZERS]
            if len(kept) == len(obj["metadata"].get("finalizers") or []):
                continue
            freed += 1
            await _patch_if_there(client, kind, obj, {"metadata": {"finalizers": kept or None}})
    return freed


async def _patch_if_there(client: Client, kind: str, obj: Object, body: Object) -> None:
    metadata = obj["metadata"]
    try:
        await client.patch(RESOURCES[kind], metadata["name"], body, metadata.get("namespace", ""))
    except ApiError as error:
        if not error.not_found:
            raise

"""The two worlds that the suite runs in: the embedded API, and a real kube-apiserver with etcd.

Both give the same: an API, its controllers, pretended nodes, and an identity for the scheduler. On the real one the
scheduler is the installed ServiceAccount with the shipped ClusterRole, the nodes have the kubelet's rights, and the control
plane is started once and emptied between tests, since a fresh one takes five seconds.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Protocol

import yaml
from tools.control_plane import KUBELETS, ControlPlane, kubelet_rights
from tools.kube_binaries import available

from makeway.client import ApiError, Client, Connection, Resource, embedded, from_kubeconfig
from makeway.client.resource import (
    CONFIG_MAPS,
    CORE_EVENTS,
    DEPLOYMENTS,
    JOBS,
    LEASES,
    MODELS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    REPLICA_SETS,
    SECRETS,
)
from makeway.control.clock import SystemClock
from makeway.embedded.controllers import run_controllers, run_models
from makeway.embedded.node.pretend import run_pretended
from makeway.embedded.server import serving
from makeway.kube.install import install
from makeway.kube.manifests import LEASE, NAME, NAMESPACE, Options
from makeway.kube.resources import RESOURCES
from tests.e2e.history import WatchedStore, watched

Object = dict[str, Any]

BACKEND: Final = "MAKEWAY_BACKEND"
WITHOUT_ADMISSION: Final = "MAKEWAY_WITHOUT_ADMISSION"  # plugins that the API server runs without
AUDIT: Final = "MAKEWAY_AUDIT"  # a folder for the audit logs of all control planes of a run
# An existing cluster is emptied before each test; whoever owns it has to agree by making this ConfigMap.
CONSENT: Final = "makeway-tests-may-delete-everything"
SYSTEM_NAMESPACES: Final = frozenset(
    {"kube-system", "kube-public", "kube-node-lease", "default", NAMESPACE}
)


class Backend(Protocol):
    """A place with an API: who we are there, and when it is quiet."""

    name: str
    home: Path
    kubeconfig: Path
    quiet_s: float  # how long nothing may happen before it counts as settled

    async def version(self) -> int:
        """Grows with every write."""

    def scheduler(self) -> Connection:
        """As whom the scheduler connects."""

    def tasks(self, client: Client) -> list[Any]:
        """Coroutines that belong to this world: controllers, nodes."""


class Embedded:
    name = "embedded"
    quiet_s = 0.3

    def __init__(self, server: Any, without: Collection[str] = ()) -> None:
        self.server = server
        self._without = without
        self.home: Path = server.home
        self.kubeconfig: Path = server.kubeconfig

    async def version(self) -> int:
        return int(self.server.app.store.version)

    def scheduler(self) -> Connection:
        return embedded(self.server.socket_path, self.server.token)

    def tasks(self, client: Client) -> list[Any]:
        return [run_controllers(client, without=self._without), run_pretended(client)]


@contextlib.asynccontextmanager
async def embedded_backend(port: int = 0, without: Collection[str] = ()) -> AsyncIterator[Embedded]:
    home = Path(tempfile.mkdtemp(prefix="makeway-test-"))
    try:
        async with serving(home, port) as server:
            yield Embedded(server, without)
    finally:
        shutil.rmtree(home, ignore_errors=True)


# ---- the real one --------------------------------------------------------------------------------


class Kube:
    name = "kube"
    # The Job controller gathers changes of pods for a second before it looks at them.
    quiet_s = 1.3

    def __init__(
        self, admin: Client, kubeconfig: Path, scheduler: Path, nodes: Path, store: WatchedStore
    ) -> None:
        self.admin = admin
        # For tests that look into the embedded API's store.
        self.app = SimpleNamespace(store=store)
        self.home = kubeconfig.parent
        self.kubeconfig = kubeconfig
        self.scheduler_kubeconfig = scheduler
        self._nodes = nodes

    async def version(self) -> int:
        """The revision of etcd, as any list tells it."""
        page = await self.admin.request("GET", NAMESPACES.path(), params={"limit": "1"})
        return int(page["metadata"]["resourceVersion"])

    def scheduler(self) -> Connection:
        return from_kubeconfig(self.scheduler_kubeconfig)

    def tasks(self, client: Client) -> list[Any]:
        return [run_models(client), self._pretend()]

    async def _pretend(self) -> None:
        async with Client(from_kubeconfig(self._nodes), user_agent=KUBELETS) as kubelets:
            await run_pretended(kubelets)


class _Running:
    """The control plane of this process; started at the first test that needs it."""

    plane: ControlPlane | None = None
    installed = False


def kube_available() -> bool:
    return available() is not None or os.environ.get("MAKEWAY_CLUSTER") == "existing"


def control_plane() -> ControlPlane:
    if _Running.plane is None:
        stack = contextlib.ExitStack()
        without = os.environ.get(WITHOUT_ADMISSION, "")
        kept = os.environ.get(AUDIT)
        _Running.plane = stack.enter_context(
            ControlPlane.start(
                without_admission=without,
                audit_log=Path(kept) / f"{os.getpid()}.log" if kept else None,
            )
        )
        atexit.register(stack.close)
    return _Running.plane


def audit_logs() -> list[Path]:
    """What was done so far: on the control plane of this process, or on all of a run that keeps them."""
    kept = os.environ.get(AUDIT)
    if kept:
        return sorted(Path(kept).glob("*.log"))
    return [_Running.plane.audit_log] if _Running.plane is not None else []


@contextlib.asynccontextmanager
async def kube_backend() -> AsyncIterator[Kube]:
    if os.environ.get("MAKEWAY_CLUSTER") == "existing":
        admin_config = Path(os.environ["KUBECONFIG"])
        nodes = admin_config
    else:
        plane = await asyncio.to_thread(control_plane)
        admin_config, nodes = plane.kubeconfig, plane.kubeconfig_of(KUBELETS)
    async with Client(from_kubeconfig(admin_config), user_agent="makeway-tests") as admin:
        if os.environ.get("MAKEWAY_CLUSTER") == "existing":
            await _ask_for_consent(admin)
        await empty(admin)
        if not _Running.installed:
            await _install(admin)
            _Running.installed = True
        scheduler = await _service_account(admin, admin_config)
        async with watched(admin) as store:
            yield Kube(admin, admin_config, scheduler, nodes, store)


async def _ask_for_consent(admin: Client) -> None:
    try:
        await admin.get(CONFIG_MAPS, CONSENT, "kube-system")
    except ApiError as error:
        raise AssertionError(
            f"the tests delete everything in this cluster; if that is fine: "
            f"kubectl create configmap -n kube-system {CONSENT}"
        ) from error


async def _install(admin: Client) -> None:
    """As a user would, without replicas: the program under test runs here."""
    await install(admin, Options(replicas=0), SystemClock(), lambda _: None)
    roles = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", False)
    with contextlib.suppress(ApiError):
        await admin.create(roles, kubelet_rights())
    await _default_accounts(admin)


async def _default_accounts(admin: Client) -> None:
    accounts = Resource("", "v1", "serviceaccounts")
    async with asyncio.timeout(30):
        while True:
            try:
                await admin.get(accounts, "default", "default")
                return
            except ApiError:
                await asyncio.sleep(0.1)


async def _service_account(admin: Client, admin_config: Path) -> Path:
    """A kubeconfig with the installed ServiceAccount's token."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await admin.request("POST", path, body=body)
    token = answer["status"]["token"]
    if _Running.plane is not None:
        return _Running.plane.kubeconfig_with("makeway", token)
    return _with_token(admin_config, token)


def _with_token(kubeconfig: Path, token: str) -> Path:
    """The same cluster, as somebody else."""
    config = yaml.safe_load(kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path = Path(tempfile.mkdtemp(prefix="makeway-test-")) / "makeway.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


# ---- emptying ------------------------------------------------------------------------------------

_OTHERS: Final = tuple(
    Resource("", "v1", plural)
    for plural in ("services", "persistentvolumeclaims", "limitranges", "resourcequotas")
)
# Owners first, so that nobody makes again what is taken away.
_OWNERS: Final = (DEPLOYMENTS, REPLICA_SETS, JOBS, MODELS)
_EMPTIED: Final = (
    RESOURCES["Workload"],
    PODS,
    *(RESOURCES[kind] for kind in RESOURCES if kind not in ("Workload", "Pod", "Job", "Namespace")),
    CONFIG_MAPS,
    SECRETS,
    LEASES,
    *_OTHERS,
    CORE_EVENTS,
)
_KEPT_NAMES: Final = frozenset({"kube-root-ca.crt", "kubernetes", "makeway-critical"})


async def empty(admin: Client) -> None:
    """Nothing is left but what a new cluster has."""
    await asyncio.gather(*(_empty(admin, resource) for resource in _OWNERS))
    await asyncio.gather(*(_empty(admin, resource) for resource in _EMPTIED))
    # Controllers may have made pods in between.
    while await _empty(admin, PODS):
        await asyncio.sleep(0.1)
    await _empty(admin, CORE_EVENTS)
    await _drop_namespaces(admin)
    # A replica of the last test may have been killed while it led.
    with contextlib.suppress(ApiError):
        await admin.delete(LEASES, LEASE, NAMESPACE)


async def _empty(admin: Client, resource: Resource) -> int:
    try:
        found = await admin.list(resource)
    except ApiError as error:
        if error.not_found:
            return 0
        raise
    leftovers = [obj for obj in found if not _is_kept(resource, obj)]
    await asyncio.gather(*(_remove(admin, resource, obj) for obj in leftovers))
    return len(leftovers)


def _is_kept(resource: Resource, obj: Object) -> bool:
    metadata = obj["metadata"]
    if resource in (PRIORITY_CLASSES, NODES) and metadata["name"].startswith("system-"):
        return True
    if resource == CORE_EVENTS:
        return False
    if metadata["name"] in _KEPT_NAMES:
        return True
    return metadata.get("namespace", "") in SYSTEM_NAMESPACES - {"default"}


async def _remove(admin: Client, resource: Resource, obj: Object) -> None:
    metadata = obj["metadata"]
    place = metadata.get("namespace", "")
    try:
        if metadata.get("finalizers"):
            await admin.patch(resource, metadata["name"], {"metadata": {"finalizers": None}}, place)
        await admin.delete(resource, metadata["name"], place, grace_s=0, propagation="Background")
    except ApiError as error:
        if not error.not_found and not error.conflict:
            raise


async def _drop_namespaces(admin: Client) -> None:
    for space in await admin.list(NAMESPACES):
        name = space["metadata"]["name"]
        if name in SYSTEM_NAMESPACES:
            continue
        with contextlib.suppress(ApiError):
            await admin.delete(NAMESPACES, name)
            # They are empty already: nobody needs to look again.
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {}}
            await admin.request("PUT", NAMESPACES.path("", name, "finalize"), body=body)

"""What is served: `/version`, `/api`, `/apis`, in the old form and the aggregated one."""

from __future__ import annotations

from makeway.embedded.api.http import Answer, Request, encode, json_answer
from makeway.kinds.serving.kind import Kind
from makeway.kinds.serving.refusal import Obj
from makeway.kinds.serving.registry import Registry

VERSION: Obj = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.3",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "go1.26",
    "compiler": "gc",
    "platform": "linux/amd64",
}

# Reviews are answered, never stored; they are listed so that clients find them.
_REVIEWS = {
    "authorization.k8s.io": (
        ("selfsubjectaccessreviews", "SelfSubjectAccessReview"),
        ("selfsubjectrulesreviews", "SelfSubjectRulesReview"),
        ("subjectaccessreviews", "SubjectAccessReview"),
    ),
    "authentication.k8s.io": (
        ("selfsubjectreviews", "SelfSubjectReview"),
        ("tokenreviews", "TokenReview"),
    ),
}


KUEUE_GROUP = "kueue.x-k8s.io"


def groups(registry: Registry) -> dict[str, list[str]]:
    """Groups in the order of the registry, each with its versions, the preferred one first."""
    # `kubectl get workloads` means Kueue's: of two groups with a kind of that name it takes the first that is listed.
    found: dict[str, list[str]] = {"": [], KUEUE_GROUP: []}
    for kind in registry:
        versions = found.setdefault(kind.group, [])
        versions.extend(version.name for version in kind.versions if version.name not in versions)
    for group in _REVIEWS:
        found.setdefault(group, ["v1"])
    return {group: versions for group, versions in found.items() if versions}


def serve(request: Request, registry: Registry) -> Answer | None:
    path = request.path.rstrip("/")
    if path == "/version":
        return json_answer(VERSION)
    if path in ("/api", "/apis"):
        return _roots(request, registry, core=path == "/api")
    parts = path.split("/")
    if path == "/api/v1":
        return json_answer(_resource_list(registry, "", "v1"))
    known = groups(registry)
    if len(parts) == 3 and parts[1] == "apis" and parts[2] in known:
        return json_answer(
            {"kind": "APIGroup", "apiVersion": "v1", **_group(parts[2], known[parts[2]])}
        )
    if len(parts) == 4 and parts[1] == "apis" and parts[3] in known.get(parts[2], []):
        return json_answer(_resource_list(registry, parts[2], parts[3]))
    return None


def _roots(request: Request, registry: Registry, *, core: bool) -> Answer:
    accept = request.header(b"accept")
    for version in ("v2", "v2beta1"):
        if _asks_aggregated(accept, version):
            return _aggregated(registry, version, core=core)
    if core:
        return json_answer(
            {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        )
    listed = [_group(name, versions) for name, versions in groups(registry).items() if name]
    return json_answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": listed})


def _asks_aggregated(accept: str, version: str) -> bool:
    for part in accept.split(","):
        words = {word.strip() for word in part.split(";")}
        if {"g=apidiscovery.k8s.io", f"v={version}", "as=APIGroupDiscoveryList"} <= words:
            return True
    return False


def _group(name: str, versions: list[str]) -> Obj:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _kinds_of(registry: Registry, group: str, version: str) -> list[Kind]:
    found = [kind for kind in registry if kind.group == group and kind.version(version) is not None]
    return sorted(found, key=lambda kind: kind.plural)


def subresources(kind: Kind) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Name, group/version of the answered kind (empty: its own), kind, verbs."""
    found = [
        (name, _foreign_version(answered), answered, verbs)
        for name, answered, verbs in kind.subresources
    ]
    if kind.scale:
        found.append(("scale", "autoscaling/v1", "Scale", ("get", "patch", "update")))
    if kind.status:
        found.append(("status", "", kind.kind, ("get", "patch", "update")))
    return sorted(found)


def _foreign_version(kind: str) -> str:
    return {"Eviction": "policy/v1"}.get(kind, "")


def _resource_list(registry: Registry, group: str, version: str) -> Obj:
    resources: list[Obj] = []
    for kind in _kinds_of(registry, group, version):
        entry: Obj = {
            "name": kind.plural,
            "singularName": kind.singular or kind.kind.lower(),
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": list(kind.verbs),
        }
        if kind.short_names:
            entry["shortNames"] = list(kind.short_names)
        if kind.categories:
            entry["categories"] = list(kind.categories)
        resources.append(entry)
        for name, foreign, answered, verbs in subresources(kind):
            sub: Obj = {
                "name": f"{kind.plural}/{name}",
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": answered,
                "verbs": list(verbs),
            }
            if foreign:
                sub["group"], sub["version"] = foreign.split("/")
            resources.append(sub)
    for plural, name in _REVIEWS.get(group, ()):
        resources.append(
            {
                "name": plural,
                "singularName": name.lower(),
                "namespaced": False,
                "kind": name,
                "verbs": ["create"],
            }
        )
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": resources,
    }


def _aggregated(registry: Registry, form: str, *, core: bool) -> Answer:
    chosen = {name: versions for name, versions in groups(registry).items() if (not name) == core}
    content = {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{form}",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": group, "creationTimestamp": None}
                if group
                else {"creationTimestamp": None},
                "versions": [
                    {
                        "version": version,
                        "freshness": "Current",
                        "resources": _aggregated_resources(registry, group, version),
                    }
                    for version in versions
                ],
            }
            for group, versions in chosen.items()
        ],
    }
    content_type = f"application/json;g=apidiscovery.k8s.io;v={form};as=APIGroupDiscoveryList"
    return Answer(encode(content), content_type=content_type.encode())


def _aggregated_resources(registry: Registry, group: str, version: str) -> list[Obj]:
    resources: list[Obj] = []
    for kind in _kinds_of(registry, group, version):
        entry: Obj = {
            "resource": kind.plural,
            "responseKind": {"group": group, "version": version, "kind": kind.kind},
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "singularResource": kind.singular or kind.kind.lower(),
            "verbs": list(kind.verbs),
        }
        if kind.short_names:
            entry["shortNames"] = list(kind.short_names)
        if kind.categories:
            entry["categories"] = list(kind.categories)
        subs = [_aggregated_subresource(group, version, *sub) for sub in subresources(kind)]
        if subs:
            entry["subresources"] = subs
        resources.append(entry)
    for plural, name in _REVIEWS.get(group, ()):
        resources.append(
            {
                "resource": plural,
                "responseKind": {"group": group, "version": version, "kind": name},
                "scope": "Cluster",
                "singularResource": name.lower(),
                "verbs": ["create"],
            }
        )
    return resources


def _aggregated_subresource(
    group: str, version: str, name: str, foreign: str, kind: str, verbs: tuple[str, ...]
) -> Obj:
    answered = foreign.split("/") if foreign else (group, version)
    return {
        "subresource": name,
        "responseKind": {"group": answered[0], "version": answered[1], "kind": kind},
        "verbs": list(verbs),
    }

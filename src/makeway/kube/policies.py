"""What happens to jobs and pods on their way into a cluster: MutatingAdmissionPolicies, evaluated by the API server itself.

No webhook server of ours has to be alive for users to submit. These do what `kinds.serving.queueing` does on the
embedded API: queued jobs of every kind arrive suspended, queued pods arrive gated, owners that cannot be suspended hand
their queue down to their pods, pods of admitted workloads are placed by makeway, and a pod that saves its work on SIGTERM gets
the time for it. A kind that the cluster does not serve simply never arrives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from makeway.kinds.frameworks import JOB_KINDS
from makeway.kinds.gated import GATED_KINDS
from makeway.kinds.metadata import (
    MANAGED,
    PRIORITY_CLASS,
    QUEUE_NAME,
    SUSPENDING_PARENT,
    WORKLOAD,
)
from makeway.kinds.promises import CHECKPOINT_ON_TERM, EXTERNAL, PLACEMENT
from makeway.kinds.serving.notice import LONGEST_NOTICE_S
from makeway.kube.arriving import API, PODS, Resources, resource_rules, unmanaged
from makeway.kube.validation import validating_binding, validating_policies
from makeway.model.workload import SAVE_MARGIN_S

Object = dict[str, Any]

DEFAULT_QUEUE: Final = "default"

_QUEUED: Final = (
    f"has(object.metadata.labels) && '{QUEUE_NAME}' in object.metadata.labels"
    f" && object.metadata.labels['{QUEUE_NAME}'] != ''"
)
_UNOWNED: Final = (
    "!has(object.metadata.ownerReferences) || !object.metadata.ownerReferences.exists(o, {owned})"
)
# Owners that queue as a whole; what they own is not queued once more.
_OWNED: Final = " || ".join(
    f"(o.apiVersion.startsWith('{kind.group}/') && o.kind == '{kind.kind}')"
    for kind in JOB_KINDS.values()
)
_NOT_QUEUED_BY_OWNER: Final = _UNOWNED.format(
    owned=f"has(o.controller) && o.controller && ({_OWNED})"
)
# Parents whose own controllers make pods anew must not wait for the old ones.
_HAS_PARENT: Final = (
    f"(has(object.metadata.annotations) && '{SUSPENDING_PARENT}' in object.metadata.annotations)"
)
_DEFAULT_SCHEDULER: Final = (
    "!has(object.spec.schedulerName) || object.spec.schedulerName == 'default-scheduler'"
)
_OURS_TO_PLACE: Final = (
    f"!has(object.metadata.labels) || !('{PLACEMENT}' in object.metadata.labels)"
    f" || object.metadata.labels['{PLACEMENT}'] != '{EXTERNAL}'"
)


def policies(namespace: str) -> list[Object]:
    """What is changed, with the bindings. Pods of the cluster itself and ours are left alone."""
    found: list[Object] = []
    for made in (
        *_default_queue_of_jobs(),
        _default_queue_of_pods(),
        *_suspend_jobs(),
        *_hand_queue_down(),
        _gate_pods(),
        _place_pods(),
        _give_notice(),
    ):
        found += [_outside(made, namespace), _binding(made)]
    return found


def validation(namespace: str) -> list[Object]:
    """What is refused, with the bindings."""
    found: list[Object] = []
    for made in validating_policies():
        found += [_outside(made, namespace), validating_binding(made)]
    return found


def _outside(policy: Object, namespace: str) -> Object:
    policy["spec"]["matchConstraints"]["namespaceSelector"] = unmanaged(namespace)
    return policy


def _default_queue(name: str, resources: Resources, then: str) -> Object:
    """Where a LocalQueue called `default` exists, who names no queue gets that one, and is held back in the same step:
    what one policy wrote, the others' conditions need not see."""
    made = _policy(
        f"makeway-default-queue-{name}",
        resources,
        {
            "names-no-queue": f"!({_QUEUED})",
            "has-no-owner": "!has(object.metadata.ownerReferences)"
            " || size(object.metadata.ownerReferences) == 0",
        },
        then,
    )
    made["spec"]["paramKind"] = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue"}
    # A server that has just started does not know the kind for a while, and would refuse every pod of the cluster.
    made["spec"]["failurePolicy"] = "Ignore"
    return made


def _default_queue_of_jobs() -> list[Object]:
    label = f'Object.metadata{{labels: {{"{QUEUE_NAME}": "{DEFAULT_QUEUE}"}}}}'
    return [
        _default_queue(name, resources, f"Object{{metadata: {label}, {suspended}}}")
        for name, resources, suspended in _by_suspend_path()
    ]


def _default_queue_of_pods() -> Object:
    return _default_queue("pods", PODS, _gated(f'"{QUEUE_NAME}": "{DEFAULT_QUEUE}", '))


def _suspend_jobs() -> list[Object]:
    return [
        _policy(
            f"makeway-suspend-queued-{name}",
            resources,
            {"queued": _QUEUED, "not-queued-by-owner": _NOT_QUEUED_BY_OWNER},
            f"Object{{{suspended}}}",
        )
        for name, resources, suspended in _by_suspend_path()
    ]


def _by_suspend_path() -> Iterator[tuple[str, Resources, str]]:
    """The kinds of jobs that say in the same field that they are suspended: a name, the kinds, and the field set."""
    paths: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for kind in JOB_KINDS.values():
        paths.setdefault(kind.suspend_path, []).append((kind.group, kind.plural))
    for path, resources in paths.items():
        above = "-".join(field.lower() for field in path[1:-1])
        yield f"{above}-jobs".lstrip("-"), tuple(resources), _set(path, "true")


def _set(path: Sequence[str], value: str) -> str:
    """`spec: Object.spec{suspend: true}` for ("spec", "suspend") and "true"."""
    said = f"{path[-1]}: {value}"
    for depth in range(len(path) - 1, 0, -1):
        said = f"{path[depth - 1]}: Object.{'.'.join(path[:depth])}{{{said}}}"
    return said


def _hand_queue_down() -> Iterator[Object]:
    """Owners whose pods wait at a gate: the pods must know the queue, the class, and who stops and starts them."""
    for plural in ("deployments", "statefulsets"):
        yield _hand_down(
            ("apps", plural), plural[:-1], "", _marked(("spec", "template"), plural[:-1])
        )
    sets = GATED_KINDS["LeaderWorkerSet"]
    group, _, _ = sets.api_version.partition("/")
    form = ("spec", "leaderWorkerTemplate")
    for part in ("leaderTemplate", "workerTemplate"):
        there = f"has(object.{'.'.join(form)}.{part})"
        name = f"{sets.parent}-{part.removesuffix('Template')}"
        yield _hand_down((group, sets.plural), name, there, _marked((*form, part), sets.parent))


def _hand_down(resource: tuple[str, str], name: str, there: str, then: str) -> Object:
    conditions = {"queued": _QUEUED} | ({"has-the-template": there} if there else {})
    made = _policy(f"makeway-hand-queue-down-{name}", (resource,), conditions, f"Object{{{then}}}")
    for rule in made["spec"]["matchConstraints"]["resourceRules"]:
        # The queue may be named later.
        rule["operations"] = ["CREATE", "UPDATE"]
    return made


def _marked(template: tuple[str, ...], parent: str) -> str:
    queue = _copied(QUEUE_NAME)
    # Written as a choice of two: API servers up to 1.36 panic on optional entries of a map.
    labels = (
        f"'{PRIORITY_CLASS}' in object.metadata.labels"
        f" ? {{{queue}, {_copied(PRIORITY_CLASS)}}} : {{{queue}}}"
    )
    type_ = f"Object.{'.'.join(template)}.metadata"
    marks = f'{type_}{{labels: {labels}, annotations: {{"{SUSPENDING_PARENT}": "{parent}"}}}}'
    return _set((*template, "metadata"), marks)


def _copied(label: str) -> str:
    return f"\"{label}\": object.metadata.labels['{label}']"


def _gate_pods() -> Object:
    return _policy(
        "makeway-gate-queued-pods",
        PODS,
        {"queued": _QUEUED, "not-queued-by-owner": _NOT_QUEUED_BY_OWNER},
        _gated(),
    )


def _gated(more_labels: str = "") -> str:
    """Held back, known as ours, and placed by us: a pod's scheduler cannot be changed when it is admitted."""
    gates = ", ".join(
        f'Object.spec.schedulingGates{{name: "kueue.x-k8s.io/{gate}"}}'
        for gate in ("admission", "topology")
    )
    scheduler = (
        f"({_DEFAULT_SCHEDULER}) && ({_OURS_TO_PLACE}) ? 'makeway' : object.spec.schedulerName"
    )
    return (
        f'Object{{metadata: Object.metadata{{labels: {{{more_labels}"{MANAGED}": "true"}},'
        f' finalizers: {_HAS_PARENT} ? [] : ["{MANAGED}"]}},'
        f" spec: Object.spec{{schedulingGates: [{gates}], schedulerName: {scheduler}}}}}"
    )


def _place_pods() -> Object:
    return _policy(
        "makeway-place-admitted-pods",
        PODS,
        {
            "admitted": f"has(object.metadata.annotations) && '{WORKLOAD}' in object.metadata.annotations",
            "asks-for-the-default": _DEFAULT_SCHEDULER,
            "ours-to-place": _OURS_TO_PLACE,
        },
        'Object{spec: Object.spec{schedulerName: "makeway"}}',
    )


def _give_notice() -> Object:
    """Pods of a suspended Job are deleted by others, with the grace in their spec: make it long enough to save."""
    asked = f"duration(object.metadata.annotations['{CHECKPOINT_ON_TERM}']).getSeconds() + {SAVE_MARGIN_S:.0f}"
    capped = f"({asked} > {LONGEST_NOTICE_S} ? {LONGEST_NOTICE_S} : {asked})"
    return _policy(
        "makeway-give-notice",
        PODS,
        {
            "saves-on-term": f"has(object.metadata.annotations) && '{CHECKPOINT_ON_TERM}' in object.metadata.annotations"
            f" && object.metadata.annotations['{CHECKPOINT_ON_TERM}'].matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$')"
            f" && object.metadata.annotations['{CHECKPOINT_ON_TERM}'] != ''",
            "has-less": f"!has(object.spec.terminationGracePeriodSeconds)"
            f" || object.spec.terminationGracePeriodSeconds < {capped}",
        },
        f"Object{{spec: Object.spec{{terminationGracePeriodSeconds: {capped}}}}}",
    )


def _policy(name: str, resources: Resources, conditions: dict[str, str], expression: str) -> Object:
    return {
        "apiVersion": API,
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": resource_rules(resources)},
            "matchConditions": [
                {"name": condition, "expression": said} for condition, said in conditions.items()
            ],
            # A queued job that slipped through would run without quota: rather refuse it.
            "failurePolicy": "Fail",
            # Labels may come from other policies and webhooks.
            "reinvocationPolicy": "IfNeeded",
            "mutations": [
                {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {"expression": expression},
                }
            ],
        },
    }


def _binding(policy: Object) -> Object:
    name = policy["metadata"]["name"]
    spec: Object = {"policyName": name}
    if "paramKind" in policy["spec"]:
        # Of the namespace of the request; where there is none, nothing is to be done.
        spec["paramRef"] = {"name": DEFAULT_QUEUE, "parameterNotFoundAction": "Allow"}
    return {
        "apiVersion": API,
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": spec,
    }

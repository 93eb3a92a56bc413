"""What happens to jobs and pods on their way into a cluster: MutatingAdmissionPolicies, evaluated by the API server itself.

No webhook server of ours has to be alive for users to submit. These do what `kinds.serving.queueing` does on the
embedded API: queued jobs arrive suspended, queued pods arrive gated, pods of admitted workloads are placed by
makeway, and a pod that saves its work on SIGTERM gets the time for it.
"""

from __future__ import annotations

from typing import Any, Final

from makeway.kinds.metadata import MANAGED, QUEUE_NAME, WORKLOAD

Object = dict[str, Any]

API: Final = "admissionregistration.k8s.io/v1"
EXTERNAL: Final = "makeway.dev/placement"
SAVES: Final = "makeway.dev/checkpoint-on-term"
DEFAULT_QUEUE: Final = "default"
# Longest time that a pod may ask for to save its work: the default of `maxNotice`.
LONGEST_NOTICE_S: Final = 600
SPARE_S: Final = 5

# Owners that queue as a whole; what they own is not queued once more.
_QUEUED_OWNERS: Final = (
    "batch/v1 Job",
    "jobset.x-k8s.io JobSet",
    "ray.io RayCluster",
    "kubeflow.org PyTorchJob",
)

_QUEUED: Final = (
    f"has(object.metadata.labels) && '{QUEUE_NAME}' in object.metadata.labels"
    f" && object.metadata.labels['{QUEUE_NAME}'] != ''"
)
_UNOWNED: Final = (
    "!has(object.metadata.ownerReferences) || !object.metadata.ownerReferences.exists(o, {owned})"
)
_OWNED: Final = " || ".join(
    f"(o.apiVersion.startsWith('{group.split()[0].split('/')[0]}/') && o.kind == '{group.split()[1]}')"
    for group in _QUEUED_OWNERS
)
_NOT_QUEUED_BY_OWNER: Final = _UNOWNED.format(
    owned=f"has(o.controller) && o.controller && ({_OWNED})"
)
_DEFAULT_SCHEDULER: Final = (
    "!has(object.spec.schedulerName) || object.spec.schedulerName == 'default-scheduler'"
)
_OURS_TO_PLACE: Final = (
    f"!has(object.metadata.labels) || !('{EXTERNAL}' in object.metadata.labels)"
    f" || object.metadata.labels['{EXTERNAL}'] != 'external'"
)


def policies(namespace: str) -> list[Object]:
    """All policies with their bindings. Pods of the cluster itself and ours are left alone."""
    excluded = ["kube-system", "kueue-system", namespace]
    found: list[Object] = []
    for made in (
        _default_queue_of_jobs(),
        _default_queue_of_pods(),
        _suspend_jobs(),
        _gate_pods(),
        _place_pods(),
        _give_notice(),
    ):
        spec = made["spec"]
        spec["matchConstraints"]["namespaceSelector"] = {
            "matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": excluded}
            ]
        }
        found += [made, _binding(made)]
    return found


def _default_queue(plural: str, group: str, then: str) -> Object:
    """Where a LocalQueue called `default` exists, who names no queue gets that one, and is held back in the same step:
    what one policy wrote, the others' conditions need not see."""
    made = _policy(
        f"makeway-default-queue-{plural}",
        group,
        plural,
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


def _default_queue_of_jobs() -> Object:
    label = f'{{"{QUEUE_NAME}": "{DEFAULT_QUEUE}"}}'
    return _default_queue(
        "jobs",
        "batch",
        f"Object{{metadata: Object.metadata{{labels: {label}}}, spec: Object.spec{{suspend: true}}}}",
    )


def _default_queue_of_pods() -> Object:
    return _default_queue("pods", "", _gated(f'"{QUEUE_NAME}": "{DEFAULT_QUEUE}", '))


def _suspend_jobs() -> Object:
    return _policy(
        "makeway-suspend-queued-jobs",
        "batch",
        "jobs",
        {"queued": _QUEUED, "not-queued-by-owner": _NOT_QUEUED_BY_OWNER},
        "Object{spec: Object.spec{suspend: true}}",
    )


def _gate_pods() -> Object:
    return _policy(
        "makeway-gate-queued-pods",
        "",
        "pods",
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
        f' finalizers: ["{MANAGED}"]}},'
        f" spec: Object.spec{{schedulingGates: [{gates}], schedulerName: {scheduler}}}}}"
    )


def _place_pods() -> Object:
    return _policy(
        "makeway-place-admitted-pods",
        "",
        "pods",
        {
            "admitted": f"has(object.metadata.annotations) && '{WORKLOAD}' in object.metadata.annotations",
            "asks-for-the-default": _DEFAULT_SCHEDULER,
            "ours-to-place": _OURS_TO_PLACE,
        },
        'Object{spec: Object.spec{schedulerName: "makeway"}}',
    )


def _give_notice() -> Object:
    """Pods of a suspended Job are deleted by others, with the grace in their spec: make it long enough to save."""
    asked = f"duration(object.metadata.annotations['{SAVES}']).getSeconds() + {SPARE_S}"
    capped = f"({asked} > {LONGEST_NOTICE_S} ? {LONGEST_NOTICE_S} : {asked})"
    return _policy(
        "makeway-give-notice",
        "",
        "pods",
        {
            "saves-on-term": f"has(object.metadata.annotations) && '{SAVES}' in object.metadata.annotations"
            f" && object.metadata.annotations['{SAVES}'].matches('^([0-9]+h)?([0-9]+m)?([0-9]+s)?$')"
            f" && object.metadata.annotations['{SAVES}'] != ''",
            "has-less": f"!has(object.spec.terminationGracePeriodSeconds)"
            f" || object.spec.terminationGracePeriodSeconds < {capped}",
        },
        f"Object{{spec: Object.spec{{terminationGracePeriodSeconds: {capped}}}}}",
    )


def _policy(
    name: str, group: str, plural: str, conditions: dict[str, str], expression: str
) -> Object:
    rule = {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": [plural],
    }
    return {
        "apiVersion": API,
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
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

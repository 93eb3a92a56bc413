"""What is refused on its way into a cluster: ValidatingAdmissionPolicies, for what the definitions' own rules cannot see.

They say of jobs and pods that queue what `kinds.serving.queueing` says on the embedded API, in its words: names of queues,
numbers in labels and annotations, and what may not change while a job runs.
"""

from __future__ import annotations

from typing import Any, Final

from makeway.kinds.metadata import (
    GROUP_NAME,
    GROUP_TOTAL,
    MANAGED,
    MAX_EXEC_TIME,
    MIN_PARALLELISM,
    PRIORITY_CLASS,
    QUEUE_NAME,
)
from makeway.kinds.serving.names import SUBDOMAIN_RULE
from makeway.kube.arriving import (
    ALL_JOBS,
    API,
    JOBS,
    PODS,
    STATEFUL_SETS,
    Resources,
    resource_rules,
)
from makeway.kube.queue_rules import queue_policies

Object = dict[str, Any]
Rule = tuple[str, str]  # what has to be true, and what is said where it is not

_SUBDOMAIN: Final = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
# Evaluating a rule costs about as much as storing the pod: those that do not queue are not even asked.
_LABELLED: Final[Object] = {"matchExpressions": [{"key": QUEUE_NAME, "operator": "Exists"}]}
_MANAGED: Final[Object] = {"matchLabels": {MANAGED: "true"}}
# A number that CEL can read; longer ones are none that anybody means.
_NUMBER: Final = "^[0-9]{1,9}$"


def validating_policies() -> list[Object]:
    """With their bindings; the caller says which namespaces are left alone."""
    made, changed = ("CREATE",), ("UPDATE",)
    return [
        _policy("makeway-check-queued-jobs", ALL_JOBS, made + changed, _names_of_jobs()),
        _policy("makeway-check-partial-jobs", JOBS, made, [_parallelism()]),
        _policy("makeway-keep-queue-of-jobs", JOBS, changed, _kept_by_jobs()),
        _only(_LABELLED, _policy("makeway-check-queued-pods", PODS, made, _groups_of_pods())),
        _only(_MANAGED, _policy("makeway-keep-queue-of-pods", PODS, changed, _kept_by_pods())),
        _policy("makeway-keep-size-of-sets", STATEFUL_SETS, changed, [_size_of_sets()]),
        *queue_policies(),
    ]


# ---- what has to be so -----------------------------------------------------------------------------


def _names_of_jobs() -> list[Rule]:
    long_enough = (
        f"({_label(MAX_EXEC_TIME)}.matches('{_NUMBER}') && int({_label(MAX_EXEC_TIME)}) > 0)"
    )
    return [
        _queue_name(),
        (
            f"{_label(MAX_EXEC_TIME)} == '' || {long_enough}",
            _wrong_number("labels", MAX_EXEC_TIME, _said("should be greater than 0")),
        ),
    ]


def _queue_name() -> Rule:
    return (
        f"{_label(QUEUE_NAME)} == '' || {_label(QUEUE_NAME)}.matches('{_SUBDOMAIN}')",
        _invalid("labels", QUEUE_NAME, SUBDOMAIN_RULE),
    )


def _parallelism() -> Rule:
    """Fewer pods than it asks for, and at least one."""
    given = _annotation(MIN_PARALLELISM)
    pods = "(has(object.spec.parallelism) ? object.spec.parallelism : 1)"
    most = (
        f"(has(object.spec.completions) && object.spec.completions < {pods}"
        f" ? object.spec.completions : {pods})"
    )
    return (
        f"{given} == '' || ({given}.matches('{_NUMBER}') && int({given}) > 0 && int({given}) < {most})",
        _wrong_number(
            "annotations", MIN_PARALLELISM, f"'should be between 0 and ' + string({most} - 1)"
        ),
    )


def _kept_by_jobs() -> list[Rule]:
    """A job that is not suspended keeps its queue; its priority class may change but not come or go."""
    runs = "!(has(oldObject.spec.suspend) && oldObject.spec.suspend)"
    queued = f"({_label(QUEUE_NAME)} != '' || {_label(QUEUE_NAME, 'oldObject')} != '')"
    was, is_ = _label(PRIORITY_CLASS, "oldObject"), _label(PRIORITY_CLASS)
    return [
        (
            f"!({runs}) || {_label(QUEUE_NAME)} == {_label(QUEUE_NAME, 'oldObject')}",
            _invalid("labels", QUEUE_NAME, "field is immutable"),
        ),
        (
            f"!{queued} || {was} == '' || {is_} != ''",
            _invalid(
                "labels", PRIORITY_CLASS, "WorkloadPriorityClass cannot be removed from a workload"
            ),
        ),
        (
            f"!{queued} || !({runs}) || {was} != '' || {is_} == ''",
            _invalid(
                "labels",
                PRIORITY_CLASS,
                "WorkloadPriorityClass cannot be added to a non-suspended workload",
            ),
        ),
    ]


def _size_of_sets() -> Rule:
    """What is admitted as a whole is switched on and off as a whole."""
    queued = f"{_label(QUEUE_NAME, 'oldObject')} != ''"
    is_, was = "object.spec.replicas", "oldObject.spec.replicas"
    return (
        f"!({queued}) || {is_} == {was} || {is_} == 0 || {was} == 0",
        f"'spec.replicas: Invalid value: ' + string({is_}) + ': field is immutable'",
    )


def _groups_of_pods() -> list[Rule]:
    group = f"({_label(GROUP_NAME)} != '' || {_annotation(GROUP_NAME)} != '')"
    total, queued = _annotation(GROUP_TOTAL), f"{_label(QUEUE_NAME)} != ''"
    both = f"both the '{GROUP_TOTAL}' annotation and the '{GROUP_NAME}' label should be set"
    return [
        _queue_name(),
        (
            f"!({queued}) || !{group} || {total} != ''",
            _said(f"metadata.annotations[{GROUP_TOTAL}]: Required value: {both}"),
        ),
        (
            f"!({queued}) || {total} == '' || {group}",
            _said(f"metadata.labels[{GROUP_NAME}]: Required value: {both}"),
        ),
        (
            f"!({queued}) || {total} == '' || ({total}.matches('{_NUMBER}') && int({total}) > 0)",
            _wrong_number(
                "annotations", GROUP_TOTAL, _said("should be greater than or equal to 1"), '"'
            ),
        ),
    ]


def _kept_by_pods() -> list[Rule]:
    """A queued pod that is no longer gated keeps its queue."""
    open_ = "(!has(oldObject.spec.schedulingGates) || size(oldObject.spec.schedulingGates) == 0)"
    managed = f"{_label(MANAGED, 'oldObject')} == 'true'"
    same = f"{_label(QUEUE_NAME)} == {_label(QUEUE_NAME, 'oldObject')}"
    return [
        (
            f"!({managed} && {open_}) || {same}",
            _invalid("labels", QUEUE_NAME, "field is immutable"),
        )
    ]


# ---- in CEL ----------------------------------------------------------------------------------------


def _label(key: str, of: str = "object") -> str:
    return _entry(f"{of}.metadata.labels", key)


def _annotation(key: str) -> str:
    return _entry("object.metadata.annotations", key)


def _entry(of: str, key: str) -> str:
    """What stands there, or nothing."""
    return f"(has({of}) && '{key}' in {of} ? {of}['{key}'] : '')"


def _said(text: str) -> str:
    escaped = text.replace("\\", "\\\\")
    return f'"{escaped}"'


def _invalid(field: str, key: str, why: str) -> str:
    value = _entry(f"object.metadata.{field}", key)
    return f"'metadata.{field}[{key}]: Invalid value: \"' + {value} + '\": ' + {_said(why)}"


def _wrong_number(field: str, key: str, why: str, quote: str = "") -> str:
    """In Kueue's words: what is no number is shown as text, what is too small as a number (or as it was written)."""
    value = _entry(f"object.metadata.{field}", key)
    at = f"metadata.{field}[{key}]: Invalid value: "
    number = f"'{at}{quote}' + {value} + '{quote}: ' + {why}"
    none = f"'{at}\"' + {value} + '\": strconv.Atoi: parsing \"' + {value} + '\": invalid syntax'"
    return f"{value}.matches('^[-+]?[0-9]+$') ? {number} : {none}"


def _policy(
    name: str, resources: Resources, operations: tuple[str, ...], rules: list[Rule]
) -> Object:
    return {
        "apiVersion": API,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": resource_rules(resources, operations)},
            # A rule that cannot be evaluated is our mistake, and no reason to refuse anybody's work.
            "failurePolicy": "Ignore",
            "validations": [
                {"expression": holds, "messageExpression": said, "reason": "Forbidden"}
                for holds, said in rules
            ],
        },
    }


def _only(labels: Object, policy: Object) -> Object:
    """For objects that carry these labels, before a change or after it."""
    policy["spec"]["matchConstraints"]["objectSelector"] = labels
    return policy


def validating_binding(policy: Object) -> Object:
    name = policy["metadata"]["name"]
    return {
        "apiVersion": API,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }

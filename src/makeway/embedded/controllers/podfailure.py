"""A Job's podFailurePolicy: what one failed pod means for its Job."""

from __future__ import annotations

import msgspec

from makeway.client.resource import Object
from makeway.embedded.objects import condition, name_of, namespace_of, status_of

COUNT, IGNORE, FAIL_JOB, FAIL_INDEX = "Count", "Ignore", "FailJob", "FailIndex"


class Verdict(msgspec.Struct, frozen=True):
    action: str
    message: str = ""


def judge(job: Object, pod: Object) -> Verdict:
    """The first rule that matches; without one a failure counts."""
    if stopped_with_the_machine(pod):
        return Verdict(IGNORE)
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or []
    for number, rule in enumerate(rules):
        matched = _matched_exit_code(rule, pod) or _matched_condition(rule, pod)
        if matched:
            action = str(rule["action"])
            return Verdict(action, f"{matched} matching {action} rule at index {number}")
    return Verdict(COUNT)


def stopped_with_the_machine(pod: Object) -> bool:
    """Switching the machine off is nobody's failure: such a pod is replaced and not counted."""
    found = condition(pod, "DisruptionTarget")
    return (
        found is not None
        and found["status"] == "True"
        and found.get("reason") == "TerminationByKubelet"
    )


def _matched_exit_code(rule: Object, pod: Object) -> str:
    wanted = rule.get("onExitCodes")
    if not wanted:
        return ""
    status = status_of(pod)
    everyone = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    for container in everyone:
        if wanted.get("containerName") not in (None, container["name"]):
            continue
        ended = (container.get("state") or {}).get("terminated")
        # A container that succeeded says nothing about why the pod failed.
        if not ended or ended["exitCode"] == 0:
            continue
        listed = ended["exitCode"] in wanted["values"]
        if listed == (wanted["operator"] == "In"):
            return (
                f"Container {container['name']} for pod {namespace_of(pod)}/{name_of(pod)}"
                f" failed with exit code {ended['exitCode']}"
            )
    return ""


def _matched_condition(rule: Object, pod: Object) -> str:
    for pattern in rule.get("onPodConditions") or []:
        found = condition(pod, pattern["type"])
        if found is not None and found["status"] == pattern.get("status", "True"):
            where = f"{namespace_of(pod)}/{name_of(pod)}"
            return f"Pod {where} has condition {pattern['type']}"
    return ""

"""Jobs and CronJobs: defaults, the selector that the server makes, Kueue's suspension, what stays
fixed.
"""

from __future__ import annotations

from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from makeway.kinds.schedule import parse_schedule
from makeway.kinds.serving.kind import Context, Rules
from makeway.kinds.serving.names import metadata_causes, subdomain_problems
from makeway.kinds.serving.queueing import (
    queued_job_causes,
    refuse_queue_change_of_job,
    suspend_queued_job,
)
from makeway.kinds.serving.refusal import (
    Cause,
    Obj,
    invalid_value,
    required,
    unsupported,
    webhook_denied,
)
from makeway.kinds.serving.template import default_pod_spec, pod_spec_causes

_NO_LIMIT = 2147483647


class JobRules(Rules):
    def default(self, obj: Obj) -> None:
        _default_job_spec(obj.setdefault("spec", {}))

    def create(self, obj: Obj, context: Context) -> None:
        suspend_queued_job(obj, context)
        causes = queued_job_causes(obj)
        if causes:
            raise webhook_denied("vjob.kb.io", causes)
        _generate_selector(obj)

    def update(self, new: Obj, old: Obj, context: Context) -> None:
        running = not old["spec"].get("suspend") and not new["spec"].get("suspend")
        refuse_queue_change_of_job(new, old, running=running)

    def validate(self, obj: Obj) -> list[Cause]:
        return metadata_causes(obj, subdomain_problems) + _job_spec_causes(obj["spec"], "spec")

    def validate_update(self, new: Obj, old: Obj) -> list[Cause]:
        causes: list[Cause] = []
        before, after = old["spec"], new["spec"]
        indexed = before.get("completionMode") == "Indexed"
        for field in (
            "completions",
            "selector",
            "template",
            "completionMode",
            "podFailurePolicy",
            "backoffLimitPerIndex",
        ):
            if before.get(field) == after.get(field):
                continue
            if (
                field == "completions"
                and indexed
                and after.get("completions") == after.get("parallelism")
            ):
                continue  # an elastic indexed Job changes both together
            if field == "template" and _only_scheduling_changed(old, new):
                continue
            causes.append(invalid_value(f"spec.{field}", after.get(field), "field is immutable"))
        return causes


def _default_job_spec(spec: Obj) -> None:
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    if spec.get("backoffLimit") is None:
        spec["backoffLimit"] = _NO_LIMIT if spec.get("backoffLimitPerIndex") is not None else 6
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    policy = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    spec.setdefault("podReplacementPolicy", policy)
    template = spec.setdefault("template", {})
    if template.get("metadata") is None:
        template["metadata"] = {}
    template_spec = template.setdefault("spec", {})
    default_pod_spec(template_spec)


def _generate_selector(job: Obj) -> None:
    """The server makes a selector that no other Job's pods can match."""
    spec = job["spec"]
    if spec.get("manualSelector"):
        return
    uid, name = job["metadata"]["uid"], job["metadata"]["name"]
    labels = spec["template"]["metadata"].setdefault("labels", {})
    for prefix in ("batch.kubernetes.io/", ""):
        labels[f"{prefix}controller-uid"] = uid
        labels[f"{prefix}job-name"] = name
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    if not job["metadata"].get("labels"):
        # A Job without labels is shown with those of its pods.
        job["metadata"]["labels"] = dict(labels)


def _job_spec_causes(spec: Obj, path: str) -> list[Cause]:
    causes = _negative_causes(
        spec,
        path,
        "parallelism",
        "completions",
        "backoffLimit",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
    )
    mode = spec.get("completionMode")
    if mode not in ("NonIndexed", "Indexed"):
        causes.append(unsupported(f"{path}.completionMode", mode, ("NonIndexed", "Indexed")))
    if mode == "Indexed" and spec.get("completions") is None:
        causes.append(required(f"{path}.completions", "when completion mode is Indexed"))
    template = spec.get("template") or {}
    pod = template.get("spec") or {}
    policy = pod.get("restartPolicy")
    causes += pod_spec_causes(pod, f"{path}.template.spec")
    if policy == "Always":
        valid = 'valid values: "OnFailure", "Never"'
        causes.append(required(f"{path}.template.spec.restartPolicy", valid))
    if spec.get("podFailurePolicy") and policy != "Never":
        causes.append(
            invalid_value(
                f"{path}.template.spec.restartPolicy",
                policy,
                'only "Never" is supported when podFailurePolicy is specified',
            )
        )
    return causes


def _negative_causes(spec: Obj, path: str, *fields: str) -> list[Cause]:
    return [
        invalid_value(f"{path}.{field}", spec[field], "must be greater than or equal to 0")
        for field in fields
        if isinstance(spec.get(field), int) and spec[field] < 0
    ]


def _only_scheduling_changed(old: Obj, new: Obj) -> bool:
    """While a Job is suspended, queueing systems may steer its template to nodes."""
    if not old["spec"].get("suspend"):
        return False
    return _without_scheduling(old["spec"]["template"]) == _without_scheduling(
        new["spec"]["template"]
    )


def _without_scheduling(template: Obj) -> Obj:
    metadata = _without(template.get("metadata") or {}, ("labels", "annotations"))
    steering = ("nodeSelector", "tolerations", "affinity", "schedulingGates")
    spec = _without(template.get("spec") or {}, steering)
    for field in ("containers", "initContainers"):
        if spec.get(field):
            spec[field] = [_without(container, ("resources",)) for container in spec[field]]
    return {**template, "metadata": metadata, "spec": spec}


def _without(obj: Obj, fields: tuple[str, ...]) -> Obj:
    return {key: value for key, value in obj.items() if key not in fields}


class CronJobRules(Rules):
    def default(self, obj: Obj) -> None:
        spec = obj.setdefault("spec", {})
        spec.setdefault("concurrencyPolicy", "Allow")
        spec.setdefault("suspend", False)
        spec.setdefault("successfulJobsHistoryLimit", 3)
        spec.setdefault("failedJobsHistoryLimit", 1)
        template = spec.setdefault("jobTemplate", {})
        template.setdefault("metadata", {})
        job = template.setdefault("spec", {})
        pod_template = job.setdefault("template", {})
        pod_template.setdefault("metadata", {})
        default_pod_spec(pod_template.setdefault("spec", {}))

    def validate(self, obj: Obj) -> list[Cause]:
        spec = obj["spec"]
        job = {"completionMode": "NonIndexed", **spec["jobTemplate"]["spec"]}
        causes = metadata_causes(obj, _cron_job_name_problems)
        causes += _schedule_causes(str(spec.get("schedule") or ""))
        if spec.get("timeZone") is not None:
            causes += _zone_causes(str(spec["timeZone"]))
        if spec.get("concurrencyPolicy") not in _CONCURRENCY:
            policy = spec.get("concurrencyPolicy")
            causes.append(unsupported("spec.concurrencyPolicy", policy, _CONCURRENCY))
        causes += _negative_causes(spec, "spec", "startingDeadlineSeconds")
        causes += _job_spec_causes(job, "spec.jobTemplate.spec")
        limits = ("successfulJobsHistoryLimit", "failedJobsHistoryLimit")
        return causes + _negative_causes(spec, "spec", *limits)


_CONCURRENCY = ("Allow", "Forbid", "Replace")
_LONGEST_CRON_JOB = 52  # its Jobs are called as it is, with eleven characters more


def _cron_job_name_problems(name: str) -> list[str]:
    long = len(name) > _LONGEST_CRON_JOB
    too_long = [f"must be no more than {_LONGEST_CRON_JOB} characters"] if long else []
    return subdomain_problems(name) + too_long


def _schedule_causes(schedule: str) -> list[Cause]:
    if not schedule:
        return [required("spec.schedule")]
    if "TZ" in schedule:
        why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        return [invalid_value("spec.schedule", schedule, why)]
    try:
        parse_schedule(schedule)
    except ValueError as error:
        return [invalid_value("spec.schedule", schedule, str(error))]
    return []


def _zone_causes(zone: str) -> list[Cause]:
    if not zone:
        return [invalid_value("spec.timeZone", zone, "timeZone must be nil or non-empty string")]
    if zone.lower() == "local":
        why = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
        return [invalid_value("spec.timeZone", zone, why)]
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return [invalid_value("spec.timeZone", zone, f"unknown time zone {zone}")]
    return []

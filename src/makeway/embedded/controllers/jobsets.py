"""JobSets: a Job for each replica of each replicated Job, and one outcome for all of them.

Suspending removes the Jobs that are not over; those that are stay counted, and resuming makes the rest anew from the templates
as they then are. A failure ends the set, or starts it or the Job again, as its failure policy says (`jobset_policies`).
"""

from __future__ import annotations

import copy

from makeway.client.resource import JOB_SETS, JOBS, Object
from makeway.control.clock import parse_timestamp
from makeway.embedded.controllers.jobset_policies import Verdict, judge
from makeway.embedded.controllers.plan import (
    Action,
    Create,
    Delete,
    Patch,
    Plan,
    Tell,
    merge_patch,
    plan,
)
from makeway.embedded.objects import (
    among,
    condition,
    deleted,
    name_of,
    namespace_of,
    owned_by,
    status_of,
    true,
    with_condition,
)

OURS = "jobset.sigs.k8s.io/jobset-controller"
PREFIX = "jobset.sigs.k8s.io/"
ATTEMPT = f"{PREFIX}restart-attempt"
COMPLETED = ("Completed", "AllJobsCompleted", "jobset completed successfully")


def reconcile(owner: Object, jobs: list[Object], now: float) -> Plan:
    if deleted(owner) or owner["spec"].get("managedBy", OURS) != OURS:
        return Plan()
    return _Look(owner, jobs, now).plan()


class _Look:
    """One look at one JobSet."""

    def __init__(self, owner: Object, jobs: list[Object], now: float) -> None:
        self.owner = owner
        self.spec: Object = owner["spec"]
        self.old = status_of(owner)
        self.now = now
        self.restarts = int(self.old.get("restarts") or 0)
        self.counted = int(self.old.get("restartsCountTowardsMax") or 0)
        self.conditions: list[Object] = list(self.old.get("conditions") or [])
        self.terminal = str(self.old.get("terminalState") or "")
        living = [job for job in jobs if not deleted(job)]
        self.current = {name_of(j): j for j in living if _attempt(j) == self.restarts}
        self.stale = [job for job in living if _attempt(job) != self.restarts]
        self.leaving = {name_of(job) for job in jobs if name_of(job) not in self.current}
        self.told: list[Action] = []

    def plan(self) -> Plan:
        changes: list[Action] = [self._remove(job) for job in self.stale]
        if self.terminal:
            changes += self._remove_unfinished()
            return plan(changes, self._write(), self._expire(), look_again_at=self._expires_at())
        verdict = judge(self.spec.get("failurePolicy"), self._failed(), self.counted)
        if verdict is not None:
            changes += self._heed(verdict)
        elif self._succeeded():
            self._end(*COMPLETED)
            changes += self._remove_unfinished()
        else:
            changes += self._suspend() if self.spec.get("suspend") else self._staff()
        return plan(changes, self._write(), self.told)

    def _failed(self) -> list[Object]:
        return [job for job in self.current.values() if true(job, "Failed")]

    def _heed(self, verdict: Verdict) -> list[Action]:
        """What was decided about a failure: the Jobs that go because of it."""
        if verdict.fails:
            self._end("Failed", verdict.reason, verdict.message)
            return self._remove_unfinished()
        self.told.append(Tell(self.owner, verdict.reason, verdict.message, warning=True))
        self.counted += verdict.counts
        if verdict.alone is None:
            self.restarts += 1  # the next look finds all Jobs to be of an earlier attempt
            return []
        del self.current[name_of(verdict.alone)]
        return [self._remove(verdict.alone)]

    def _remove(self, job: Object) -> Delete:
        """With its pods first: the next Job of this name must not meet them."""
        return Delete(JOBS, job, tell=self.owner, propagation="Foreground")

    def _expires_at(self) -> float | None:
        """When it may go, if it says so: so many seconds after its end."""
        kept_s = self.spec.get("ttlSecondsAfterFinished")
        ended = next((c for c in self.conditions if c["type"] == self.terminal), {})
        if kept_s is None or not ended.get("lastTransitionTime"):
            return None
        return parse_timestamp(ended["lastTransitionTime"]) + float(kept_s)

    def _expire(self) -> list[Action]:
        expires = self._expires_at()
        over = expires is not None and expires <= self.now
        return [Delete(JOB_SETS, self.owner)] if over else []

    def _succeeded(self) -> bool:
        policy = self.spec.get("successPolicy") or {}
        names = policy.get("targetReplicatedJobs") or [r["name"] for r in self._replicated]
        targets = [j for r in self._replicated if r["name"] in names for j in self._names(r)]
        done = [name for name in targets if true(self.current.get(name) or {}, "Complete")]
        if policy.get("operator") == "Any":
            return bool(done)
        return bool(targets) and len(done) == len(targets)

    def _end(self, kind: str, reason: str, message: str) -> None:
        self.terminal = kind
        self._set(kind, reason, message)
        self.told.append(Tell(self.owner, reason, message, warning=kind == "Failed"))

    # Jobs come and go

    @property
    def _replicated(self) -> list[Object]:
        found: list[Object] = self.spec.get("replicatedJobs") or []
        return found

    def _names(self, replicated: Object) -> list[str]:
        count = int(replicated.get("replicas", 1))
        return [f"{name_of(self.owner)}-{replicated['name']}-{index}" for index in range(count)]

    def _remove_unfinished(self) -> list[Action]:
        going = [j for j in self.current.values() if not _over(j)]
        self.current = {name: j for name, j in self.current.items() if _over(j)}
        return [Delete(JOBS, job, tell=self.owner) for job in going]

    def _suspend(self) -> list[Action]:
        known = next((c for c in self.conditions if c["type"] == "Suspended"), {})
        if known.get("status") != "True":
            self._set("Suspended", "SuspendedJobs", "jobset is suspended")
            self.told.append(Tell(self.owner, "SuspendedJobs", "jobset is suspended"))
        return self._remove_unfinished()

    def _staff(self) -> list[Action]:
        if among(self.conditions, "Suspended"):
            self._set("Suspended", "ResumeJobs", "jobset is resumed", status="False")
            self.told.append(Tell(self.owner, "ResumeJobs", "jobset is resumed"))
        policy = self.spec.get("failurePolicy") or {}
        if policy.get("restartStrategy") == "BlockingRecreate" and self.leaving:
            return []  # nobody of the next attempt meets anybody of the last one
        made: list[Object] = []
        global_index = 0
        for replicated in self._replicated:
            may_start = self._may_start(replicated)
            for index, name in enumerate(self._names(replicated)):
                if may_start and name not in self.current and name not in self.leaving:
                    made.append(self._job(replicated, index, global_index, name))
                global_index += 1
        return [Create(JOBS, job, tell=self.owner) for job in made]

    def _may_start(self, replicated: Object) -> bool:
        """Those it depends on are as far as they have to be; in order, all before it are ready."""
        waits = {d["name"]: d.get("status", "Ready") for d in replicated.get("dependsOn") or []}
        if (self.spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder":
            names = [r["name"] for r in self._replicated]
            waits |= dict.fromkeys(names[: names.index(replicated["name"])], "Ready")
        for other in self._replicated:
            asked = waits.get(other["name"])
            count = self._counts(other)
            done = count["succeeded"] + (count["ready"] if asked == "Ready" else 0)
            if asked and done < int(other.get("replicas", 1)):
                return False
        return True

    def _job(self, replicated: Object, index: int, global_index: int, name: str) -> Object:
        template = copy.deepcopy(replicated["template"])
        spec: Object = template.get("spec") or {}
        spec.setdefault("completionMode", "Indexed")
        if spec["completionMode"] == "Indexed" and spec.get("completions") is None:
            spec["completions"] = int(spec.get("parallelism", 1))
        spec["suspend"] = False
        labels = {
            f"{PREFIX}jobset-name": name_of(self.owner),
            f"{PREFIX}replicatedjob-name": replicated["name"],
            f"{PREFIX}replicatedjob-replicas": str(replicated.get("replicas", 1)),
            f"{PREFIX}job-index": str(index),
            f"{PREFIX}job-global-index": str(global_index),
            ATTEMPT: str(self.restarts),
        }
        pod_template = spec.setdefault("template", {})
        pod_spec = pod_template.setdefault("spec", {})
        pod_spec.setdefault("restartPolicy", "OnFailure")
        pod_spec.setdefault("subdomain", name_of(self.owner))
        _label(pod_template, labels)
        own = {"metadata": dict(template.get("metadata") or {})}
        _label(own, labels)
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                **own["metadata"],
                "name": name,
                "namespace": namespace_of(self.owner),
                "ownerReferences": owned_by(self.owner, JOB_SETS.api_version, "JobSet"),
            },
            "spec": spec,
        }

    # Status

    def _counts(self, replicated: Object) -> dict[str, int]:
        """Jobs, not pods; one is ready when all its pods are."""
        jobs = [self.current[n] for n in self._names(replicated) if n in self.current]
        open_ones = [job for job in jobs if not _over(job)]
        return {
            "active": sum(bool(status_of(job).get("active")) for job in open_ones),
            "failed": sum(true(job, "Failed") for job in jobs),
            "ready": sum(_ready(job) for job in open_ones),
            "succeeded": sum(true(job, "Complete") for job in jobs),
            "suspended": sum(bool(job["spec"].get("suspend")) for job in open_ones),
        }

    def _write(self) -> list[Action]:
        status: Object = {
            "conditions": self.conditions,
            "replicatedJobsStatus": [
                {"name": each["name"], **self._counts(each)} for each in self._replicated
            ],
            "restarts": self.restarts,
            "restartsCountTowardsMax": self.counted,
        }
        if self.terminal:
            status["terminalState"] = self.terminal
        if not self.conditions:
            del status["conditions"]
        body = merge_patch(self.old, status)
        return [Patch(JOB_SETS, self.owner, {"status": body}, "status")] if body else []

    def _set(self, kind: str, reason: str, message: str, status: str = "True") -> None:
        self.conditions = with_condition(
            self.conditions, kind, status=status, reason=reason, message=message, now=self.now
        )


def _label(obj: Object, labels: dict[str, str]) -> None:
    """As labels for whoever selects, and as annotations, as the real operator writes them."""
    metadata = dict(obj.get("metadata") or {})
    for field in ("labels", "annotations"):
        metadata[field] = {**(metadata.get(field) or {}), **labels}
    obj["metadata"] = metadata


def _attempt(job: Object) -> int:
    text = (job["metadata"].get("labels") or {}).get(ATTEMPT, "0")
    return int(text) if text.isdigit() else 0


def _over(job: Object) -> bool:
    return any(
        (condition(job, kind) or {}).get("status") == "True" for kind in ("Complete", "Failed")
    )


def _ready(job: Object) -> bool:
    spec, status = job["spec"], status_of(job)
    wanted = int(spec.get("parallelism", 1))
    if spec.get("completions") is not None:
        wanted = min(wanted, int(spec["completions"]))
    return int(status.get("ready") or 0) + int(status.get("succeeded") or 0) >= wanted

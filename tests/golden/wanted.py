"""The differences that are wanted: general rules, each with its reason. No rule names a situation.

A rule looks at the smallest part in which two facts differ: what the fact is about, the recorded value and ours.
The first rule that applies gives the reason; a part to which none applies is a difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any, NamedTuple

from makeway.model.resources import amount_of
from tests.golden.facts import Event, Key, event_of
from tests.golden.recording import Json

ABSENT = "(nothing)"

# Reasons of QuotaReserved=False and of the events that go with it.
COARSE = {"Pending", "Inadmissible", "Waiting"}
GRANULAR = {
    "ExceedsMaxQuota",
    "Misconfigured",
    "NoMatchingFlavor",
    "PendingEvaluation",
    "Suspended",
    "WaitingForNodes",
    "WaitingForPodsReady",
    "WaitingForPreemptedWorkloads",
    "WaitingForQuota",
}


class Context(NamedTuple):
    """What else a rule may have to know."""

    apart: Mapping[str, str] = MappingProxyType(
        {}
    )  # owners that went another way here (`namespace/name`), and why
    told: AbstractSet[Event] = frozenset()  # what we said in steps before
    want: Mapping[Key, Any] = MappingProxyType({})  # the recorded facts beside this one
    on_cluster: bool = False  # replayed on a real API server


class Rule(NamedTuple):
    why: str
    applies: Callable[[Key, str, Any, Any, Context], bool]


def reason(key: Key, path: str, want: Any, got: Any, context: Context) -> str:
    """Why this difference is wanted, or nothing."""
    if why := _went_apart(key, path, want, got, context):
        return why
    rules = (*RULES, *ON_CLUSTER) if context.on_cluster else RULES
    return next((rule.why for rule in rules if rule.applies(key, path, want, got, context)), "")


def same_granular(want: str, got: str) -> bool:
    return want in COARSE and got in GRANULAR


def going_apart(got: Json) -> dict[str, str]:
    """Owners whose way differs on purpose from here on, as a step's outcome on our side tells."""
    found: dict[str, str] = {}
    for workload in got.get("workloads") or ():
        for condition in (workload.get("status") or {}).get("conditions") or ():
            if condition.get("reason") == "WaitingForNodes":
                for owner in workload["metadata"].get("ownerReferences") or ():
                    found[f"{workload['metadata']['namespace']}/{owner['name']}"] = WAITS_FOR_NODES
    for said in got["newEvents"]:
        event = event_of(said)
        if event.reason.endswith("PriorityClassNotFound"):
            found[event.about.split(" ", 1)[1]] = CLASS_COMES_LATER
    return found


WAITS_FOR_NODES = "A queued workload whose quota is there and whose nodes are not waits, instead of being admitted in vain."
CLASS_COMES_LATER = (
    "A workload whose priority class is missing says so, and queues as soon as the class is there."
)
QUEUE_COUNTS = re.compile(
    r"status\.(?:pendingWorkloads|admittedWorkloads|reservingWorkloads|flavors\w+\.\S+)|unchanged"
)


def _went_apart(key: Key, _path: str, want: Any, got: Any, context: Context) -> str:
    """Whatever is said about an owner that goes another way here, its Workload and its pods; and what queues count."""
    if not context.apart:
        return ""
    said = f"{key.about} {key.field} {want} {got}"
    for owner, why in context.apart.items():
        space, name = owner.split("/", 1)
        one = re.escape(name)
        if space in said and re.search(
            rf"(?<![\w-])(?:(?:job|pod)-)?{one}(?:-<[hr]\d*>)?(?![\w-])", said
        ):
            return why
    kind = key.about.split()[0]
    why = next(iter(context.apart.values()))
    if kind in ("ClusterQueue", "LocalQueue") and QUEUE_COUNTS.fullmatch(key.field):
        return why
    if key.sort == "row" and re.search(r"get (?:clusterqueues|localqueues|cq|lq)", key.about):
        return why
    return why if "No resources found" in (want, got) else ""


def _told_before(key: Key, _path: str, want: Any, got: Any, context: Context) -> bool:
    if key.sort != "event" or got != ABSENT or not isinstance(want, dict):
        return False
    return any(
        event.about == want["about"]
        and event.note == want["note"]
        and (event.reason == want["reason"] or same_granular(want["reason"], event.reason))
        for event in context.told
    )


def _granular_reason(key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    """The same sentence under a more telling reason: in a condition, an event or a line of text."""
    if "reason=Pending" in key.about:
        return True  # nobody has that reason here
    if not isinstance(want, str) or not isinstance(got, str):
        return False
    if same_granular(want, got):
        return True
    ours = re.sub(r"\b(?:" + "|".join(sorted(GRANULAR)) + r")\b", "Pending", got)
    theirs = re.sub(r"\b(?:" + "|".join(sorted(COARSE)) + r")\b", "Pending", want)
    return ours == theirs


NO_RESERVATION = "The workload has no reservation"


def _not_admitted_yet(key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    """With the granular reasons comes the condition Admitted=False, and the column that shows it."""
    if want == ABSENT and isinstance(got, dict):
        told = "Admitted" in (key.field, got.get("type"))
        return told and got.get("message") == NO_RESERVATION
    if want == ABSENT and isinstance(got, str):
        return NO_RESERVATION in got and "Type: Admitted" in got
    if key.sort == "row" and isinstance(want, str):
        return want.split() == [word for word in str(got).split() if word != "False"]
    return False


# What our messages add: for whom by name, by which priorities, at what loss.
MORE = re.compile(r"; preemptor: [^;]*?; loss: \d+ GPU-seconds")


def _longer_preemption_message(
    _key: Key, _path: str, want: Any, got: Any, _context: Context
) -> bool:
    if not isinstance(want, str) or not isinstance(got, str):
        return False
    return MORE.sub("", got) == want


LEFT_AS_IT_WAS = re.compile(r"Previously: |Preempted to accommodate|The workload is deactivated")


def _silent_in_kueue(key: Key, path: str, want: Any, got: Any, _context: Context) -> bool:
    """A reason where Kueue gives none, and with it what was asked for and the event that tells it."""
    text = str(got)
    if want == ABSENT and key.sort in ("section", "line"):
        lines = rf"Warning (?:{'|'.join(sorted(GRANULAR))}) |Resource Requests:"
        quota = "Type: QuotaReserved" in text and "Status: False" in text
        return bool(re.match(lines, text)) or quota
    if want == ABSENT and isinstance(got, dict):
        if key.sort == "condition" and key.field == "QuotaReserved":
            return bool(got.get("status") == "False" and got.get("message"))
        return key.sort == "event" and got.get("reason") in GRANULAR
    if want == ABSENT:
        return key.field == "status.resourceRequests"
    if key.sort == "condition" and key.field == "QuotaReserved" and path == ".message":
        return bool(LEFT_AS_IT_WAS.match(str(want))) and "quota" in text
    return (
        key.sort == "section"
        and "Type: QuotaReserved" in text
        and "Type: QuotaReserved" in str(want)
        and "Message: Preempted to accommodate" in str(want)
    )


def _kind_is_served(key: Key, _path: str, _want: Any, _got: Any, context: Context) -> bool:
    if key.sort != "command":
        return False
    told = [str(said) for other, said in context.want.items() if other.about == key.about]
    return any('no matches for kind "PodGroup"' in said for said in told)


def _more_to_an_error(key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    if key.sort != "command":
        return False
    hint = want == ABSENT and str(got).startswith("Warning: ")
    diff = got == ABSENT and bool(re.match(r"@@|[-+ ]?[\"\]}{]|\.\.\. //|core\.PodSpec", str(want)))
    return hint or diff


def _own_annotation(key: Key, path: str, want: Any, got: Any, _context: Context) -> bool:
    if want == "<none>" and got == ABSENT:
        return key.field == "Annotations"  # kubectl says so where there are no annotations at all
    text = f"{path} {got}"
    return want == ABSENT and bool(re.search(r"(?:^|[. {'])makeway\.dev/", text))


def _attempt_in_between(key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    """A cycle here goes on until nothing changes: only its end is told, not each attempt of a loop."""
    told = want.get("note", "") if isinstance(want, dict) else want
    if got != ABSENT or not isinstance(told, str):
        return False
    return "no longer fits after processing" in told or "Pending the preemption of" in told


RULES = (
    Rule(
        "Reasons are told in Kueue's granular form (its own default from 0.20 on):"
        " WaitingForQuota, not Pending.",
        _granular_reason,
    ),
    Rule(
        "In the granular form a workload that waits says Admitted=False from the beginning.",
        _not_admitted_yet,
    ),
    Rule(
        "A preemption message begins as recorded and goes on with the preemptor's name,"
        " the priorities and the loss.",
        _longer_preemption_message,
    ),
    Rule(
        "Where Kueue is silent (an equal workload that was skipped, an unknown priority class)"
        " whoever waits is told why.",
        _silent_in_kueue,
    ),
    Rule(
        "What makeway has to remember beyond Kueue's fields stands in annotations of its own.",
        _own_annotation,
    ),
    Rule(
        "A cycle here runs until nothing changes; only its end is told, not the attempts in between.",
        _attempt_in_between,
    ),
    Rule(
        "The same is not told twice: an event for what was told before and has not changed is left out.",
        _told_before,
    ),
    Rule(
        "PodGroups are served here, whoever's they are.",
        _kind_is_served,
    ),
    Rule(
        "An error may come with a hint what to write; the dump of both objects behind it is left out.",
        _more_to_an_error,
    ),
)


# ---- on a real API server --------------------------------------------------------------------------


def _own_scheduler(_key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    """On a cluster the pods of queued workloads are placed by us, and nobody else may think they are his."""
    if not isinstance(want, str) or not isinstance(got, str) or got == ABSENT:
        return False
    return want != got and got.replace("makeway", "default-scheduler") == want


def _no_role_hash(key: Key, path: str, want: Any, got: Any, _context: Context) -> bool:
    if want == ABSENT and got == "<none>":
        return key.field == "Annotations"  # it was the only one
    return got == ABSENT and "kueue.x-k8s.io/role-hash" in f"{path} {want}"


QUANTITY = re.compile(r"\d+(?:[mkMGTPE]|[KMGTPE]i)?")


def _as_written(key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    if key.sort == "object" and key.field.startswith("spec.") and QUANTITY.fullmatch(str(want)):
        return amount_of("cpu", str(want)) == amount_of("cpu", str(got))
    if key.about.startswith("ClusterQueue ") and key.field in ("spec.cohortName", "spec.cohort"):
        return ABSENT in (want, got)
    lines = re.compile(r"Cohort(?: Name)?: \S+")
    return key.field == "Spec" and all(x == ABSENT or lines.fullmatch(str(x)) for x in (want, got))


def _installed(key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    return want == ABSENT and key.sort == "row" and str(got).startswith("makeway-critical ")


DENIED = re.compile(r".*(?:denied the request|denied request): ", re.DOTALL)


def _refused_by_policy(key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    """The same sentence, in the name of a policy instead of a webhook."""
    if key.sort != "command" or not isinstance(want, str) or "denied the request" not in want:
        return False
    return DENIED.sub("", want).rstrip('"') == DENIED.sub("", str(got)).rstrip('"')


ON_CLUSTER = (
    Rule("Pods of queued workloads have `schedulerName: makeway`.", _own_scheduler),
    Rule("Pods of groups carry no `role-hash` annotation.", _no_role_hash),
    Rule("Older Kueue fields keep their spelling, and amounts stay as written.", _as_written),
    Rule("The PriorityClass of makeway itself is there.", _installed),
    Rule(
        "What a webhook of Kueue refuses is refused by a policy, with the same sentence.",
        _refused_by_policy,
    ),
)


def reasons() -> list[str]:
    """All of them, as the docs list them."""
    return [WAITS_FOR_NODES, CLASS_COMES_LATER, *(rule.why for rule in (*RULES, *ON_CLUSTER))]

"""The differences that are wanted: general rules, each with its reason. No rule names a situation.

A rule looks at the smallest part in which two facts differ: what the fact is about, the recorded value and ours.
The first rule that applies gives the reason; a part to which none applies is a difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.golden.apart import ABSENT, CLASS_COMES_LATER, WAITS_FOR_NODES, Apart
from tests.golden.facts import Event, Key

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

    apart: Apart | None = None  # owners that go another way here
    told: AbstractSet[Event] = frozenset()  # what we said in steps before
    want: Mapping[Key, Any] = MappingProxyType({})  # the recorded facts that stand now
    got: Mapping[Key, Any] = MappingProxyType({})  # ours
    events: Collection[Event] = ()  # the recorded events of this step
    more: Sequence[Rule] = ()  # rules for where it is replayed


class Rule(NamedTuple):
    why: str
    applies: Callable[[Key, str, Any, Any, Context], bool]


def reason(key: Key, path: str, want: Any, got: Any, context: Context) -> str:
    """Why this difference is wanted, or nothing."""
    if context.apart and (why := context.apart.excuses(key, path, want, got)):
        return why
    rules = (*RULES, *context.more)
    return next((rule.why for rule in rules if rule.applies(key, path, want, got, context)), "")


def same_granular(want: str, got: str) -> bool:
    return want in COARSE and got in GRANULAR


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
NOT_ADMITTED = (NO_RESERVATION, "The workload has not all checks ready")


def _not_admitted_yet(key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    """With the granular reasons comes the condition Admitted=False, and the column that shows it."""
    if want == ABSENT and isinstance(got, dict):
        told = "Admitted" in (key.field, got.get("type"))
        return told and got.get("message") in NOT_ADMITTED
    if want == ABSENT and isinstance(got, str):
        return any(words in got for words in NOT_ADMITTED) and "Type: Admitted" in got
    if key.sort == "row" and isinstance(want, str):
        return want.split() == [word for word in str(got).split() if word != "False"]
    return False


# Instead of "unchanged".
NEWER_REASON = "has a newer reason to wait"


def _kept_up_to_date(key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    return key.field == "unchanged" and want is True and got == NEWER_REASON


def _kept_until_stopped(key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    ours = key.about.startswith("Workload ") and "/statefulset-" in key.about
    return ours and key.field == "finalizers" and want == ABSENT and got != ABSENT


# What our messages add: for whom by name, by which priorities, at what loss.
MORE = re.compile(r"; preemptor: [^;]*?; loss: \d+ GPU-seconds")


def _longer_preemption_message(
    _key: Key, _path: str, want: Any, got: Any, _context: Context
) -> bool:
    if not isinstance(want, str) or not isinstance(got, str):
        return False
    return MORE.sub("", got) == want


LEFT_AS_IT_WAS = re.compile(r"Previously: |Preempted to accommodate|The workload is deactivated")
WAITING = re.compile(rf"(?:<age> )?Warning (?:{'|'.join(sorted(GRANULAR))}) ")


def _silent_in_kueue(key: Key, path: str, want: Any, got: Any, context: Context) -> bool:
    """A reason where Kueue gives none, and with it what was asked for and the event that tells it."""
    text = str(got)
    if key.sort == "condition" and key.field == "QuotaReserved":
        if want == ABSENT:
            return bool(got.get("status") == "False" and got.get("message"))
        return path == ".message" and bool(LEFT_AS_IT_WAS.match(str(want))) and "quota" in text
    silent = any(_was_silent(about, text, context) for about in _subjects(key, text))
    if want == ABSENT:
        if key.sort == "event":
            return silent and isinstance(got, dict) and got.get("reason") in GRANULAR
        if key.sort in ("section", "line"):
            quota = "Type: QuotaReserved" in text and "Status: False" in text
            asked = text.startswith("Resource Requests:")
            return silent and (bool(WAITING.match(text)) or quota or asked)
        return silent and key.field == "status.resourceRequests"
    return (
        key.sort == "section"
        and "Type: QuotaReserved" in text
        and "Type: QuotaReserved" in str(want)
        and "Message: Preempted to accommodate" in str(want)
    )


def _subjects(key: Key, line: str) -> list[str]:
    """The Workloads that a fact can be about: by name, whatever their namespace where a table leaves it out."""
    if key.about.startswith("Workload "):
        return [key.about]
    named = re.search(r"workload/([\w.<>-]+)", line) or re.search(
        r"describe workloads?\b.*? ([\w.<>-]+)$", key.about
    )
    return [f"Workload */{named.group(1)}"] if named else []


def _was_silent(about: str, text: str, context: Context) -> bool:
    """No reason in the recording, or one left over from before, or one that only its condition tells."""
    said = [
        told
        for other, told in context.want.items()
        if other.field == "QuotaReserved" and _same_object(about, other.about)
    ]
    return not said or any(
        told["status"] == "False"
        and (LEFT_AS_IT_WAS.match(told["message"]) or told["message"] in text)
        for told in said
    )


def _same_object(about: str, other: str) -> bool:
    return about == other or ("*/" in about and other.endswith(about.split("*", 1)[1]))


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


def _attempt_in_between(key: Key, _path: str, want: Any, got: Any, context: Context) -> bool:
    """A cycle here goes on until nothing changes: only its end is told, not each attempt of a loop."""
    told = want.get("note", "") if isinstance(want, dict) else want
    if got != ABSENT or not isinstance(told, str):
        return False
    if "no longer fits after processing" in told or "Pending the preemption of" in told:
        return True
    tried_again = re.search(r"nodes are available: .*preemption: ", told)
    return bool(tried_again) and _was_placed(key, told, context)


def _was_placed(key: Key, line: str, context: Context) -> bool:
    """The pod that a fact is about has its node on both sides when the step is over."""
    named = re.search(r"\bpod/([\w.<>-]+)", line) or re.search(
        r"(?:describe pods?\b.*? |^Pod \S*?/)([\w.<>-]+)$", key.about
    )
    if not named:
        return False
    name = f"/{named.group(1)}"
    return all(
        any(k.field == "spec.nodeName" and k.about.endswith(name) for k in side)
        for side in (context.want, context.got)
    )


def _told_by_its_condition(key: Key, _path: str, want: Any, got: Any, context: Context) -> bool:
    """Kubernetes counts an event on an earlier one about the same version of an object, and the new words are lost."""
    if want != ABSENT or not isinstance(got, dict | str):
        return False
    note = got.get("note", "") if isinstance(got, dict) else got
    if "FailedScheduling" not in str(got):
        return False
    named = re.search(r"\bpod/([\w.<>-]+)", str(note)) or re.search(
        r"(?:describe pods?\b.*? |^Pod \S*?/)([\w.<>-]+)$", key.about
    )
    return named is not None and any(
        k.field == "PodScheduled"
        and k.about.endswith(f"/{named.group(1)}")
        and said["message"]
        and str(note).endswith(said["message"])
        for k, said in context.want.items()
    )


VICTIM = re.compile(r"Preempted workload (\S+) \(UID")


def _each_victim_told(_key: Key, _path: str, want: Any, got: Any, context: Context) -> bool:
    """As above: of several victims of one workload, Kueue's events name the first."""
    found = VICTIM.search(str(got))
    if want != ABSENT or not found or "PreemptedWorkload" not in str(got):
        return False
    named = any(found.group() in event.note for event in context.events)
    victim = f"Workload {found.group(1)}"
    fell = any(e.about == victim and e.reason == "EvictedDueToPreempted" for e in context.events)
    return fell and not named


def _counted_on_the_way(key: Key, _path: str, want: Any, got: Any, context: Context) -> bool:
    """Jobs count their pods at once here, a second later there: who is over by then never said so."""
    if want != ABSENT:
        return False
    if key.field != "status.reclaimablePods" and not str(got).startswith("Reclaimable Pods:"):
        return False
    return any(
        _finished(about, context.want) and _finished(about, context.got)
        for about in {k.about for k in context.want if k.field == "Finished"}
        if key.about
        in (about, f"kubectl describe workloads -n {about.split()[1].replace('/', ' ')}")
    )


def _finished(about: str, facts: Mapping[Key, Any]) -> bool:
    return bool((facts.get(Key("condition", about, "Finished")) or {}).get("status") == "True")


RACED_FOR = {"bound", "told to end", "deleting"}


def _never_ran(key: Key, _path: str, want: Any, got: Any, context: Context) -> bool:
    """A pod that is stopped before it runs may or may not have had a node: two writers race."""
    if key.sort == "order" and key.field == "life" and key.about.startswith("Pod "):
        lives = [str(side).split(", ") for side in (want, got)]
        whole = all(life[0] == "created" and life[-1] == "gone" for life in lives)
        return whole and set(lives[0]) ^ set(lives[1]) <= RACED_FOR
    if key.sort != "event" or ABSENT not in (want, got) or not key.about.startswith("Pod "):
        return False
    said = got if want == ABSENT else want
    gone = Key("object", key.about, "exists")
    return (
        said.get("reason") == "Scheduled" and gone not in context.want and gone not in context.got
    )


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
        "Whoever waits is told its reason of now, where Kueue may leave one that is no longer true.",
        _kept_up_to_date,
    ),
    Rule(
        "The Workload of a StatefulSet is kept by its finalizer until its pods have stopped.",
        _kept_until_stopped,
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
        "Each new reason and each victim has an event of its own, where Kubernetes counts it on an earlier one of other words.",
        lambda *fact: _told_by_its_condition(*fact) or _each_victim_told(*fact),
    ),
    Rule(
        "A Job's pods are counted at once, so that a Workload may say what it gave back before its Job is over.",
        _counted_on_the_way,
    ),
    Rule(
        "Whether a pod that is stopped before it runs had got a node already is luck.",
        _never_ran,
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


def reasons() -> list[str]:
    """All of them, as the docs list them."""
    return [WAITS_FOR_NODES, CLASS_COMES_LATER, *(rule.why for rule in RULES)]

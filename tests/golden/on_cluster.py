"""What differs on a real API server, beside what differs anyway: one rule each, listed in docs/reference/differences.md."""

from __future__ import annotations

import re
from typing import Any

from makeway.model.resources import amount_of
from tests.golden.apart import ABSENT
from tests.golden.facts import Key
from tests.golden.wanted import Context, Rule


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


# Of one definition without conversion: what v1beta1 called otherwise, by its name in v1beta2.
RENAMED = {
    "cohort": "cohortName",
    "flavorUsage": "flavorsUsage",
    "priorityClassName": "priorityClassRef",
    "priorityClassSource": "priorityClassRef",
}


def _printed_as_written(key: Key, path: str, want: Any, got: Any) -> bool:
    """In `-o yaml`: the spelling that is stored, asked for in another version."""
    field = path.rsplit(".", 1)[-1]
    if field == "nominalQuota":
        return str(want) == str(got)
    older = ".v1beta1." in key.about
    if got == ABSENT:
        return older and field in RENAMED
    return older and want == ABSENT and field in RENAMED.values()


def _as_written(key: Key, path: str, want: Any, got: Any, _context: Context) -> bool:
    if key.sort == "section" and "-o yaml" in key.about:
        return _printed_as_written(key, path, want, got)
    amounts = QUANTITY.fullmatch(str(want)) and QUANTITY.fullmatch(str(got))
    if key.sort == "object" and key.field.startswith("spec.") and amounts:
        return amount_of("cpu", str(want)) == amount_of("cpu", str(got))
    if key.about.startswith("ClusterQueue ") and key.field in ("spec.cohortName", "spec.cohort"):
        return ABSENT in (want, got)
    lines = re.compile(r"Cohort(?: Name)?: \S+")
    return key.field == "Spec" and all(x == ABSENT or lines.fullmatch(str(x)) for x in (want, got))


def _installed(key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    return want == ABSENT and key.sort == "row" and str(got).startswith("makeway-critical ")


STRICT = "strict decoding error: "
# The object that a sentence is about, which CEL cannot write out.
DUMP = re.compile(r"\{.*\}: ")
DENIED = re.compile(r".*(?:denied the request|denied request): ", re.DOTALL)


def _refused_by_policy(key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    """The same sentence, in the name of a policy instead of a webhook or the decoder."""
    sentence, said = _sentence(want), _sentence(got)
    return key.sort == "command" and bool(sentence) and sentence == said


def _sentence(said: Any) -> str:
    text = str(said)
    if STRICT in text:
        return text[text.index(STRICT) :].rstrip('"')
    return DUMP.sub("", DENIED.sub("", text)).rstrip('"') if DENIED.match(text) else ""


def _no_number(key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    """Its form is checked by the definition, before anybody could say it in other words."""
    return (
        key.sort == "command"
        and "quantities must match the regular expression" in str(want)
        and "in body should match" in str(got)
    )


def _not_ready_yet(key: Key, _path: str, want: Any, got: Any, _context: Context) -> bool:
    """The API server taints every new node until the node controller has seen it; whether a cycle falls between is luck."""
    told = key.sort == "event" or key.field == "Events"
    return want == ABSENT and told and NOT_READY in str(got) and "FailedScheduling" in str(got)


NOT_READY = "node(s) had untolerated taint(s)"

ON_CLUSTER = (
    Rule("Pods of queued workloads have `schedulerName: makeway`.", _own_scheduler),
    Rule("Pods of groups carry no `role-hash` annotation.", _no_role_hash),
    Rule("Older Kueue fields keep their spelling, and amounts stay as written.", _as_written),
    Rule("The PriorityClass of makeway itself is there.", _installed),
    Rule(
        "What a webhook of Kueue refuses is refused by a policy, with the same sentence.",
        _refused_by_policy,
    ),
    Rule(
        "A node that has just come is not ready for a moment, and who waits may hear it.",
        _not_ready_yet,
    ),
    Rule("A quantity that is none is refused by the definition, with its pattern.", _no_number),
)

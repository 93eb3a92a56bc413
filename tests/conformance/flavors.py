"""kind `flavorAssigner`: one assignment, with a stub that says where preemption would help."""

from __future__ import annotations

from typing import Any

from makeway.engine.flavors import Assigner
from makeway.engine.proposal import (
    FlavorAttempt,
    Mode,
    Offer,
    PodSetProposal,
    Possibility,
    Proposal,
)
from makeway.engine.quota import FlavorResource
from makeway.engine.state import State
from makeway.model.queue import QueueName
from tests.conformance.load import amounts, differ, policy_of, read_workload, state_of

Case = dict[str, Any]
MODES = {
    Mode.NO_FIT: "NoFit",
    Mode.PREEMPT: "Preempt",
    Mode.DEFERRED_FIT: "DeferredFit",
    Mode.FIT: "Fit",
}
POSSIBILITIES = {
    "NoCandidates": Possibility.NO_CANDIDATES,
    "Preempt": Possibility.PREEMPT,
    "Reclaim": Possibility.RECLAIM,
}


def check(case: Case) -> list[str]:
    state = state_of(case, pending=False)
    proposal = _assign(case, state)
    want = case["want"]
    problems = [
        *differ("mode", want["mode"], MODES[proposal.mode]),
        *differ("borrowing", want["borrowing"], proposal.borrowing),
        *differ("no-fit reason", want["noFitReason"], proposal.no_fit.kueue),
        *differ("usage", _flat_usage(want["usage"]), dict(proposal.usage)),
        *differ("number of pod sets", len(want["podSets"]), len(proposal.pod_sets)),
    ]
    for wanted, got in zip(want["podSets"], proposal.pod_sets, strict=False):
        problems += _check_pod_set(wanted, got)
    return problems


def _assign(case: Case, state: State) -> Proposal:
    for queue, usage in (case.get("usage") or {}).items():
        state.ledger.add_usage(queue, _flat_usage(usage))
    name = QueueName(case["targetClusterQueue"])
    assigner = Assigner(
        queue=state.queues[name],
        node=state.ledger.queue(name),
        flavors=state.flavors,
        policy=policy_of(case),
        oracle=lambda fr, amount: _oracle(case["preemptionOracle"], fr),
    )
    return assigner.assign(read_workload(case, case["workloads"]["pending"][0]))


def _oracle(stub: Case, fr: FlavorResource) -> Offer:
    flavor, resource = fr
    found = next(
        (r for r in stub["results"] if (r["flavor"], r["resource"]) == (flavor, resource)),
        stub["default"],
    )
    return Offer(POSSIBILITIES[found["possibility"]], found["borrowingAfter"])


def _flat_usage(usage: dict[str, dict[str, str]] | None) -> dict[FlavorResource, int]:
    return {(f, r): a for f, per in (usage or {}).items() for r, a in amounts(per).items()}


def _check_pod_set(want: Case, got: PodSetProposal) -> list[str]:
    name = want["name"]
    choices = {
        r: {"flavor": c.flavor, "mode": MODES[c.mode], "triedFlavorIdx": c.tried_index}
        for r, c in got.choices.items()
    }
    return [
        *differ("pod set", name, got.name),
        *differ(f"count of {name}", want["count"], got.count),
        *differ(f"requests of {name}", amounts(want["requests"]), dict(got.requests)),
        *differ(f"flavors of {name}", want.get("flavors") or {}, choices),
        *differ(f"error of {name}", want.get("error") or "", got.error),
        *differ(f"reasons of {name}", sorted(want.get("reasons") or ()), sorted(got.reasons)),
        *_check_attempts(name, want.get("attempts") or (), got.attempts),
    ]


def _check_attempts(
    name: str, wanted: list[Case] | tuple[()], got: tuple[FlavorAttempt, ...]
) -> list[str]:
    """As loosely as Kueue's own test: once some flavor fits, the others need not have been looked at."""
    looked_at = [_attempt(attempt) for attempt in got]
    missing = [w for w in map(_wanted_attempt, wanted) if w not in looked_at]
    if any(attempt.mode is Mode.FIT for attempt in got):
        return []
    return [f"attempts of {name}: want {missing!r} among {looked_at!r}"] if missing else []


def _wanted_attempt(item: Case) -> tuple[str, str, int, str, list[str], str]:
    return (
        item["flavor"],
        item["mode"],
        item["borrow"],
        item.get("preemptionPossibility") or "",
        sorted(item.get("reasons") or ()),
        item.get("noFitReason") or "",
    )


def _attempt(attempt: FlavorAttempt) -> tuple[str, str, int, str, list[str], str]:
    names = {possibility: name for name, possibility in POSSIBILITIES.items()}
    return (
        attempt.flavor,
        MODES[attempt.mode],
        attempt.offer.borrow,
        names.get(attempt.offer.possibility, ""),
        sorted(attempt.reasons),
        attempt.no_fit.kueue,
    )

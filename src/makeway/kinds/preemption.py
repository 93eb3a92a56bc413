"""`Preemption` objects: what is written down before the first victim is touched.

While one is open it is also the hold: the room that its victims leave is kept for the workload that asked. After a restart
the open ones are read back, and what was begun is finished. Closed ones stay as the record of who was evicted for whom.

When very many begin at once, one object stands for several: the first, with the others in its spec and their statuses by who asked.
`apart` gives each in the form of one that is alone, and that is what everybody reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from makeway.control.clock import timestamp
from makeway.kinds.metadata import Json, Object, metadata, name, seconds, spec, status, uid
from makeway.model.decision import Bind, Evict, Hold, Lowered
from makeway.model.history import Eviction
from makeway.model.node import NodeName
from makeway.model.queue import FlavorName, QueueName
from makeway.model.reason import Reason
from makeway.model.resources import amount_of, format_amount
from makeway.model.workload import Admission, Assignment, Placed, PodId, WorkloadId

API_VERSION: Final = "makeway.dev/v1alpha1"
KIND: Final = "Preemption"
# What becomes of a victim: it queues again, its owner makes new pods, somebody has to bring them, or it is over.
REQUEUED: Final = "Requeued"
RECREATED: Final = "Recreated"
WAITS_FOR_PODS: Final = "WaitsForReplacementPods"
LOWERED: Final = "Lowered"  # it goes on with fewer pods
ENDED: Final = "Preempted"
OTHERS: Final = "others"
PART: Final = "#"  # between the name of the object and the number of one in it; no name has it
OPEN: Final = frozenset({"", "Planned", "Evicting", "Draining"})


class Loss(NamedTuple):
    """One eviction of one owner's work; how long its save took, where that was seen."""

    owner: str
    eviction: Eviction
    save_s: float | None


def preemption_name(preemptor_uid: str, attempt: int) -> str:
    """The same for the same attempt: created twice it is one object."""
    digest = hashlib.sha256(f"{preemptor_uid}/{attempt}".encode()).hexdigest()[:10]
    return f"preemption-{digest}-{attempt}"


def is_open(obj: Json) -> bool:
    return str(status(obj).get("phase") or "") in OPEN


def compose(
    hold: Hold,
    evicts: Iterable[Evict],
    *,
    attempt: int,
    preemptor_uid: str,
    preemptor_owner: str = "",
    home: str,
    uids: dict[str, tuple[str, str]],
    pod_uids: dict[str, str],
    afterwards: dict[str, str],
    now: float,
) -> Object:
    """The record of a preemption that is about to begin. `uids` gives each victim's own uid and whose work it is, `afterwards`
    what will become of it.
    """
    victims = [
        {
            "workload": evict.workload,
            "uid": uids.get(evict.workload, ("", ""))[0],
            "owner": uids.get(evict.workload, ("", ""))[1],
            "pods": list(evict.pods),
            "podUIDs": [pod_uids.get(pod, "") for pod in evict.pods],
            "rule": evict.reason.rule or evict.reason.kueue,
            "lossGPUSeconds": round(evict.loss, 3),
            "noticeSeconds": evict.notice_s,
            "afterwards": afterwards.get(evict.workload, ENDED),
            **_lowered_json(evict),
        }
        for evict in evicts
    ]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"namespace": home, "name": preemption_name(preemptor_uid, attempt)},
        "spec": {
            "preemptor": hold.workload,
            "preemptorUID": preemptor_uid,
            "preemptorOwner": preemptor_owner,
            "attempt": attempt,
            "rule": hold.rule,
            "victims": victims,
            "lossGPUSeconds": round(hold.loss, 3),
            "provenBoundGPUSeconds": None if hold.bound is None else round(hold.bound, 3),
            "searchSteps": hold.steps,
            **_alternatives_json(hold),
            "plannedAt": timestamp(now),
            "hold": _hold_json(hold),
        },
    }


def together(records: Sequence[Object]) -> Object:
    """One object for several of one moment and one namespace."""
    first, *others = records
    if not others:
        return first
    return {**first, "spec": {**first["spec"], OTHERS: [other["spec"] for other in others]}}


def apart(obj: Object) -> list[Object]:
    """Each preemption that an object stands for; the first is the object itself."""
    told = status(obj).get(OTHERS) or {}
    found = [obj]
    for number, said in enumerate(spec(obj).get(OTHERS) or [], 1):
        own = {"name": f"{name(obj)}{PART}{number}", "uid": f"{uid(obj)}{PART}{number}"}
        found.append(
            {
                **obj,
                "metadata": {**metadata(obj), **own},
                "spec": said,
                "status": told.get(said["preemptor"]) or {},
            }
        )
    return found


def is_part(record: Json) -> bool:
    """It has no object of its own."""
    return PART in name(record)


def shared(record: Json) -> bool:
    """Its object stands for others too."""
    return is_part(record) or bool(spec(record).get(OTHERS))


def written(record: Json, change: Object) -> tuple[str, Object]:
    """The object's name and the change of its status that changes the status of this one."""
    if not is_part(record):
        return name(record), change
    return name(record).split(PART)[0], {OTHERS: {spec(record)["preemptor"]: change}}


def _alternatives_json(hold: Hold) -> Object:
    if not hold.alternatives:
        return {}
    return {
        "alternatives": [
            {
                "victims": list(other.victims),
                "lossGPUSeconds": round(other.loss, 3),
                "because": other.because,
            }
            for other in hold.alternatives
        ]
    }


def _lowered_json(evict: Evict) -> Object:
    if evict.keeps is None:
        return {}
    return {"loweredFrom": evict.keeps + len(evict.pods), "loweredTo": evict.keeps}


def _hold_json(hold: Hold) -> Object:
    room: Object = {"until": timestamp(hold.until)}
    if hold.queue:
        room["clusterQueue"] = hold.queue
    if hold.admission is not None:
        room["admission"] = [
            {
                "podSet": given.pod_set,
                "flavors": dict(given.flavors),
                "usage": {r: format_amount(r, a) for r, a in given.usage},
                "count": given.count,
            }
            for given in hold.admission.assignments
        ]
    if hold.placement:
        room["placement"] = [
            {"podSet": p.pod_set, "node": p.node, "count": p.count} for p in hold.placement
        ]
    if hold.nominations:
        room["nominations"] = [{"pod": b.pod, "node": b.node} for b in hold.nominations]
    return room


def hold_from(obj: Json) -> Hold | None:
    """The hold that an open Preemption stands for."""
    if not is_open(obj):
        return None
    said = spec(obj)
    room = said.get("hold") or {}
    queue = room.get("clusterQueue")
    return Hold(
        workload=WorkloadId(str(said.get("preemptor") or "")),
        queue=QueueName(queue) if queue else None,
        admission=_admission(room, queue),
        placement=tuple(
            Placed(pod_set=p["podSet"], node=NodeName(p["node"]), count=int(p["count"]))
            for p in room.get("placement") or []
        ),
        nominations=tuple(
            Bind(pod=PodId(b["pod"]), node=NodeName(b["node"]))
            for b in room.get("nominations") or []
        ),
        victims=tuple(WorkloadId(v["workload"]) for v in said.get("victims") or []),
        lowered=tuple(
            Lowered(
                workload=WorkloadId(v["workload"]),
                gives=len(v.get("pods") or []),
                keeps=int(v["loweredTo"]),
            )
            for v in said.get("victims") or []
            if v.get("loweredTo") is not None
        ),
        until=seconds(room.get("until")) or 0.0,
        loss=float(said.get("lossGPUSeconds") or 0.0),
        rule=str(said.get("rule") or ""),
    )


def _admission(room: Json, queue: str | None) -> Admission | None:
    if not queue or not room.get("admission"):
        return None
    return Admission(
        queue=QueueName(queue),
        assignments=tuple(
            Assignment(
                pod_set=given["podSet"],
                flavors=tuple(sorted((r, FlavorName(f)) for r, f in given["flavors"].items())),
                usage=tuple(sorted((r, amount_of(r, q)) for r, q in given["usage"].items())),
                count=int(given["count"]),
            )
            for given in room["admission"]
        ),
        reserved_at=0.0,
        admitted=False,
    )


def evictions(obj: Json) -> list[Evict]:
    """What was decided when the record was written, to be done by whoever finds it undone."""
    said = spec(obj)
    return [
        Evict(
            workload=WorkloadId(str(victim["workload"])),
            pods=tuple(PodId(pod) for pod in victim.get("pods") or []),
            keeps=None if victim.get("loweredTo") is None else int(victim["loweredTo"]),
            preemptor=WorkloadId(str(said.get("preemptor") or "")),
            reason=Reason(kind="preempted", kueue="Preempted", rule=str(victim.get("rule") or "")),
            loss=float(victim.get("lossGPUSeconds") or 0.0),
            notice_s=float(victim.get("noticeSeconds") or 0.0),
        )
        for victim in said.get("victims") or []
    ]


def losses(obj: Json) -> list[Loss]:
    """Whose work was evicted, when and for whom: pods are recreated, so the history is their owner's."""
    if status(obj).get("phase") == "Planned":
        return []  # nobody was told for a while: it may come to nothing
    said = spec(obj)
    at = seconds(said.get("plannedAt")) or 0.0
    by = str(said.get("preemptorOwner") or said.get("preemptorUID") or "")
    took = status(obj).get("saveSeconds") or {}
    found = []
    for victim in said.get("victims") or []:
        owner = str(victim.get("owner") or victim.get("uid") or "")
        if owner:
            save_s = took.get(victim.get("workload"))
            found.append(
                Loss(owner, Eviction(at=at, by=by), None if save_s is None else float(save_s))
            )
    return found


def attempts(known: Iterable[Json], preemptor_uid: str) -> int:
    """The number of the last preemption that this workload asked for."""
    mine = [o for o in known if spec(o).get("preemptorUID") == preemptor_uid]
    return max((int(spec(o).get("attempt") or 1) for o in mine), default=0)


def covers(obj: Json, preemptor: str, evicts: Iterable[Evict]) -> bool:
    """An open record for this workload that names these victims already: a restart found it."""
    said = spec(obj)
    if not is_open(obj) or said.get("preemptor") != preemptor:
        return False
    named = {v["workload"] for v in said.get("victims") or []}
    return {evict.workload for evict in evicts} <= named


def victim_text(victim: Json) -> str:
    """Its name, and what is left of it where it was lowered."""
    if victim.get("loweredTo") is None:
        return str(victim["workload"])
    return f"{victim['workload']} ({victim['loweredFrom']} to {victim['loweredTo']} pods)"


def progress(obj: Json, phase: str, message: str, now: float) -> Object:
    """The status of a preemption on its way; nothing when it is there already."""
    if status(obj).get("phase") == phase and status(obj).get("message") == message:
        return {}
    change: Object = {"phase": phase, "message": message, **_columns(obj)}
    if phase not in OPEN:
        change["completedAt"] = timestamp(now)
    return change


def _columns(obj: Json) -> Object:
    """What `kubectl get` shows: of an object that stands for several, one line for all."""
    if is_part(obj):
        return {}
    others = spec(obj).get(OTHERS) or []
    loss = sum(float(said.get("lossGPUSeconds") or 0.0) for said in (spec(obj), *others))
    victims = ", ".join(victim_text(v) for v in spec(obj).get("victims") or [])
    return {
        "victimsText": f"{victims}; and those of {len(others)} others" if others else victims,
        "lossText": f"{loss / 60:.1f} GPU-minutes",
    }

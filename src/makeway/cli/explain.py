"""`makeway explain NAME`: why it waits, asked of the engine now, on the cluster as it is now.

What is missing and where, who has it and which rule keeps them safe, and the cheapest change that would let it run. Nothing
is decided and nothing is written.
"""

from __future__ import annotations

from pathlib import Path

from makeway.cli.cluster import with_client
from makeway.cli.home import Home
from makeway.cli.nearby import did_you_mean
from makeway.cli.output import out
from makeway.cli.status import PREEMPTIONS
from makeway.cli.up import options_of
from makeway.client import Client
from makeway.client.client import ApiError
from makeway.client.resource import CONFIG_MAPS, Object
from makeway.control.clock import SystemClock
from makeway.control.config import Configuration, load, parse, policy_of
from makeway.control.explain import Explanation
from makeway.control.explain import explain as ask
from makeway.control.sentences import shortage_sentence
from makeway.engine.state import State
from makeway.errors import UserError
from makeway.kinds.preemption import apart
from makeway.kube.manifests import NAME as INSTALLED
from makeway.kube.snapshot import read_state
from makeway.model.history import owner_of
from makeway.model.reason import Holder
from makeway.model.workload import WorkloadId


def explain(home_option: Path | None, name: str, namespace: str) -> None:
    home = Home.chosen(home_option)

    async def work(client: Client) -> tuple[State, Explanation, Object | None]:
        config = await _config(client, home)
        clock = SystemClock()
        state = await read_state(client, config, clock)
        found = _find(state, name.rsplit("/", 1)[-1], namespace)
        record = _last_record(await _records(client), found)
        return state, ask(state, found, clock.now(), policy_of(config)), record

    state, answer, record = with_client(home_option, work)
    if out.as_json:
        out.result(answer)
    else:
        _print(state, answer)
        _print_alternatives(state, answer, record)


async def _config(client: Client, home: Home) -> Configuration:
    """The one that the scheduler works by: of this home, or as `makeway install` put it into the cluster."""
    if home.running_pid() is not None:
        named = options_of(home).config
        return load(named) if named is not None else Configuration()
    try:
        found = await client.list(CONFIG_MAPS, field_selector=f"metadata.name={INSTALLED}")
    except ApiError:
        return Configuration()  # no right to read it: the defaults are the best guess
    texts = [str((item.get("data") or {}).get("config.yaml") or "") for item in found]
    return parse(texts[0], where=f"ConfigMap {INSTALLED}") if texts else Configuration()


async def _records(client: Client) -> list[Object]:
    try:
        return [one for obj in await client.list(PREEMPTIONS) for one in apart(obj)]
    except ApiError:
        return []  # not served, or no right to read them: the reason itself needs none


def _find(state: State, name: str, namespace: str) -> WorkloadId:
    """By the name its owner gave it, by its Workload's, or by that of one of its pods."""
    here = [w for w in state.workloads.values() if w.namespace == namespace]
    by_owner = [w for w in here if w.owner.rsplit("/", 1)[-1] == name]
    by_name = [w for w in here if w.name == name]
    pod = next((p for p in state.pods.values() if p.id == f"{namespace}/{name}"), None)
    found = [w.id for w in (*by_name, *by_owner)] + ([pod.workload] if pod is not None else [])
    if found:
        return found[0]
    known = [n for w in here for n in (w.name, w.owner.rsplit("/", 1)[-1]) if n]
    raise UserError(
        f'there is no job, workload or pod called "{name}" in namespace {namespace}.',
        hint=did_you_mean(name, known) or "List them: makeway status",
    )


def _print(state: State, answer: Explanation) -> None:
    title = answer.owner or answer.workload
    verb = "waits" if answer.waits else "does not wait"
    print(f"{title} {verb}: {_named(state, answer.why.rstrip('.'))}.")
    reason = answer.reason
    if reason is not None:
        for missing in map(shortage_sentence, reason.shortages):
            if missing not in answer.why:
                print(f"  {missing}")
        if reason.goes_first:
            print(f"  {_named(state, reason.goes_first)}")
        if reason.holders:
            print("Who has it:")
        for holder in reason.holders:
            print(f"  {_holder(state, holder)}")
        if reason.loss:
            print(f"Cost: {reason.loss / 60:.1f} GPU-minutes of work.")
        if reason.cheapest:
            print(f"What would let it run: {_named(state, reason.cheapest)}.")
    if answer.evictions:
        _print_evictions(state, answer)


def _named(state: State, text: str) -> str:
    """With the names that owners gave, instead of those that were made up for their Workloads."""
    for workload in state.workloads.values():
        if workload.owner and workload.id in text:
            text = text.replace(workload.id, workload.owner)
    return text


def _holder(state: State, holder: Holder) -> str:
    known = state.workloads.get(WorkloadId(holder.workload))
    title = known.owner if known is not None and known.owner else holder.workload
    queue = f", ClusterQueue {holder.queue}" if holder.queue else ""
    safe = f"safe: {holder.safe_because}" if holder.safe_because else "may be evicted"
    return f"{title} (priority {holder.priority}{queue}): {safe}"


def _last_record(records: list[Object], workload: WorkloadId) -> Object | None:
    """The newest preemption that it asked for or fell in."""
    mine = [
        record
        for record in records
        if record["spec"].get("preemptor") == workload
        or any(v.get("workload") == workload for v in record["spec"].get("victims") or [])
    ]
    return max(mine, key=lambda r: str(r["spec"].get("plannedAt")), default=None)


def _print_alternatives(state: State, answer: Explanation, record: Object | None) -> None:
    """Why those fell and not others: asked now where it would evict, else as it was written down."""
    said = record["spec"] if record is not None else {}
    others = [
        (other.victims, other.because)
        for other in (answer.reason.alternatives if answer.reason is not None else ())
    ] or [(tuple(other["victims"]), other["because"]) for other in said.get("alternatives") or []]
    if not others:
        return
    if not (answer.reason is not None and answer.reason.alternatives):
        fallen = ", ".join(str(v["workload"]) for v in said.get("victims") or [])
        print(_named(state, f"{fallen} fell for {said.get('preemptor')}; dearer were:"))
    else:
        print("Dearer would be:")
    for victims, because in others:
        print(_named(state, f"  {', '.join(victims)}: {because}"))


def _print_evictions(state: State, answer: Explanation) -> None:
    by = {owner_of(w): w.owner or w.id for w in state.workloads.values()}
    last = answer.evictions[-1]
    times = "once" if len(answer.evictions) == 1 else f"{len(answer.evictions)} times"
    whom = f", the last time for {by[last.by]}" if last.by in by else ""
    print(f"It was evicted {times} within 24 h{whom}. See: makeway get preemptions -A")

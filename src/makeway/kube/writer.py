"""Carries out actions: the only place of the adapter that writes to the API.

What the server answers goes into the local copy at once. A write that was overtaken (conflict) is dropped, the object is
read anew, and whoever asked looks again. Words (events, and patches that may come later) are written in the background: nobody waits
for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Final, assert_never

import msgspec

from makeway.client import ApiError, Client, UnreachableError
from makeway.client.resource import PODS
from makeway.control.ports import Clock
from makeway.kinds.merging import merged
from makeway.kinds.metadata import Object, uid
from makeway.kube.actions import Action, BindPod, Chain, Create, Delete, Patch, Tell
from makeway.kube.copy import LocalCopy
from makeway.kube.events import Scribe, series
from makeway.kube.resources import EVENTS, RESOURCES

log = logging.getLogger(__name__)

_Target = tuple[str, str, str, str]  # kind, namespace, name, subresource

MOST_AT_ONCE: Final = 64
WORDS_AT_ONCE: Final = 4
MOST_WORDS_WAITING: Final = 20_000
BUSY: Final = 16  # writes under way before which words step back
PAUSE_S: Final = 0.02
LONGEST_SILENCE_S: Final = 30.0
SAY_AGAIN_S: Final = 1.0


class Writer:
    def __init__(self, client: Client, copy: LocalCopy, clock: Clock) -> None:
        self._client = client
        self._copy = copy
        self._clock = clock
        self._scribe = Scribe()
        self._words: deque[Tell | Patch | _Target] = deque()
        self._patches: dict[_Target, Patch] = {}  # words that can become one until they are written
        self._to_tell = asyncio.Event()
        self._telling = 0
        self._under_way = 0
        self._tell_by = 0.0
        self.calls = 0

    @property
    def quiet(self) -> bool:
        """All that was to be told is written."""
        return not self._words and not self._telling

    async def run_all(self, chains: Iterable[Chain]) -> list[tuple[Chain, bool]]:
        """The chains side by side, the first ones first; False where one was cut short, and what hangs on it is left out."""
        waiting = deque(chains)
        wanted = sum(len(chain) for chain in waiting)
        if not self._is_busy() and wanted > BUSY:
            self._tell_by = self._clock.now() + LONGEST_SILENCE_S
        self._under_way += wanted
        done: list[tuple[Chain, bool]] = []
        hands = _Hands(waiting)

        async def work(_: int) -> None:
            async for chain in hands:
                well = await self.run(chain.actions)
                done.append((chain, well))
                self._under_way -= 1 if well else len(chain)
                hands.add(chain.then if well else [])

        await asyncio.gather(*map(work, range(min(MOST_AT_ONCE, wanted))))
        return done

    async def run(self, actions: Iterable[Action]) -> bool:
        for action in actions:
            if not await self.do(action):
                return False
        return True

    async def do(self, action: Action) -> bool:
        """True when it is done, or was done already; False when whoever asked has to look again."""
        if isinstance(action, Tell):
            self.tell(action)
            return True
        if isinstance(action, Patch) and action.later:
            self._assume_patched(action)
            self._later(action)
            return True
        return await self._write(action)

    async def _write(self, action: Create | Patch | Delete | BindPod) -> bool:
        try:
            self.calls += 1
            await self._call(action)
        except ApiError as error:
            return await self._refused(action, error)
        except UnreachableError as error:
            log.warning("%s: %s", _name(action), error)
            await self._refresh(action)
            return False
        for tell in action.then:
            self.tell(tell)
        return True

    async def _call(self, action: Create | Patch | Delete | BindPod) -> None:
        match action:
            case Create():
                self._copy.take(
                    action.kind, await self._client.create(RESOURCES[action.kind], action.obj)
                )
            case Patch():
                await self._patch(action)
            case Delete():
                await self._delete(action)
            case BindPod():
                await self._bind(action)
            case _:
                assert_never(action)

    async def _patch(self, action: Patch) -> None:
        body = action.body
        if action.version:
            meta = {**body.get("metadata", {}), "resourceVersion": action.version}
            body = {**body, "metadata": meta}
        answer = await self._client.patch(
            RESOURCES[action.kind],
            action.name,
            body,
            action.namespace,
            kind=action.style,
            subresource=action.subresource,
        )
        self._copy.take(action.kind, answer)

    async def _delete(self, action: Delete) -> None:
        answer = await self._client.delete(
            RESOURCES[action.kind],
            action.name,
            action.namespace,
            uid=action.uid,
            grace_s=action.grace_s,
            whole_answer=False,
        )
        # What has a grace period or a finalizer is now on its way; otherwise the watch tells that it is gone.
        self._assume_leaving(action, answer.get("metadata") or {})

    def _assume_leaving(self, action: Delete, told: Object) -> None:
        """The answer to a deletion is no whole object: what it says of the end, on what is known of the rest."""
        known = self._known(action.kind, action.namespace, action.name)
        if known is None or uid(known) != told.get("uid") or not told.get("deletionTimestamp"):
            return
        end = {k: told[k] for k in ("deletionTimestamp", "deletionGracePeriodSeconds") if k in told}
        # The same version: whatever the watch brings next replaces it.
        self._copy.assume(action.kind, {**known, "metadata": {**known["metadata"], **end}})

    def _known(self, kind: str, namespace: str, name: str) -> Object | None:
        return self._copy.get(kind, f"{namespace}/{name}" if namespace else name)

    async def _bind(self, action: BindPod) -> None:
        binding: Object = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"namespace": action.namespace, "name": action.name, "uid": action.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": action.node},
        }
        await self._client.create(PODS, binding, action.namespace, subresource="binding")
        self._assume_bound(action)

    def _assume_bound(self, action: BindPod) -> None:
        """The answer to a binding is no pod: until the watch says so, count it as bound."""
        pod = self._copy.get("Pod", f"{action.namespace}/{action.name}")
        if pod is None or pod["metadata"].get("uid") != action.uid:
            return
        # The same version: whatever the watch brings next replaces it.
        bound = {**pod, "spec": {**pod["spec"], "nodeName": action.node}}
        self._copy.assume("Pod", bound)

    def _assume_patched(self, action: Patch) -> None:
        known = self._known(action.kind, action.namespace, action.name)
        if known is not None:
            self._copy.assume(action.kind, merged(known, action.body))

    async def _refused(self, action: Create | Patch | Delete | BindPod, error: ApiError) -> bool:
        if isinstance(action, Delete) and error.not_found:
            return True
        if not error.conflict and not error.not_found and not error.already_exists:
            log.warning("%s: %s", _name(action), error.message)
        await self._refresh(action)
        return False

    async def _refresh(self, action: Create | Patch | Delete | BindPod) -> None:
        """What the server has now, in case the watch is late."""
        kind = "Pod" if isinstance(action, BindPod) else action.kind
        namespace, name = _place(action)
        try:
            self._copy.take(kind, await self._client.get(RESOURCES[kind], name, namespace))
        except ApiError as error:
            if error.not_found:
                known = self._known(kind, namespace, name)
                if known is not None:
                    self._copy.drop(kind, known)
        except UnreachableError:
            return

    # Words

    def tell(self, tell: Tell) -> None:
        """Of too many events some are not told; a patch counts as done, and is never left out."""
        if len(self._words) < MOST_WORDS_WAITING:
            self._later(tell)

    def _later(self, word: Tell | Patch) -> None:
        if not isinstance(word, Patch) or not _can_join(word):
            self._words.append(word)
        elif (waiting := self._patches.get(_target(word))) is not None:
            self._patches[_target(word)] = _in_one(waiting, word)
        else:
            self._patches[_target(word)] = word
            self._words.append(_target(word))
        self._to_tell.set()

    def _say_again(self, patch: Patch) -> None:
        """What was said of the same object meanwhile is newer, and counts."""
        newer = self._patches.get(_target(patch))
        if newer is None:
            self._later(patch)
        else:
            self._patches[_target(patch)] = _in_one(patch, newer)

    def _next_word(self) -> Tell | Patch:
        word = self._words.popleft()
        return self._patches.pop(word) if isinstance(word, tuple) else word

    async def tell_all(self) -> None:
        """Write what is to be told until cancelled, a few at a time."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WORDS_AT_ONCE):
                group.create_task(self._tell_on())

    async def _tell_on(self) -> None:
        while True:
            if not self._words:
                self._to_tell.clear()
                await self._to_tell.wait()
                continue
            if await self._let_others_first():
                continue
            word = self._next_word()
            self._telling += 1
            try:
                await (self._tell_one(word) if isinstance(word, Tell) else self._catch_up(word))
            finally:
                self._telling -= 1

    async def _catch_up(self, patch: Patch) -> None:
        """It counts as done, so it must be: whoever was overtaken looks again, who was not heard says it again."""
        try:
            self.calls += 1
            await self._patch(patch)
        except ApiError as error:
            await self._refused(patch, error)
        except UnreachableError as error:
            log.warning("%s: %s", _name(patch), error)
            await asyncio.sleep(SAY_AGAIN_S)
            self._say_again(patch)

    async def _let_others_first(self) -> bool:
        """Words can wait while decisions are being written, but not for ever."""
        busy = self._is_busy() and self._clock.now() < self._tell_by
        if busy:
            await asyncio.sleep(PAUSE_S)
        else:
            self._tell_by = self._clock.now() + LONGEST_SILENCE_S if self._is_busy() else 0.0
        return busy

    def _is_busy(self) -> bool:
        """With our own writes, or with those of others who share the client."""
        return self._under_way > BUSY or self._client.under_way > BUSY

    async def _tell_one(self, tell: Tell) -> None:
        event, told = self._scribe.write(tell, self._clock.now())
        try:
            if event is not None:
                await self._client.create(EVENTS, event)
            elif told is not None:
                await self._client.patch(EVENTS, told.name, series(told), told.namespace)
        except (ApiError, UnreachableError) as error:
            log.debug("event %s: %s", tell.reason, error)


class _Hands:
    """Chains handed out one by one. Who finds none waits as long as somebody at work may still add some."""

    def __init__(self, waiting: deque[Chain]) -> None:
        self._waiting = waiting
        self._at_work = 0
        self._news = asyncio.Event()

    def __aiter__(self) -> _Hands:
        return self

    async def __anext__(self) -> Chain:
        while not self._waiting:
            if not self._at_work:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        self._at_work += 1
        return self._waiting.popleft()

    def add(self, chains: list[Chain]) -> None:
        """What one of them was waiting for is done: its chains go first, so that what was begun is finished."""
        self._at_work -= 1
        self._waiting.extendleft(reversed(chains))
        self._news.set()


def _target(patch: Patch) -> _Target:
    return patch.kind, patch.namespace, patch.name, patch.subresource


def _can_join(patch: Patch) -> bool:
    """Merge patches that insist on no version: two of one object can be written as one."""
    return patch.style == "merge" and not patch.version


def _in_one(earlier: Patch, later: Patch) -> Patch:
    """Two merge patches as one: null is a word of theirs, so it is kept."""
    return msgspec.structs.replace(
        earlier, body=_both(earlier.body, later.body), then=(*earlier.then, *later.then)
    )


def _both(earlier: Object, later: Object) -> Object:
    found = {**earlier, **later}
    for key in earlier.keys() & later.keys():
        if isinstance(earlier[key], dict) and isinstance(later[key], dict):
            found[key] = _both(earlier[key], later[key])
    return found


def _place(action: Create | Patch | Delete | BindPod) -> tuple[str, str]:
    if isinstance(action, Create):
        metadata = action.obj["metadata"]
        return metadata.get("namespace", ""), metadata["name"]
    return action.namespace, action.name


def _name(action: Create | Patch | Delete | BindPod) -> str:
    kind = "Pod" if isinstance(action, BindPod) else action.kind
    namespace, name = _place(action)
    return f"{type(action).__name__.lower()} {kind} {namespace}/{name}"

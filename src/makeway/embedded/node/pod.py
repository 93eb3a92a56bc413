"""One pod on this machine, from its first process to its last.

The worker starts the init containers in their order, then the others together, restarts what ends as
the restart policy says, asks the probes, and writes the status as it changes. The processes do not
depend on it: when the server is killed they go on under their shims, and the next worker finds them
in the pod's folder:

    pods/UID/pod.json                              who this is, and its GPUs
    pods/UID/work/                                 the working directory
    pods/UID/volumes/NAME/
    pods/UID/containers/NAME/ATTEMPT/              one run (see `shim`)
    logs/UID/NAME.log, NAME.previous.log           what it said
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from makeway.client import ApiError
from makeway.client.resource import (
    CONFIG_MAPS,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SECRETS,
    Object,
)
from makeway.embedded.node import words
from makeway.embedded.node.cgroups import remove_cgroup
from makeway.embedded.node.environment import Source, StartError, references, source_of
from makeway.embedded.node.host import Host, Record, read_record
from makeway.embedded.node.launch import Launcher
from makeway.embedded.node.machine import LOOPBACK, gpus_wanted
from makeway.embedded.node.probes import Surroundings, probe_once, run_command
from makeway.embedded.node.probing import Prober, surroundings_of
from makeway.embedded.node.process import Exit, Run
from makeway.embedded.node.restarts import Backoff, is_sidecar, restarts
from makeway.embedded.node.saving import watch_checkpoints
from makeway.embedded.node.volumes import with_claimed
from makeway.embedded.podstatus import (
    TERMINAL,
    Address,
    ContainerState,
    Terminated,
    phase_of,
    status_body,
)
from makeway.errors import UserError
from makeway.kinds.volumes import claim_names

log = logging.getLogger(__name__)

# Even when the hook before it used up the grace, SIGTERM gets this long before SIGKILL.
LEAST_GRACE_S = 2.0
RETRY_START_S = 5.0


class PodWorker:
    def __init__(self, host: Host, pod: Object) -> None:
        self.pod = pod
        self._host = host
        self._clock = host.clock
        self._ending = asyncio.Event()
        self._told_at = 0.0
        self._gone = False
        self._shutdown = False
        self._dirty = asyncio.Event()
        self._written: Object | None = None
        self._reason, self._message = "", ""
        self._runs: dict[str, Run] = {}
        self._around: dict[str, Surroundings] = {}
        self._states: dict[str, ContainerState] = {}
        self._backoff = Backoff()
        self._found: set[str] = set()  # runs of an earlier server that were not looked at yet
        self._told_process = False
        self._tasks: set[asyncio.Future[None]] = set()
        self._record = Record(
            pod["metadata"]["namespace"], pod["metadata"]["name"], pod["metadata"]["uid"]
        )
        self._init = [dict(each) for each in pod["spec"].get("initContainers") or []]
        self._main = [dict(each) for each in pod["spec"]["containers"]]
        self.update(pod)

    # What the API says

    def update(self, pod: Object) -> None:
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp") and not self._ending.is_set():
            self._told_at = self._clock.now()
            self._ending.set()

    def vanish(self) -> None:
        """The object is gone: nobody waits for these processes any more."""
        self._gone = True
        self._ending.set()
        for run in self._runs.values():
            run.kill()

    def shut_down(self) -> None:
        """The machine's API is being stopped: end with the pod's grace, and say why."""
        self._shutdown = True
        self._told_at = self._clock.now()
        self._ending.set()

    # The life of the pod

    async def run(self) -> None:
        writer = asyncio.create_task(self._keep_written())
        try:
            await self._live_and_end()
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _live_and_end(self) -> None:
        self._restore()
        if self._phase_written() not in TERMINAL:
            await self._until_ending(self._live)
        if self._shutdown and not self._ended:
            await self._stop_all()
            self._say_machine_stopped()
            await self._write_status()
            return
        if not self._ending.is_set():
            if not self._ended:
                await self._write_status()
            # The work is done; what is left is to let go of the object when it is deleted.
            self._host.devices.release(self._record.uid)
            await self._ending.wait()
        if self._shutdown:
            return
        await self._stop_all()
        await self._leave()

    async def _until_ending(self, live: Callable[[], Awaitable[None]]) -> None:
        life = asyncio.ensure_future(live())
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait({life, ending}, return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                life.result()
        finally:
            for task in (life, ending):
                task.cancel()
            await asyncio.gather(life, ending, return_exceptions=True)

    async def _live(self) -> None:
        await self._prepare()
        self._save_record()
        limit = self.pod["spec"].get("activeDeadlineSeconds")
        left = None
        if limit is not None:
            left = max(0.0, self._record.started_at + float(limit) - self._clock.now())
        try:
            async with asyncio.timeout(left), asyncio.TaskGroup() as group:
                watcher = group.create_task(watch_checkpoints(self._host, self.pod, self._folder))
                sidecars = await self._initialize(group)
                if sidecars is not None:
                    await asyncio.gather(*(self._keep_running(each) for each in self._main))
                    await self._end_sidecars(sidecars)
                watcher.cancel()
        except TimeoutError:
            await self._past_deadline()

    async def _past_deadline(self) -> None:
        self._reason = "DeadlineExceeded"
        self._message = "Pod was active on the node longer than the specified deadline"
        self._told_at = self._clock.now()
        await self._stop_all()

    async def _initialize(self, group: asyncio.TaskGroup) -> list[asyncio.Task[None]] | None:
        """Run the init containers in order; None if one failed for good."""
        sidecars: list[asyncio.Task[None]] = []
        for container in self._init:
            if is_sidecar(container):
                sidecars.append(group.create_task(self._keep_running(container)))
                await self._until_started(container["name"])
                continue
            await self._keep_running(container)
            if not self._states[container["name"]].succeeded:
                await self._end_sidecars(sidecars)
                return None
        return sidecars

    async def _until_started(self, name: str) -> None:
        while not self._states[name].started:
            await asyncio.sleep(0.02)

    async def _end_sidecars(self, sidecars: list[asyncio.Task[None]]) -> None:
        for task in sidecars:
            task.cancel()
        await asyncio.gather(*sidecars, return_exceptions=True)
        self._told_at = self._clock.now()
        names = [each["name"] for each in self._init if is_sidecar(each)]
        await asyncio.gather(*(self._stop(name) for name in reversed(names)))

    async def _keep_running(self, container: Object) -> None:
        """Start, wait for the end, start again: as the restart policy says."""
        name = container["name"]
        while True:
            ended = await self._run_once(container)
            if not self._restarts_after(container, ended):
                return
            pause = self._backoff.pause_before_restart(name, self._states[name].terminated)
            if pause:
                self._wait_in_back_off(name, pause)
                await asyncio.sleep(pause)

    async def _run_once(self, container: Object) -> Exit:
        name = container["name"]
        run = self._runs.get(name)
        # One that ended while no server looked has its end told first; only then may it run again.
        found = name in self._found
        self._found.discard(name)
        if run is None or (run.exit is not None and not found):
            run = await self._start_when_possible(container)
        started = run.started
        if started is not None:
            probed = bool(container.get("startupProbe"))
            unready = probed or bool(container.get("readinessProbe"))
            self._change(
                name,
                running_since=started.started_at,
                terminated=None,
                started=not probed,
                ready=not unready,
                container_id=f"makeway://{self._record.uid}/{name}/{run.folder.name}",
            )
        ended = await self._wait_with_probes(container, run)
        self._note_end(name, ended)
        return ended

    async def _start_when_possible(self, container: Object) -> Run:
        """A reference that does not exist yet may come: it is tried again."""
        name = container["name"]
        while True:
            try:
                return await self._start(container)
            except StartError as error:
                if self._states[name].waiting_message != error.message:
                    self._tell("Warning", "Failed", error.message)
                self._change(name, waiting=error.reason, waiting_message=error.message)
                await asyncio.sleep(RETRY_START_S)

    async def _start(self, container: Object) -> Run:
        name = container["name"]
        if not container.get("command"):
            raise StartError("ImageNotRun", words.image_not_run(container))
        sources = await self._sources()
        pod = with_claimed(self.pod, await self._claimed())
        spec = self._launcher().spec(pod, container, sources)
        around = Surroundings(env=spec.env, cwd=spec.cwd, uid=spec.uid, gid=spec.gid)
        attempts = self._folder / "containers" / name
        number = max(_numbers(attempts), default=-1) + 1
        if number:
            self._keep_previous_log(name)
            # The run before is kept for a look; those before it are history.
            shutil.rmtree(attempts / str(number - 2), ignore_errors=True)
        run = self._runs[name] = Run(attempts / str(number))
        self._around[name] = around
        self._change(name, restarts=number)
        if not self._told_process:
            self._told_process = True
            self._tell("Normal", "RunsAsProcess", words.runs_as_process(container))
        await run.start(spec)
        return run

    def _launcher(self) -> Launcher:
        return Launcher(
            folder=self._folder,
            logs=self._logs,
            allocatable=self._host.allocatable,
            gpus=self._record.gpus if self._host.devices.count else None,
            log_limit_bytes=self._host.options.log_limit_bytes,
        )

    async def _sources(self) -> dict[tuple[str, str], Source | None]:
        found: dict[tuple[str, str], Source | None] = {}
        for kind, name in sorted(references(self.pod["spec"])):
            resource = CONFIG_MAPS if kind == "ConfigMap" else SECRETS
            try:
                obj = await self._host.client.get(resource, name, self._record.namespace)
                found[kind, name] = source_of({**obj, "kind": kind})
            except ApiError as error:
                if not error.not_found:
                    raise
                found[kind, name] = None
        return found

    async def _claimed(self) -> dict[str, Object]:
        """The volume of each claim that this pod uses."""
        found: dict[str, Object] = {}
        for name in claim_names(self.pod):
            try:
                claim = await self._host.client.get(
                    PERSISTENT_VOLUME_CLAIMS, name, self._record.namespace
                )
                volume = str(claim["spec"].get("volumeName") or "")
                if volume:
                    found[name] = await self._host.client.get(PERSISTENT_VOLUMES, volume)
            except ApiError as error:
                if not error.not_found:
                    raise
        return found

    def _keep_previous_log(self, name: str) -> None:
        current = self._logs / f"{name}.log"
        with contextlib.suppress(FileNotFoundError):
            current.replace(self._logs / f"{name}.previous.log")

    # Probes

    async def _wait_with_probes(self, container: Object, run: Run) -> Exit:
        name = container["name"]
        prober = Prober(
            container=container,
            around=self._around.get(name) or surroundings_of(run),
            change=lambda **facts: self._change(name, **facts),
            tell=self._tell,
            # Beside the probe, which ends with the run that it asks to end.
            stop=lambda: self._background(self._stop(name, self._grace_s())),
        )
        probes = asyncio.ensure_future(prober.run())
        try:
            return await run.wait()
        finally:
            probes.cancel()
            await asyncio.gather(probes, return_exceptions=True)

    def _background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Restarts

    def _restarts_after(self, container: Object, ended: Exit) -> bool:
        starts_first = any(container is each for each in self._init)
        policy = self.pod["spec"].get("restartPolicy", "Always")
        return restarts(container, policy, ended.exit_code, starts_first=starts_first)

    def _wait_in_back_off(self, name: str, pause: float) -> None:
        where = f"{self._record.name}_{self._record.namespace}({self._record.uid})"
        said = f"back-off {words.spoken(pause)} restarting failed container={name} pod={where}"
        self._tell(
            "Warning", "BackOff", f"Back-off restarting failed container {name} in pod {where}"
        )
        state = self._states[name]
        self._change(
            name,
            waiting="CrashLoopBackOff",
            waiting_message=said,
            last=state.terminated,
            terminated=None,
        )

    # Stopping

    def _grace_s(self) -> float:
        metadata = self.pod["metadata"]
        given = metadata.get("deletionGracePeriodSeconds")
        if given is None:
            given = self.pod["spec"].get("terminationGracePeriodSeconds", 30)
        return float(given)

    async def _stop_all(self) -> None:
        """Main containers together, then the sidecars in reverse."""
        await asyncio.gather(*(self._stop(each["name"]) for each in self._main))
        for container in reversed(self._init):
            await self._stop(container["name"])

    async def _stop(self, name: str, grace_s: float | None = None) -> None:
        run = self._runs.get(name)
        if run is None:
            return
        await run.settled()
        if self._gone:
            run.kill()
        elif run.alive:
            self._tell("Normal", "Killing", f"Stopping container {name}")
            told = self._clock.now() if grace_s is not None else self._told_at
            await self._end_process(name, run, told + (grace_s or self._grace_s()))
        ended = await run.wait()
        if self._ending.is_set() or grace_s is None:
            self._note_end(name, ended)

    async def _end_process(self, name: str, run: Run, deadline: float) -> None:
        container = next(each for each in [*self._main, *self._init] if each["name"] == name)
        waiting = asyncio.ensure_future(run.wait())
        try:
            await self._before_stop(container, deadline)
            run.ask_to_stop()
            left = max(
                LEAST_GRACE_S if self._hook(container) else 0.0, deadline - self._clock.now()
            )
            await asyncio.wait({waiting}, timeout=left)
            if not waiting.done():
                run.kill()
                await waiting
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    def _hook(self, container: Object) -> Object | None:
        hook: Object | None = (container.get("lifecycle") or {}).get("preStop")
        return hook

    async def _before_stop(self, container: Object, deadline: float) -> None:
        hook = self._hook(container)
        if not hook:
            return
        name = container["name"]
        around = self._around.get(name) or surroundings_of(self._runs[name])
        left = max(0.0, deadline - self._clock.now())
        if "sleep" in hook:
            await asyncio.sleep(min(left, float(hook["sleep"]["seconds"])))
            return
        try:
            async with asyncio.timeout(left):
                if "exec" in hook:
                    outcome = await run_command(hook["exec"]["command"], around)
                else:
                    outcome = await probe_once(
                        {**hook, "timeoutSeconds": left}, container, LOOPBACK, around
                    )
        except TimeoutError:
            return
        if not outcome.ok:
            self._tell("Warning", "FailedPreStopHook", f"PreStopHook failed: {outcome.said}")

    async def _leave(self) -> None:
        """All processes have ended: tell how, and let the object go."""
        self._host.devices.release(self._record.uid)
        if not self._gone:
            if not self._ended:
                await self._write_status(final=True)
            await self._delete_object()
        for container in [*self._init, *self._main]:
            remove_cgroup(f"{self._record.uid}-{container['name']}")
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _delete_object(self) -> None:
        record = self._record
        try:
            await self._host.client.delete(
                PODS, record.name, record.namespace, uid=record.uid, grace_s=0
            )
        except ApiError as error:
            if not error.not_found and not error.conflict:
                raise

    def _say_machine_stopped(self) -> None:
        if self.pod["spec"].get("restartPolicy", "Always") != "Never":
            # It starts again in its place when the machine does.
            return
        self._reason = "Terminated"
        self._message = "Pod was terminated in response to imminent node shutdown."

    # State

    def _restore(self) -> None:
        """Take up what an earlier worker of this pod left."""
        kept = read_record(self._folder)
        if kept is not None:
            self._record = kept
            if kept.gpus:
                self._host.devices.restore(kept.uid, kept.gpus)
        for container in [*self._init, *self._main]:
            self._states[container["name"]] = self._restored(container)

    def _restored(self, container: Object) -> ContainerState:
        name = container["name"]
        state = ContainerState(
            name=name,
            image=container.get("image", ""),
            waiting="PodInitializing" if self._init else "ContainerCreating",
            sidecar=is_sidecar(container),
        )
        attempts = self._folder / "containers" / name
        numbers = _numbers(attempts)
        if not numbers:
            return state
        self._told_process = True
        run = Run(attempts / str(numbers[-1]))
        if run.untouched and run.give_up():
            shutil.rmtree(run.folder, ignore_errors=True)
            return msgspec.structs.replace(state, restarts=numbers[-1])
        self._runs[name] = run
        self._found.add(name)
        self._backoff.failures[name] = numbers[-1]
        state = msgspec.structs.replace(state, restarts=numbers[-1])
        ended = run.exit
        if (
            ended is not None
            and any(container is each for each in self._init)
            and not ended.exit_code
        ):
            return msgspec.structs.replace(state, terminated=self._terminated(run, ended))
        return state

    def _terminated(self, run: Run, ended: Exit) -> Terminated:
        started = run.started
        reason = ""
        if ended.lost:
            reason = "ContainerStatusUnknown"
        elif started is None:
            reason = "StartError"
        return Terminated(
            exit_code=ended.exit_code,
            started_at=started.started_at if started else ended.finished_at,
            finished_at=ended.finished_at,
            reason=reason,
            message=ended.message,
        )

    def _note_end(self, name: str, ended: Exit) -> None:
        terminated = self._terminated(self._runs[name], ended)
        state = self._states[name]
        if state.terminated == terminated:
            return
        self._change(
            name,
            running_since=None,
            terminated=terminated,
            last=state.terminated or state.last if state.restarts else None,
            ready=False,
            started=False,
        )

    def _change(self, name: str, **facts: object) -> None:
        old = self._states[name]
        if facts.get("running_since") and old.terminated:
            facts.setdefault("last", old.terminated)
        new = msgspec.structs.replace(old, **facts)
        if new != old:
            self._states[name] = new
            self._dirty.set()

    async def _prepare(self) -> None:
        if not self._record.started_at:
            uid = self._record.uid
            gpus = self._host.devices.assign(uid, gpus_wanted(self.pod["spec"]))
            self._record = msgspec.structs.replace(
                self._record, gpus=gpus, started_at=self._clock.now()
            )

    def _save_record(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "pod.json").write_bytes(msgspec.json.encode(self._record))

    @property
    def _folder(self) -> Path:
        return self._host.home / "pods" / self._record.uid

    @property
    def _logs(self) -> Path:
        return self._host.home / "logs" / self._record.uid

    # Status

    async def _keep_written(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._write_status()
            except (ApiError, UserError) as error:
                if isinstance(error, ApiError) and (error.not_found or error.conflict):
                    continue
                log.warning("status of pod %s not written: %s", self._record.name, error)
                self._dirty.set()
                await asyncio.sleep(1.0)

    async def _write_status(self, *, final: bool = False) -> None:
        body = self._status(final=final)
        if body == self._written or self._gone:
            return
        self._written = body
        patch = {"metadata": {"uid": self._record.uid}, "status": body}
        try:
            await self._host.client.patch(
                PODS,
                self._record.name,
                patch,
                self._record.namespace,
                kind="strategic",
                subresource="status",
            )
        except ApiError as error:
            if not error.not_found and not error.conflict:
                self._written = None
                raise

    def _status(self, *, final: bool) -> Object:
        init = [_ready_when_done(self._states[each["name"]]) for each in self._init]
        main = [self._states[each["name"]] for each in self._main]
        phase = phase_of(init, main, self.pod["spec"].get("restartPolicy", "Always"))
        if self._reason:
            phase = "Failed"
        if final and phase not in TERMINAL:
            succeeded = all(state.succeeded for state in main)
            phase = "Succeeded" if succeeded else "Failed"
        now = self._clock.now()
        body = status_body(
            self.pod,
            init=init,
            main=main,
            phase=phase,
            address=Address(LOOPBACK, LOOPBACK),
            start=self._record.started_at or now,
            now=now,
            reason=self._reason,
            message=self._message,
        )
        if self._shutdown and self._reason:
            body["conditions"].append(words.stopped_with_machine(now))
        return body

    def _phase_written(self) -> str:
        return str((self.pod.get("status") or {}).get("phase") or "Pending")

    @property
    def _ended(self) -> bool:
        return self._phase_written() in TERMINAL

    def _tell(self, kind: str, reason: str, message: str) -> None:
        self._host.events.record(
            {**self.pod, "apiVersion": "v1", "kind": "Pod"}, kind, reason, message
        )


def _ready_when_done(init: ContainerState) -> ContainerState:
    return msgspec.structs.replace(init, ready=init.ready or init.succeeded)


def _numbers(attempts: Path) -> list[int]:
    if not attempts.exists():
        return []
    return sorted(int(each.name) for each in attempts.iterdir() if each.name.isdigit())

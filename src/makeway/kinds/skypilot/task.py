"""A SkyPilot task file as data: read with care, every mistake with its path, every key that has no meaning here with a note."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import ceil
from typing import Any

import msgspec
import yaml

from makeway.errors import UserError
from makeway.kinds.metadata import QUEUE_NAME
from makeway.kinds.skypilot.accelerators import Accelerators, read_accelerators

Json = dict[str, Any]

_TASK_KEYS = frozenset(
    [
        "name",
        "workdir",
        "num_nodes",
        "resources",
        "envs",
        "secrets",
        "setup",
        "run",
        "config",
        "file_mounts",
        "volumes",
        "service",
        "pool",
        "managed_secrets",
        "api_server_access",
        "event_callback",
        "inputs",
        "outputs",
    ]
)
_RESOURCE_KEYS = frozenset(
    [
        "infra",
        "cloud",
        "region",
        "zone",
        "accelerators",
        "cpus",
        "memory",
        "disk_size",
        "instance_type",
        "use_spot",
        "image_id",
        "labels",
        "ports",
        "autostop",
        "any_of",
        "ordered",
        "job_recovery",
        "spot_recovery",
        "priority",
        "priority_class",
        "network_tier",
        "disk_tier",
        "max_hourly_cost",
        "accelerator_args",
        "local_disk",
        "volumes",
    ]
)
_REFUSED = {
    "file_mounts": "files are not copied here. Name a folder with `workdir`, or fetch them in `setup`.",
    "volumes": "volumes of tasks are not mounted here. Use `workdir`, or write a Job.",
    "service": "serving is not done here. Write a KubeAI Model or a Deployment.",
    "pool": "pools are not kept here. Start jobs one by one: makeway jobs launch FILE.",
    "managed_secrets": "there is no secret store here. Use `secrets` or `envs`.",
    "event_callback": "callbacks are not run here. Watch: makeway jobs queue.",
}
_NO_EFFECT = frozenset(
    [
        "infra",
        "cloud",
        "region",
        "zone",
        "use_spot",
        "ports",
        "autostop",
        "priority",
        "priority_class",
        "network_tier",
        "disk_tier",
        "max_hourly_cost",
        "accelerator_args",
        "local_disk",
    ]
)
_CONFIG_KEYS = {
    "kubernetes": frozenset(
        [
            "pod_config",
            "custom_metadata",
            "kueue",
            "quota",
            "provision_timeout",
            "dws",
            "remote_identity",
            "enable_docker",
            "set_pod_resource_limits",
        ]
    )
}
_ENV_NAME = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_]*$")
_NAME = re.compile(r"^[a-zA-Z]([-_.a-zA-Z0-9]{0,50}[a-zA-Z0-9])?$")
_INSTANCE = re.compile(
    r"^(?P<cpus>\d+(\.\d+)?)CPU--(?P<memory>\d+(\.\d+)?)GB(--(?P<accelerators>[^:]+:\d+))?$"
)
_MEMORY = re.compile(
    r"^(?P<number>\d+(\.\d+)?)\s*(?P<unit>[KMGT]?B?|[KMGT]iB?|x)?\+?$", re.IGNORECASE
)
_UNITS = {"K": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3}
CPUS_WITHOUT_GPU = 2.0
CPUS_PER_GPU = 4.0
GB_PER_CPU_WITH_GPU = 4.0


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    max_restarts_on_errors: int = 0
    recover_on_exit_codes: tuple[int, ...] = ()


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One task as it is meant; amounts are those of one node."""

    name: str = ""
    num_nodes: int = 1
    cpus: float
    memory_gb: float
    accelerators: Accelerators | None = None
    disk_gb: int = 0
    image: str = ""
    workdir: str = ""
    envs: Mapping[str, str] = {}
    secrets: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    pod_config: Json = {}
    setup: str = ""
    run: str = ""
    recovery: Recovery = Recovery()
    notes: tuple[str, ...] = ()

    @property
    def requested(self) -> str:
        """As SkyPilot writes it: `1x[T4:4]`, `2x[CPU:4]`."""
        what = self.accelerators.text if self.accelerators else f"CPU:{_plain(self.cpus)}"
        return f"{self.num_nodes}x[{what}]"


def parse_task(text: str, where: str, envs: Mapping[str, str] | None = None) -> Task:
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        raise UserError(
            f"is not YAML: {line}{getattr(error, 'problem', None) or error}.", where=where
        ) from error
    if len(documents) > 1:
        raise UserError(
            "several tasks in one file (pipelines and job groups) are not run here.",
            where=where,
            hint="Launch each task from a file of its own.",
        )
    said = documents[0] if documents else {}
    if not isinstance(said, dict):
        raise UserError("expected a task: a map with `run` and `resources`.", where=where)
    if "apiVersion" in said and "kind" in said:
        raise UserError(
            f"this is a Kubernetes {said['kind']}, not a SkyPilot task.",
            where=where,
            hint="Apply it: makeway apply -f FILE",
        )
    return _Reader(where, envs or {}).task(said)


class _Reader:
    def __init__(self, where: str, envs: Mapping[str, str]) -> None:
        self._where = where
        self._given_envs = envs
        self._notes: list[str] = []

    def task(self, said: Json) -> Task:
        self._only_known(said, _TASK_KEYS, "")
        for key, instead in _REFUSED.items():
            if said.get(key):
                raise self._wrong(key, instead)
        if not str(said.get("run") or "").strip():
            raise self._wrong("run", "is missing: what should run?")
        resources = self._resources(said.get("resources"))
        alternatives = read_accelerators(
            resources.get("accelerators"), f"{self._where}: resources.accelerators"
        )
        accelerators, cpus, memory = self._amounts(resources, alternatives)
        labels, annotations, pod_config = self._config(said.get("config"))
        return Task(
            name=self._name(said.get("name")),
            num_nodes=self._whole(said, "num_nodes", 1, least=1),
            cpus=cpus,
            memory_gb=memory,
            accelerators=accelerators,
            disk_gb=int(self._gigabytes(resources.get("disk_size"), "resources.disk_size", 0.0)),
            image=self._image(resources.get("image_id")),
            workdir=self._workdir(said.get("workdir")),
            envs=self._envs(said.get("envs"), "envs") | dict(self._given_envs),
            secrets=self._envs(said.get("secrets"), "secrets"),
            labels={**self._texts(resources.get("labels"), "resources.labels"), **labels},
            annotations=annotations,
            pod_config=pod_config,
            setup=str(said.get("setup") or ""),
            run=str(said["run"]),
            recovery=self._recovery(resources),
            notes=tuple(self._notes),
        )

    # -- resources --

    def _resources(self, said: Any) -> Json:
        if said is None:
            return {}
        if not isinstance(said, dict):
            raise self._wrong("resources", "expected a map.")
        self._only_known(said, _RESOURCE_KEYS, "resources")
        chosen = self._first_candidate(said)
        idle = sorted(key for key in chosen if key in _NO_EFFECT and chosen[key] is not None)
        if idle:
            self._notes.append(f"without effect here: resources.{', resources.'.join(idle)}.")
        return chosen

    def _first_candidate(self, said: Json) -> Json:
        """`any_of` and `ordered` list alternatives; there is one place here, so the first is taken."""
        if said.get("any_of") and said.get("ordered"):
            raise self._wrong("resources", "any_of and ordered cannot both be given.")
        for key in ("any_of", "ordered"):
            listed = said.get(key)
            if not listed:
                continue
            if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
                raise self._wrong(f"resources.{key}", "expected a list of maps.")
            for index, one in enumerate(listed):
                self._only_known(one, _RESOURCE_KEYS, f"resources.{key}[{index}]")
            if len(listed) > 1:
                self._notes.append(
                    f"resources.{key} lists {len(listed)} alternatives; the first is taken."
                )
            outer = {k: v for k, v in said.items() if k not in ("any_of", "ordered")}
            labels = {**(outer.get("labels") or {}), **(listed[0].get("labels") or {})}
            return {**outer, **listed[0], **({"labels": labels} if labels else {})}
        return said

    def _amounts(
        self, resources: Json, alternatives: tuple[Accelerators, ...]
    ) -> tuple[Accelerators | None, float, float]:
        accelerators = alternatives[0] if alternatives else None
        if len(alternatives) > 1:
            texts = ", ".join(one.text for one in alternatives[1:])
            self._notes.append(f"of the accelerators {alternatives[0].text} is taken, not {texts}.")
        kind = resources.get("instance_type")
        if kind is not None:
            return self._instance(str(kind), accelerators)
        default = CPUS_PER_GPU * accelerators.count if accelerators else CPUS_WITHOUT_GPU
        cpus = self._cpus(resources.get("cpus"), default)
        memory = self._memory(resources.get("memory"), cpus, with_gpu=accelerators is not None)
        return accelerators, cpus, memory

    def _instance(
        self, kind: str, accelerators: Accelerators | None
    ) -> tuple[Accelerators | None, float, float]:
        found = _INSTANCE.match(kind)
        if not found:
            raise self._wrong(
                "resources.instance_type",
                f'expected for example "4CPU--16GB" or "16CPU--64GB--T4:4", got "{kind}".',
            )
        if found["accelerators"]:
            accelerators = read_accelerators(found["accelerators"], self._where)[0]
        return accelerators, float(found["cpus"]), float(found["memory"])

    def _cpus(self, said: Any, default: float) -> float:
        if said is None:
            return default
        try:
            if isinstance(said, bool):
                raise ValueError
            cpus = float(str(said).removesuffix("+"))
        except ValueError:
            cpus = 0.0
        if cpus <= 0:
            raise self._wrong(
                "resources.cpus",
                f'The "cpus" field should be either a number or a string "<number>+". Found: {said!r}.',
            )
        return cpus

    def _memory(self, said: Any, cpus: float, *, with_gpu: bool) -> float:
        if said is None:
            return cpus * (GB_PER_CPU_WITH_GPU if with_gpu else 1.0)
        text = str(said).strip()
        if text.rstrip("+").lower().endswith("x"):
            times = _MEMORY.match(text)
            if times:
                return cpus * float(times["number"])
        return self._gigabytes(said, "resources.memory", 0.0)

    def _gigabytes(self, said: Any, path: str, default: float) -> float:
        if said is None:
            return default
        found = None if isinstance(said, bool) else _MEMORY.match(str(said).strip())
        if not found or (found["unit"] or "").lower() == "x" or float(found["number"]) <= 0:
            raise self._wrong(
                path, f'expected gigabytes such as 16, "16+" or "64GB", got {said!r}.'
            )
        unit = (found["unit"] or "G")[0].upper()
        return float(found["number"]) * _UNITS.get(unit, 1.0)

    def _image(self, said: Any) -> str:
        if said is None:
            return ""
        if not isinstance(said, str) or not said.startswith("docker:"):
            raise self._wrong("resources.image_id", f'expected "docker:<image>", got {said!r}.')
        return said.removeprefix("docker:")

    def _recovery(self, resources: Json) -> Recovery:
        said = resources.get("job_recovery", resources.get("spot_recovery"))
        if said is None or isinstance(said, str):
            return Recovery()
        if not isinstance(said, dict):
            raise self._wrong("resources.job_recovery", "expected a strategy's name or a map.")
        path = "resources.job_recovery"
        known = frozenset({"strategy", "max_restarts_on_errors", "recover_on_exit_codes"})
        self._only_known(said, known, path)
        codes = said.get("recover_on_exit_codes") or []
        codes = codes if isinstance(codes, list) else [codes]
        if not all(isinstance(code, int) and 0 < code <= 255 and code != 137 for code in codes):
            raise self._wrong(
                f"{path}.recover_on_exit_codes", "expected numbers from 1 to 255 (137 is reserved)."
            )
        restarts = self._whole(said, "max_restarts_on_errors", 0, least=0, below=path)
        return Recovery(max_restarts_on_errors=restarts, recover_on_exit_codes=tuple(codes))

    # -- the rest of the task --

    def _config(self, said: Any) -> tuple[dict[str, str], dict[str, str], Json]:
        """Labels, annotations and changes to the pod that the `config` section asks for."""
        if not said:
            return {}, {}, {}
        if not isinstance(said, dict):
            raise self._wrong("config", "expected a map.")
        if said.get("hooks"):
            raise self._wrong(
                "config.hooks",
                "hooks are not run here.",
                "Save on SIGTERM in your program, and say how long that takes with the annotation"
                " makeway.dev/checkpoint-on-term (config.kubernetes.custom_metadata.annotations).",
            )
        self._only_known(said, frozenset(_CONFIG_KEYS), "config")
        kubernetes = said.get("kubernetes") or {}
        self._only_known(kubernetes, _CONFIG_KEYS["kubernetes"], "config.kubernetes")
        custom = kubernetes.get("custom_metadata") or {}
        path = "config.kubernetes.custom_metadata"
        labels = self._texts(custom.get("labels"), f"{path}.labels")
        queue = (kubernetes.get("quota") or {}).get("queue") or (kubernetes.get("kueue") or {}).get(
            "local_queue_name"
        )
        if queue:
            labels[QUEUE_NAME] = str(queue)
        return (
            labels,
            self._texts(custom.get("annotations"), f"{path}.annotations"),
            kubernetes.get("pod_config") or {},
        )

    def _envs(self, said: Any, path: str) -> dict[str, str]:
        if said is None:
            return {}
        if isinstance(said, list):
            said = dict.fromkeys(said)
        if not isinstance(said, dict):
            raise self._wrong(path, "expected a map of names and values.")
        found: dict[str, str] = {}
        for key, value in said.items():
            if not _ENV_NAME.match(str(key)):
                raise self._wrong(f"{path}.{key}", "is no name of an environment variable.")
            if value is None and key not in self._given_envs:
                raise self._wrong(f"{path}.{key}", "needs a value.", f"Give it: --env {key}=VALUE")
            if isinstance(value, dict | list):
                raise self._wrong(f"{path}.{key}", "expected text.")
            found[str(key)] = self._given_envs.get(str(key), _text(value))
        return found

    def _texts(self, said: Any, path: str) -> dict[str, str]:
        if said is None:
            return {}
        if not isinstance(said, dict) or any(isinstance(v, dict | list) for v in said.values()):
            raise self._wrong(path, "expected a map of names and texts.")
        return {str(key): _text(value) for key, value in said.items()}

    def _name(self, said: Any) -> str:
        return check_name(str(said), f"{self._where}: name") if said else ""

    def _workdir(self, said: Any) -> str:
        if said is None or isinstance(said, str):
            return said or ""
        raise self._wrong(
            "workdir", "repositories are not cloned here.", "Name a folder, or clone in `setup`."
        )

    def _whole(self, said: Json, key: str, default: int, *, least: int, below: str = "") -> int:
        value = said.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            path = f"{below}.{key}" if below else key
            raise self._wrong(path, f"expected a whole number of at least {least}, got {value!r}.")
        return value

    def _only_known(self, said: Any, known: frozenset[str], path: str) -> None:
        if not isinstance(said, dict):
            raise self._wrong(path, "expected a map.")
        for key in said:
            if key not in known:
                at = f"{path}.{key}" if path else str(key)
                raise self._wrong(at, "is not known.", _near(str(key), known))

    def _wrong(self, path: str, what: str, hint: str = "") -> UserError:
        return UserError(what, where=f"{self._where}: {path}", hint=hint)


def check_name(name: str, where: str) -> str:
    if not _NAME.match(name):
        raise UserError(
            f'"{name}" cannot be used as a name.',
            where=where,
            hint="Begin with a letter; then letters, digits, '-', '_' and '.', at most 52 in all.",
        )
    return name


def _near(key: str, known: frozenset[str]) -> str:
    import difflib

    close = difflib.get_close_matches(key, sorted(known), n=1)
    return f'Did you mean "{close[0]}"?' if close else f"Known are: {', '.join(sorted(known))}."


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def gpus_rounded_up(task: Task) -> int:
    return ceil(task.accelerators.count) if task.accelerators else 0

"""From a container in a pod to what the shim is to run: arguments, variables, directory, user.

The process gets a clean environment: nothing of the server's, only a plain PATH, a HOME of its own,
and what the pod names. Its folder is the only place that is written to.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from makeway.client.resource import Object
from makeway.embedded.node.cgroups import make_cgroup
from makeway.embedded.node.environment import (
    PLAIN_PATH,
    Place,
    Sources,
    arguments,
    environment,
    user_of,
)
from makeway.embedded.node.machine import LOOPBACK
from makeway.embedded.node.process import Spec
from makeway.embedded.node.volumes import (
    link_mounts,
    mounts_of,
    prepare_volumes,
    translate,
    volume_variables,
)


def checkpoint_file(folder: Path) -> Path:
    """Touched by the program when it has saved."""
    return folder / "checkpoint"


class Launcher(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same for all containers of a pod."""

    folder: Path
    logs: Path
    allocatable: Mapping[str, str]
    # The indices that are this pod's; None on a machine without GPUs.
    gpus: tuple[int, ...] | None
    log_limit_bytes: int

    def spec(self, pod: Object, container: Object, sources: Sources) -> Spec:
        """Makes the volumes and the working directory on the way; a `StartError` says what lacks."""
        place = Place(host_ip=LOOPBACK, pod_ip=LOOPBACK, allocatable=self.allocatable)
        user = user_of(pod, container, os.geteuid())
        volumes = prepare_volumes(pod, self.folder / "volumes", sources, place)
        mounts = mounts_of(container, volumes)
        work = self.folder / "work"
        work.mkdir(parents=True, exist_ok=True)
        link_mounts(mounts, work)
        given = self._base_variables(pod, work) | volume_variables(volumes)
        variables = {
            key: value if given.get(key) == value else translate(value, mounts)
            for key, value in environment(pod, container, sources, place, given).items()
        }
        words = tuple(translate(word, mounts) for word in arguments(container, variables))
        cwd = working_directory(work, translate(container.get("workingDir") or "", mounts))
        if user.uid is not None:
            give_to(self.folder, user.uid, user.uid if user.gid is None else user.gid)
        self.logs.mkdir(parents=True, exist_ok=True)
        name = container["name"]
        return Spec(
            argv=words,
            env=variables,
            cwd=cwd,
            log=str(self.logs / f"{name}.log"),
            uid=user.uid,
            gid=user.gid,
            cgroup=make_cgroup(f"{pod['metadata']['uid']}-{name}", container),
            log_limit_bytes=self.log_limit_bytes,
        )

    def _base_variables(self, pod: Object, work: Path) -> dict[str, str]:
        hostname = pod["spec"].get("hostname") or pod["metadata"]["name"]
        variables = {
            "PATH": PLAIN_PATH,
            "HOME": str(work),
            "HOSTNAME": str(hostname)[:63],
            "LANG": "C.UTF-8",
            "MAKEWAY_CHECKPOINT_FILE": str(checkpoint_file(self.folder)),
        }
        if self.gpus is not None:
            # Without a request, none: a process would otherwise see every GPU of the machine.
            indices = ",".join(map(str, self.gpus))
            variables["CUDA_VISIBLE_DEVICES"] = indices
            variables["NVIDIA_VISIBLE_DEVICES"] = indices or "void"
        return variables


def working_directory(work: Path, wanted: str) -> str:
    """The machine's own directory if there is one, else a folder of that name below `work`."""
    if not wanted:
        return str(work)
    if Path(wanted).is_dir():
        return wanted
    # Without a way up: `..` must not lead out of the pod's folder.
    inside = Path(os.path.normpath("/" + wanted.lstrip("/"))).relative_to("/")
    (work / inside).mkdir(parents=True, exist_ok=True)
    return str(work / inside)


def give_to(folder: Path, uid: int, gid: int) -> None:
    """What the pod writes into belongs to whoever it runs as; links are not followed."""
    for place, folders, files in os.walk(folder, followlinks=False):
        for name in ["", *folders, *files]:
            os.lchown(Path(place, name), uid, gid)

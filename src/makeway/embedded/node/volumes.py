"""A pod's volumes, for processes that share the machine's file system.

A process has no mount namespace, so nothing can appear at `/data` for it alone. The rule instead:

- every volume is a folder inside the pod's own folder (a hostPath is the path itself, and a claim is what its volume is);
- it is linked below the working directory: `mountPath: /data` is `./data`;
- `MAKEWAY_VOLUME_<NAME>` names the folder, for programs that look;
- where the machine itself has nothing at a mountPath, the path is replaced by the folder wherever it
  stands as a path in the command, its arguments, its variables and the working directory, so that
  `python /scripts/train.py` with a ConfigMap at `/scripts` runs unchanged.

Nothing is written outside the pod's folder, but for a hostPath of type DirectoryOrCreate, which is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from makeway.client.resource import Object
from makeway.embedded.node.environment import (
    Place,
    Source,
    Sources,
    StartError,
    field_value,
    resource_value,
)
from makeway.kinds.volumes import claims_by_volume

# What a PersistentVolume says of itself; the one field beside these is what it is.
_ABOUT_VOLUMES = {
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
}


class Mount(msgspec.Struct, frozen=True):
    path: str
    folder: Path


def mount_error(message: str) -> StartError:
    return StartError("FailedMount", message)


def with_claimed(pod: Object, claimed: Mapping[str, Object]) -> Object:
    """The pod with each claim replaced by what its PersistentVolume is."""
    names = claims_by_volume(pod)
    if not names:
        return pod
    volumes = [
        _resolved(volume, names[volume["name"]], claimed) if volume["name"] in names else volume
        for volume in pod["spec"]["volumes"]
    ]
    return {**pod, "spec": {**pod["spec"], "volumes": volumes}}


def _resolved(volume: Object, claim: str, claimed: Mapping[str, Object]) -> Object:
    if claim not in claimed:
        raise mount_error(f'persistentvolumeclaim "{claim}" is not bound to a volume')
    spec = claimed[claim]["spec"]
    if spec.get("local"):
        source = {"hostPath": {"path": spec["local"]["path"], "type": "Directory"}}
    else:
        source = {key: value for key, value in spec.items() if key not in _ABOUT_VOLUMES}
    return {"name": volume["name"], **source}


def prepare_volumes(pod: Object, folder: Path, sources: Sources, place: Place) -> dict[str, Path]:
    """Make every volume; the folder of each by name."""
    return {
        volume["name"]: _prepare(pod, volume, folder / volume["name"], sources, place)
        for volume in pod["spec"].get("volumes") or []
    }


def _prepare(pod: Object, volume: Object, folder: Path, sources: Sources, place: Place) -> Path:
    if "hostPath" in volume:
        return _host_path(volume)
    folder.mkdir(parents=True, exist_ok=True)
    if "emptyDir" in volume:
        return folder
    for part in (volume.get("projected") or {}).get("sources") or [volume]:
        _fill(pod, part, folder, sources, place)
    return folder


def _host_path(volume: Object) -> Path:
    path = Path(volume["hostPath"]["path"])
    kind = volume["hostPath"].get("type") or ""
    if kind == "DirectoryOrCreate" and not path.exists():
        _make_folder(volume["name"], path)
    if not path.exists():
        raise mount_error(
            f'volume "{volume["name"]}": hostPath {path} does not exist on this machine. Create it'
        )
    if kind.startswith("Directory") and not path.is_dir():
        raise mount_error(f'volume "{volume["name"]}": hostPath {path} is not a directory')
    return path


def _make_folder(name: str, path: Path) -> None:
    """The one thing that is made outside the pod's folder, because the pod's owner asks for it by name."""
    try:
        path.mkdir(parents=True, mode=0o755)
    except OSError as error:
        raise mount_error(
            f'volume "{name}": hostPath {path} cannot be made: {error.strerror}'
        ) from error


def _fill(pod: Object, part: Object, folder: Path, sources: Sources, place: Place) -> None:
    for field, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
        if field in part:
            _write_keys(part[field], kind, folder, sources)
            return
    if "downwardAPI" in part:
        for item in part["downwardAPI"].get("items") or []:
            _write_file(folder, item["path"], _downward(pod, item, place).encode(), item)
        return
    if "serviceAccountToken" in part or "clusterTrustBundle" in part:
        # There are no service accounts to speak of on one machine.
        return
    kinds = sorted(key for key in part if key != "name")
    raise mount_error(
        f"volumes of the kind {', '.join(kinds)} are not there on one machine. Use emptyDir,"
        " hostPath, configMap, secret, downwardAPI, projected or persistentVolumeClaim, or run it on a cluster"
    )


def _write_keys(wanted: Object, kind: str, folder: Path, sources: Sources) -> None:
    name = str(wanted.get("name") or wanted.get("secretName"))
    source = sources.get((kind, name))
    if source is None:
        if wanted.get("optional"):
            return
        raise mount_error(f'{kind.lower()} "{name}" not found')
    for path, key in _items(wanted, source):
        if key not in source.data:
            if wanted.get("optional"):
                continue
            raise mount_error(f'{kind.lower()} "{name}" has no key "{key}"')
        _write_file(folder, path, source.data[key], wanted)


def _items(wanted: Object, source: Source) -> Iterator[tuple[str, str]]:
    if wanted.get("items"):
        for item in wanted["items"]:
            yield str(item["path"]), str(item["key"])
    else:
        for key in source.data:
            yield key, key


def _downward(pod: Object, item: Object, place: Place) -> str:
    if item.get("fieldRef"):
        return field_value(pod, item["fieldRef"]["fieldPath"], place)
    reference = item["resourceFieldRef"]
    container = next(
        each for each in pod["spec"]["containers"] if each["name"] == reference["containerName"]
    )
    return resource_value(pod, container, reference, place)


def _write_file(folder: Path, path: str, content: bytes, modes: Object) -> None:
    inside = PurePosixPath(path)
    if inside.is_absolute() or ".." in inside.parts:
        raise mount_error(f'"{path}" leads out of its volume')
    file = folder / inside
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(int(modes.get("mode") or modes.get("defaultMode") or 0o644))


# Where a container finds them


def mounts_of(container: Object, volumes: Mapping[str, Path]) -> list[Mount]:
    """Longest paths first: a mount inside another one is meant before the outer."""
    found = []
    for mount in container.get("volumeMounts") or []:
        if mount["name"] not in volumes:
            raise mount_error(
                f'container {container["name"]} mounts "{mount["name"]}", which is'
                " no volume of its pod"
            )
        folder = volumes[mount["name"]]
        inside = PurePosixPath(mount.get("subPath") or "")
        if inside.is_absolute() or ".." in inside.parts:
            raise mount_error(f'subPath "{inside}" leads out of its volume')
        found.append(Mount(str(PurePosixPath(mount["mountPath"])), folder / inside))
    return sorted(found, key=lambda each: -len(each.path))


def link_mounts(mounts: list[Mount], work: Path) -> None:
    """`/data` as `./data`; what is already there stays."""
    for mount in sorted(mounts, key=lambda each: len(each.path)):
        inside = PurePosixPath(mount.path.lstrip("/"))
        if not inside.parts or ".." in inside.parts:
            continue
        link = work / inside
        parents = list(link.relative_to(work).parents)[:-1]
        if any((work / parent).is_symlink() for parent in parents):
            # Inside another mount: making it there could write outside the pod's folder.
            continue
        if not link.exists() and not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(mount.folder)


def volume_variables(volumes: Mapping[str, Path]) -> dict[str, str]:
    return {
        f"MAKEWAY_VOLUME_{re.sub(r'[^A-Z0-9]', '_', name.upper())}": str(folder)
        for name, folder in volumes.items()
    }


def translate(text: str, mounts: list[Mount]) -> str:
    """Replace mount paths that this machine does not have by the volumes' folders."""
    absent = [mount for mount in mounts if not Path(mount.path).exists()]
    if not absent:
        return text
    found = {mount.path: str(mount.folder) for mount in absent}
    paths = "|".join(re.escape(mount.path) for mount in absent)
    # A path begins where no other path goes on, and ends at a slash or at no letter.
    pattern = re.compile(rf"(?<![\w./~-])(?:{paths})(?![\w.-])")
    return pattern.sub(lambda match: found[match[0]], text)

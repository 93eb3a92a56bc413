"""Write the kustomize base under `deploy/base` from the same objects that `makeway install` applies.

python -m tools.write_deploy
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from makeway.kinds.crds import custom_resource_definitions
from makeway.kube.manifests import NAMESPACE, Options, cluster_objects

BASE = Path(__file__).parent.parent / "deploy/base"
HEAD = "# Written by `python -m tools.write_deploy`; change the code instead.\n"


def files() -> dict[str, str]:
    """The text of each file by its name."""
    objects = cluster_objects(Options())
    policies = [one for one in objects if "AdmissionPolicy" in one["kind"]]
    rest = [one for one in objects if one not in policies]
    parts = {
        "definitions.yaml": custom_resource_definitions(),
        "policies.yaml": policies,
        "makeway.yaml": rest,
    }
    written = {name: HEAD + _dump_all(found) for name, found in parts.items()}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": NAMESPACE,
        "resources": list(parts),
    }
    return {"kustomization.yaml": HEAD + yaml.safe_dump(kustomization, sort_keys=False), **written}


def _dump_all(objects: list[dict[str, Any]]) -> str:
    return yaml.dump_all(objects, Dumper=_Plain, sort_keys=False, width=120)


class _Plain(yaml.SafeDumper):
    """Without anchors: people read these files."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


if __name__ == "__main__":
    BASE.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (BASE / name).write_text(text)

"""Resource profiles and images of KubeAI Models: what `nvidia-gpu-l4:2` stands for.

The table holds KubeAI's base values; a configuration may add profiles or replace them by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from makeway.errors import UserError

NVIDIA_TOLERATION = {
    "key": "nvidia.com/gpu",
    "operator": "Equal",
    "value": "present",
    "effect": "NoSchedule",
}
AMD_TOLERATION = {**NVIDIA_TOLERATION, "key": "amd.com/gpu"}


def _nvidia(requests: Mapping[str, str] | None = None, image: str = "nvidia-gpu") -> dict[str, Any]:
    profile: dict[str, Any] = {
        "imageName": image,
        "limits": {"nvidia.com/gpu": "1"},
        "tolerations": [NVIDIA_TOLERATION],
    }
    return profile | ({"requests": dict(requests)} if requests else {})


_L4 = {"nvidia.com/gpu": "1", "cpu": "6", "memory": "24Gi"}
_ONE = {"nvidia.com/gpu": "1"}

BASE_PROFILES: dict[str, dict[str, Any]] = {
    "cpu": {"imageName": "cpu", "requests": {"cpu": "1", "memory": "2Gi"}},
    "nvidia-gpu-t4": {"imageName": "nvidia-gpu", "requests": _ONE, "limits": _ONE},
    "nvidia-gpu-l4": _nvidia(_L4),
    "nvidia-gpu-l40s": _nvidia(_L4),
    "nvidia-gpu-h100": _nvidia(),
    "nvidia-gpu-a100-80gb": _nvidia(),
    "nvidia-gpu-a100-40gb": _nvidia(),
    "nvidia-gpu-a16": _nvidia(),
    "nvidia-gpu-rtx4070-8gb": _nvidia(),
    "nvidia-gpu-gh200": _nvidia(_ONE, image="gh200"),
    "amd-gpu-mi300x": {
        "imageName": "amd-gpu",
        "limits": {"amd.com/gpu": "1"},
        "tolerations": [AMD_TOLERATION],
    },
}

IMAGES: dict[str, dict[str, str]] = {
    "VLLM": {
        "default": "vllm/vllm-openai:v0.8.3",
        "nvidia-gpu": "vllm/vllm-openai:v0.8.3",
        "cpu": "substratusai/vllm:v0.6.3.post1-cpu",
        "google-tpu": "substratusai/vllm:v0.6.4.post1-tpu",
        "gh200": "substratusai/vllm-gh200:v0.8.3",
        "amd-gpu": "substratusai/vllm-rocm:nightly_main_20250120",
    },
    "OLlama": {"default": "ollama/ollama:latest"},
    "FasterWhisper": {
        "default": "fedirz/faster-whisper-server:latest-cpu",
        "nvidia-gpu": "fedirz/faster-whisper-server:latest-cuda",
    },
    "Infinity": {"default": "michaelf34/infinity:latest"},
}


def expand_profile(
    text: str, configured: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], int]:
    """`NAME:COUNT` as the profile and how often it is meant."""
    name, separator, count = text.partition(":")
    if not separator or not name or not re.fullmatch(r"[1-9]\d*", count):
        raise UserError(
            f'invalid resource profile: "{text}", should match <name>:<multiple>,'
            " example: nvidia-gpu-l4:2"
        )
    known = {**BASE_PROFILES, **(configured or {})}
    if name not in known:
        listed = ", ".join(sorted(known))
        raise UserError(f'resource profile not found: "{name}".', hint=f"There are: {listed}.")
    return known[name], int(count)


def times(quantity: Any, count: int) -> str:
    """`24Gi` twice is `48Gi`: the number grows, the unit stays."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", str(quantity))
    if match is None:
        raise UserError(f'resource profile: "{quantity}" is not a quantity.')
    number = float(match[1]) * count
    return f"{int(number) if number.is_integer() else number}{match[2]}"


def image_for(engine: str, profile: Mapping[str, Any]) -> str:
    images = IMAGES[engine]
    return images.get(str(profile.get("imageName") or "default"), images["default"])

"""makeway: which AI workloads run now, where, and who steps aside, and why."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "checkpointed"]


def __getattr__(name: str) -> Any:
    """`makeway.checkpointed` for training scripts, loaded when it is asked for: `import makeway` costs nothing."""
    if name == "checkpointed":
        from makeway.checkpoint import checkpointed

        return checkpointed
    raise AttributeError(f"module 'makeway' has no attribute '{name}'")

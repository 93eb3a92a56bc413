"""The runner: pods as local processes, and nodes that only pretend."""

from makeway.embedded.node.machine import NodeOptions
from makeway.embedded.node.pretend import run_pretended
from makeway.embedded.node.runner import LocalNode, parse_amounts, run_node

__all__ = ["LocalNode", "NodeOptions", "parse_amounts", "run_node", "run_pretended"]

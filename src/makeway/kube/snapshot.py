"""The engine's state as the API holds it now, for who asks a question and decides nothing."""

from __future__ import annotations

from makeway.client import Client
from makeway.control.config import Configuration
from makeway.control.ports import Clock
from makeway.engine.state import State
from makeway.kube.adapter import KubeCluster


async def read_state(client: Client, config: Configuration, clock: Clock) -> State:
    cluster = KubeCluster(client, config, clock)
    await cluster.load()
    state = State()
    for event in cluster.changes():
        state.apply(event)
    state.history = cluster.history()
    return state

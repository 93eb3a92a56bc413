"""A cluster that has no nodes yet: whoever comes waits and says so, whatever it asks for."""

from __future__ import annotations

import pytest

from makeway.engine.policy import Policy, VictimPolicy
from makeway.model.node import NodeName
from makeway.model.selectors import LabelSelector
from makeway.model.workload import PodShape, PodTerm, Spread
from makeway.testing import Harness

ZONE = "topology.kubernetes.io/zone"
ONE_CORE = (("cpu", 1000),)
ALIKE = PodTerm(topology_key="kubernetes.io/hostname", selector=LabelSelector())
SHAPES = {
    "plain": PodShape(requests=ONE_CORE),
    "on a node": PodShape(requests=ONE_CORE, node_name=NodeName("gone")),
    "spread": PodShape(requests=ONE_CORE, spread=(Spread(topology_key=ZONE),)),
    "apart": PodShape(requests=ONE_CORE, anti_affinity=(ALIKE,)),
    "beside": PodShape(requests=ONE_CORE, affinity=(ALIKE,)),
}


@pytest.mark.parametrize("victims", ["least-loss", "kueue", "kube"])
@pytest.mark.parametrize("queue", [None, "research"])
@pytest.mark.parametrize("gang", [True, False])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_whoever_comes_before_the_first_node_waits(
    shape: PodShape, gang: bool, queue: str | None, victims: VictimPolicy
) -> None:
    h = Harness(Policy(victims=victims))
    h.queue("research", cpus=8)
    h.submit("early", pods=2, shape=shape, gang=gang, queue=queue)
    h.settle()
    assert h.placed("early") == []
    assert h.why("early")

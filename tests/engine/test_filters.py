"""Which nodes a pod may go to, where two reasons meet."""

from __future__ import annotations

from makeway.engine.filters import neighbour_mask, verdicts
from makeway.engine.nodes import NodeTable
from makeway.model.node import Node, NodeName
from makeway.model.resources import frozen
from makeway.model.selectors import LabelSelector, NodeTerm, Requirement, Taint
from makeway.model.workload import Pod, PodId, PodShape, Spread, WorkloadId

ZONE = "zone"


def test_a_node_that_is_not_asked_for_is_no_domain_to_spread_over_tainted_or_not() -> None:
    """Found beside kube-scheduler: the taint hid that the node was out of the question anyway."""
    table = NodeTable()
    room = frozen({"pods": 10})
    away = Node(
        name=NodeName("away"),
        labels={ZONE: "b", "pool": "other"},
        taints=(Taint(key="t"),),
        allocatable=room,
    )
    here = Node(name=NodeName("here"), labels={ZONE: "a", "pool": "mine"}, allocatable=room)
    for node in (away, here):
        table.upsert_node(node)
    shape = PodShape(
        namespace="n",
        node_selector=(("pool", "mine"),),
        spread=(Spread(topology_key=ZONE, selector=LabelSelector()),),
    )
    row = table.row_of[NodeName("here")]
    table.put(Pod(id=PodId("n/p"), workload=WorkloadId("n/p"), shape=PodShape(namespace="n")), row)
    suits = neighbour_mask(table, shape)
    assert suits is not None
    # One domain only, so adding to it widens nothing.
    assert bool(suits[row])


def test_affinity_that_names_its_node_leaves_the_others_out_before_anything_is_asked_of_them() -> (
    None
):
    table = NodeTable()
    full = Node(name=NodeName("mine"), allocatable=frozen({"pods": 0}))
    tainted = Node(
        name=NodeName("other"), taints=(Taint(key="t"),), allocatable=frozen({"pods": 9})
    )
    for node in (full, tainted):
        table.upsert_node(node)
    by_name = Requirement(key="metadata.name", operator="In", values=("mine",))
    shape = PodShape(namespace="n", required_terms=(NodeTerm(fields=(by_name,)),))
    assert [(v.count, v.cause) for v in verdicts(table, shape)] == [
        (1, "Too many pods"),
        (1, "node(s) didn't satisfy plugin(s) [NodeAffinity]"),
    ]

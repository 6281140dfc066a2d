"""Says which inputs of a dense graph each of its outputs is computed from."""

from __future__ import annotations

from torch import fx

from storage.checkpoint.assembly import SizeValue, value_of
from storage.checkpoint.graph import DenseGraph


def inputs_of_outputs(graph: DenseGraph) -> list[frozenset[int]]:
    """Returns for each output of a graph, in order, the numbers of the inputs whose values it depends on.

    An output that takes only the size of the batch from an input does not depend on it.
    """
    nodes = list(graph.program.module.graph.nodes)
    holders = [node for node in nodes if node.op == "placeholder"]
    of_input = {holders[slot]: number for number, slot in enumerate(graph.slots)}
    needs: dict[fx.Node, frozenset[int]] = {}
    for node in nodes:
        own = frozenset([of_input[node]]) if node in of_input else frozenset()
        # Every input has the size of the batch, so whoever needs a size needs none of them.
        if not isinstance(value_of(node), SizeValue):
            own = own.union(*(needs[each] for each in node.all_input_nodes))
        needs[node] = own
    (output,) = (node for node in nodes if node.op == "output")
    found = [needs[each] if isinstance(each, fx.Node) else frozenset[int]() for each in output.args[0]]
    return list(found)

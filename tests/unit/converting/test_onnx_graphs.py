"""Random graphs of ONNX operators give what onnxruntime gives, node by node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from storage.errors import InvalidInput
from tests.support.onnx_graphs import grown, numbers, save_graph
from trainer.converting.onnx_module import convert_onnx

_GRAPHS, _PARTS = 320, 8
# onnxruntime has no kernel for some types, and says so when it opens the file.
_NO_KERNEL = "NOT_IMPLEMENTED"


def difference(seed: int, path: Path) -> str | None:
    """Returns what differs first from onnxruntime, "" where nothing does; None for a graph that it cannot run."""
    graph = grown(seed)
    names = save_graph(graph, path)
    converted = convert_onnx(path)
    random = np.random.default_rng(seed)
    assert converted.original is not None
    for rows in (3, 1):
        batch = {each.name: numbers(random, each.kind, (rows, *each.shape)) for each in graph.inputs}
        try:
            wanted = converted.original(batch)
        except InvalidInput as error:
            return None if _NO_KERNEL in str(error) else str(error)
        try:
            got = converted.outputs({name: torch.from_numpy(values) for name, values in batch.items()})
        except Exception as error:  # whatever is raised, it is this graph that cannot be converted
            return f"{type(error).__name__}: {error}"
        made = {name: node for node in graph.nodes for name in node.output}
        for name, node in ((name, made[name]) for name in names):
            own, other = got[name].numpy(), wanted[name]
            if own.dtype != other.dtype or own.shape != other.shape:
                what = f"{own.dtype} {own.shape}, expected {other.dtype} {other.shape}"
                return f"{rows} rows, {node.op_type} {list(node.input)} {name}: {what}"
            if not np.allclose(own, other, rtol=1e-4, atol=1e-5, equal_nan=True):
                return f"{rows} rows, {node.op_type} {list(node.input)} {name}: {own.ravel()[:4]}, {other.ravel()[:4]}"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(_PARTS))
def test_random_graphs_give_what_onnxruntime_gives(part: int, tmp_path: Path) -> None:
    count = _GRAPHS // _PARTS
    found = {seed: difference(seed, tmp_path / f"{seed}.onnx") for seed in range(part * count, (part + 1) * count)}
    assert {seed: each for seed, each in found.items() if each} == {}
    assert sum(each == "" for each in found.values()) > count // 2

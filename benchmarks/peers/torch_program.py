"""Runs lookups of torch, FBGEMM and TorchRec in a process of their own; started by peers/process.py, as a file.

It reads one JSON object a line and writes one for each. It needs torch and numpy; FBGEMM and TorchRec only for their
own kinds.

    {"do": "build", "kind": ..., "rows": R, "dim": D, "tables": T}         -> {"version": ...}; "drop" forgets it
    {"do": "batches", "name": ..., "path": npy file (K, n) int64, row numbers, "per_bag": ids of a bag}
    {"do": "run", "kind": ..., "name": ..., "first": i, "times": k}        -> {"seconds": ...}
    {"do": "sum", "kind": ..., "name": ..., "index": i}                    -> {"sum": of all outputs}

Row numbers are within a table; a batch of T tables holds their ids one table after the other. Everything runs on one
thread unless --threads is given. Inputs are made before the clock starts, except TorchRec's KeyedJaggedTensor, which
a request is converted to.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

# Peers of one size share their weights, which take several gigabytes each.
_shared: weakref.WeakValueDictionary[tuple[int, int], torch.Tensor] = weakref.WeakValueDictionary()


def ones(rows: int, dim: int) -> torch.Tensor:
    """Returns (rows, dim) float32, all 1."""
    weights = _shared.get((rows, dim))
    if weights is None:
        weights = torch.ones(rows, dim)
        _shared[rows, dim] = weights
    return weights


class Embedding:
    """Runs nn.Embedding."""

    version = str(torch.__version__)

    def __init__(self, rows: int, dim: int, tables: int) -> None:
        self.weights = ones(rows, dim)
        self.module = torch.nn.Embedding(rows, dim, _weight=self.weights)

    def inputs(self, numbers: np.ndarray, per_bag: int) -> tuple[Any, ...]:
        return (torch.from_numpy(numbers),)

    def run(self, *inputs: Any) -> Any:
        return self.module(*inputs)


class IndexSelect(Embedding):
    """Runs torch.index_select into a tensor that is reused."""

    out: torch.Tensor | None = None

    def run(self, *inputs: Any) -> Any:
        (numbers,) = inputs
        if self.out is None or len(self.out) != len(numbers):
            self.out = torch.empty(len(numbers), self.weights.shape[1])
        return torch.index_select(self.weights, 0, numbers, out=self.out)


class NumpyTake(Embedding):
    """Runs numpy.take into an array that is reused."""

    version = np.__version__
    out: np.ndarray | None = None

    def inputs(self, numbers: np.ndarray, per_bag: int) -> tuple[Any, ...]:
        return (numbers,)

    def run(self, *inputs: Any) -> Any:
        (numbers,) = inputs
        if self.out is None or len(self.out) != len(numbers):
            self.out = np.empty((len(numbers), self.weights.shape[1]), np.float32)
        return torch.from_numpy(np.take(self.weights.numpy(), numbers, axis=0, out=self.out, mode="clip"))


class IndexCopy(Embedding):
    """Runs Tensor.index_copy_, which writes rows."""

    def inputs(self, numbers: np.ndarray, per_bag: int) -> tuple[Any, ...]:
        return torch.from_numpy(numbers), torch.ones(len(numbers), self.weights.shape[1])

    def run(self, *inputs: Any) -> Any:
        return self.weights.index_copy_(0, *inputs)


class Bag:
    """Runs nn.EmbeddingBag, sum."""

    version = str(torch.__version__)

    def __init__(self, rows: int, dim: int, tables: int) -> None:
        self.weights = ones(rows, dim)
        self.module = torch.nn.EmbeddingBag(rows, dim, mode="sum", _weight=self.weights)

    def inputs(self, numbers: np.ndarray, per_bag: int) -> tuple[Any, ...]:
        return torch.from_numpy(numbers), torch.arange(0, len(numbers), per_bag)

    def run(self, *inputs: Any) -> Any:
        return self.module(*inputs)


class TableBatched:
    """Runs FBGEMM's table-batched embedding bags, the class that also trains, fp32."""

    def __init__(self, rows: int, dim: int, tables: int) -> None:
        import fbgemm_gpu
        from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        self.version = fbgemm_gpu.__version__
        self.tables = tables
        self.module = SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * tables,
            optimizer=EmbOptimType.EXACT_SGD,
            weights_precision=SparseType.FP32,
            output_dtype=SparseType.FP32,
            pooling_mode=PoolingMode.SUM,
        )
        for weights in self.module.split_embedding_weights():
            weights.fill_(1.0)

    def inputs(self, numbers: np.ndarray, per_bag: int) -> tuple[Any, ...]:
        return torch.from_numpy(numbers), torch.arange(0, len(numbers) + 1, per_bag)

    def run(self, *inputs: Any) -> Any:
        return self.module(*inputs)


class TableBatchedInference:
    """Runs FBGEMM's table-batched embedding bags, the class for inference, fp32."""

    def __init__(self, rows: int, dim: int, tables: int) -> None:
        import fbgemm_gpu
        from fbgemm_gpu.split_embedding_configs import SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
        from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
            IntNBitTableBatchedEmbeddingBagsCodegen,
        )

        self.version = fbgemm_gpu.__version__
        self.module = IntNBitTableBatchedEmbeddingBagsCodegen(
            [(f"t{index}", rows, dim, SparseType.FP32, EmbeddingLocation.HOST) for index in range(tables)],
            device="cpu",
            output_dtype=SparseType.FP32,
            pooling_mode=PoolingMode.SUM,
        )
        self.module.initialize_weights()
        for weights, _ in self.module.split_embedding_weights():
            weights.view(torch.float32).fill_(1.0)

    def inputs(self, numbers: np.ndarray, per_bag: int) -> tuple[Any, ...]:
        return (
            torch.from_numpy(numbers.astype(np.int32)),
            torch.arange(0, len(numbers) + 1, per_bag, dtype=torch.int32),
        )

    def run(self, *inputs: Any) -> Any:
        return self.module(*inputs)


class TorchRec:
    """Runs TorchRec's EmbeddingBagCollection, a feature for each table, sum."""

    def __init__(self, rows: int, dim: int, tables: int) -> None:
        import torchrec

        self.version = torchrec.__version__
        self.jagged = torchrec.KeyedJaggedTensor
        self.keys = [f"f{index}" for index in range(tables)]
        self.module = torchrec.EmbeddingBagCollection(
            tables=[
                torchrec.EmbeddingBagConfig(
                    name=f"t_{key}", embedding_dim=dim, num_embeddings=rows, feature_names=[key]
                )
                for key in self.keys
            ]
        )
        for weights in self.module.parameters():
            weights.data.fill_(1.0)

    def inputs(self, numbers: np.ndarray, per_bag: int) -> tuple[Any, ...]:
        bags = len(numbers) // per_bag
        return torch.from_numpy(numbers), torch.full((bags,), per_bag, dtype=torch.int64)

    def run(self, *inputs: Any) -> Any:
        values, lengths = inputs
        return self.module(self.jagged(keys=self.keys, values=values, lengths=lengths)).values()


KINDS = {
    "embedding": Embedding,
    "index_select": IndexSelect,
    "numpy_take": NumpyTake,
    "index_copy": IndexCopy,
    "bag": Bag,
    "fbgemm": TableBatched,
    "fbgemm_inference": TableBatchedInference,
    "torchrec": TorchRec,
}


class Program:
    """The peers that are built, and the batches to run them on."""

    def __init__(self) -> None:
        self.peers: dict[str, Any] = {}
        self.batches: dict[str, tuple[np.ndarray, int]] = {}

    def build(self, kind: str, rows: int, dim: int, tables: int) -> dict[str, Any]:
        self.peers.pop(kind, None)
        self.peers[kind] = KINDS[kind](rows, dim, tables)
        return {"version": str(self.peers[kind].version)}

    def drop(self, kind: str) -> dict[str, Any]:
        self.peers.pop(kind, None)
        return {}

    def take(self, name: str, path: str, per_bag: int) -> dict[str, Any]:
        self.batches[name] = (np.load(path, allow_pickle=False), per_bag)
        return {}

    def run(self, kind: str, name: str, first: int, times: int) -> dict[str, Any]:
        peer, (batches, per_bag) = self.peers[kind], self.batches[name]
        inputs = [peer.inputs(batches[turn % len(batches)], per_bag) for turn in range(first, first + times)]
        began = time.perf_counter()
        for given in inputs:
            peer.run(*given)
        return {"seconds": time.perf_counter() - began}

    def sum(self, kind: str, name: str, index: int) -> dict[str, Any]:
        """Returns the sum of all outputs; every value of every row is 1, so it shows whether all ids were looked up."""
        peer, (batches, per_bag) = self.peers[kind], self.batches[name]
        return {"sum": float(peer.run(*peer.inputs(batches[index], per_bag)).double().sum())}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    warnings.simplefilter("ignore")
    answers = sys.stdout
    sys.stdout = sys.stderr  # the output of a library is no answer
    program = Program()
    verbs: dict[str, Callable[..., dict[str, Any]]] = {
        "build": program.build,
        "drop": program.drop,
        "batches": program.take,
        "run": program.run,
        "sum": program.sum,
    }
    # FBGEMM's training class has no kernels for inference_mode.
    with torch.no_grad():
        for line in sys.stdin:
            order = json.loads(line)
            try:
                answer = verbs[order.pop("do")](**order)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()

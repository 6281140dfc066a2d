"""Trains embeddings, and a DLRM around them, with torch, FBGEMM and TorchRec; started by peers/training.py, as a file.

It reads one JSON object a line and writes one for each. It needs torch and numpy; FBGEMM and TorchRec only for their
own kinds.

    {"do": "batches", "path": npz file}                                     numbers (K, T, B) int64 row numbers, and for
                                                                            a model dense (K, B, C), labels (K, B, 1)
    {"do": "build", "kind": ..., "optimizer": ..., "lr": ..., "eps": ...,
     "rows": R, "dim": D, "model": npz file of the dense weights or ""}     -> {"version": ...}; "drop" forgets it
    {"do": "run", "first": i, "times": k, "cores": c}                       -> {"seconds": ..., "losses": [...]}
    {"do": "rows", "index": i, "path": npy file to write}                   rows (T, B, D) of a batch

T tables, B samples, D dim. One peer is built at a time. A step of embeddings alone ends with the gradient that
`gradient` makes; a step of a model has a loss, and the optimizer of its dense weights. The tables begin with
`first_rows`, as ours do. A step runs on as many threads as cores, and on no other cores.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


def first_rows(table: int, rows: int, dim: int) -> np.ndarray:
    """Returns (rows, dim) float32, what a table begins with."""
    return (np.random.default_rng(table).random((rows, dim), np.float32) - np.float32(0.5)) * np.float32(0.1)


def gradient(batch: int, width: int) -> np.ndarray:
    """Returns (batch, width) float32, a gradient of the loss by the rows of a batch."""
    return np.random.default_rng(99).standard_normal((batch, width), np.float32) * np.float32(0.01)


class Bags:
    """One nn.EmbeddingBag a table with sparse gradients, and the optimizer of torch that takes them."""

    version = str(torch.__version__)

    def __init__(self, optimizer: str, lr: float, eps: float, tables: int, rows: int, dim: int) -> None:
        self.bags = [
            nn.EmbeddingBag(rows, dim, mode="sum", sparse=True, _weight=torch.from_numpy(first_rows(table, rows, dim)))
            for table in range(tables)
        ]
        weights = [bag.weight for bag in self.bags]
        self.optimizer: torch.optim.Optimizer
        if optimizer == "adam":
            self.optimizer = torch.optim.SparseAdam(weights, lr=lr, eps=eps)
        elif optimizer == "adagrad":
            self.optimizer = torch.optim.Adagrad(weights, lr=lr, eps=eps)
        else:
            self.optimizer = {"sgd": torch.optim.SGD}[optimizer](weights, lr=lr)

    def inputs(self, numbers: np.ndarray) -> Any:
        return torch.from_numpy(numbers), torch.arange(numbers.shape[1])

    def lookup(self, inputs: Any) -> Tensor:
        values, offsets = inputs
        return torch.cat([bag(own, offsets) for bag, own in zip(self.bags, values, strict=True)], dim=1)

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weights(self) -> list[Tensor]:
        return [bag.weight for bag in self.bags]


class TableBatched:
    """FBGEMM's table-batched embedding bags: backward() also steps the rows. It has three optimizers for processors."""

    def __init__(self, optimizer: str, lr: float, eps: float, tables: int, rows: int, dim: int) -> None:
        import fbgemm_gpu
        from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
            BoundsCheckMode,
            EmbeddingLocation,
            PoolingMode,
        )
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        self.version = str(fbgemm_gpu.__version__)
        self.module = SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * tables,
            optimizer={
                "sgd": EmbOptimType.EXACT_SGD,
                "adagrad": EmbOptimType.EXACT_ADAGRAD,
                "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            }[optimizer],
            learning_rate=lr,
            eps=eps,
            weights_precision=SparseType.FP32,
            output_dtype=SparseType.FP32,
            pooling_mode=PoolingMode.SUM,
            bounds_check_mode=BoundsCheckMode.NONE,  # the fastest
        )
        for table, weights in enumerate(self.weights()):
            weights.copy_(torch.from_numpy(first_rows(table, rows, dim)))

    def inputs(self, numbers: np.ndarray) -> Any:
        # As fast as int64 with Adagrad, and a fifth faster with SGD at 16 values.
        values = torch.from_numpy(numbers.reshape(-1).astype(np.int32))
        return values, torch.arange(numbers.size + 1, dtype=torch.int32)

    def lookup(self, inputs: Any) -> Tensor:
        result: Tensor = self.module(*inputs)
        return result

    def step(self) -> None:
        pass

    def weights(self) -> list[Tensor]:
        return list(self.module.split_embedding_weights())


class TorchRec:
    """TorchRec's FusedEmbeddingBagCollection over FBGEMM, given a KeyedJaggedTensor."""

    def __init__(self, optimizer: str, lr: float, eps: float, tables: int, rows: int, dim: int) -> None:
        import torchrec
        from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

        self.version = str(torchrec.__version__)
        self.jagged = torchrec.KeyedJaggedTensor
        self.keys = [f"f{table}" for table in range(tables)]
        types: dict[str, type[torch.optim.Optimizer]] = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}
        self.module = FusedEmbeddingBagCollection(
            tables=[
                torchrec.EmbeddingBagConfig(
                    name=f"t{table}", embedding_dim=dim, num_embeddings=rows, feature_names=[key]
                )
                for table, key in enumerate(self.keys)
            ],
            optimizer_type=types[optimizer],
            optimizer_kwargs={"lr": lr, "eps": eps},
            device=torch.device("cpu"),
        )
        for table, weights in enumerate(self.weights()):
            weights.copy_(torch.from_numpy(first_rows(table, rows, dim)))

    def inputs(self, numbers: np.ndarray) -> Any:
        return torch.from_numpy(numbers.reshape(-1)), torch.ones(numbers.size, dtype=torch.int64)

    def lookup(self, inputs: Any) -> Tensor:
        values, lengths = inputs
        result: Tensor = self.module(self.jagged(keys=self.keys, values=values, lengths=lengths)).values()
        return result

    def step(self) -> None:
        pass

    def weights(self) -> list[Tensor]:
        return [weights.detach() for weights in self.module.parameters()]


KINDS: dict[str, Any] = {"torch": Bags, "fbgemm": TableBatched, "torchrec": TorchRec}


class Dlrm(nn.Module):
    """The network of trainer/models/dlrm.py. weights: its own, which say how wide its layers are."""

    pairs: Tensor

    def __init__(self, weights: dict[str, np.ndarray], features: int) -> None:
        super().__init__()
        self.bottom, self.top = (_mlp(weights, name) for name in ("bottom", "top"))
        rows, columns = torch.tril_indices(features + 1, features + 1, offset=-1)
        self.register_buffer("pairs", rows * (features + 1) + columns, persistent=False)
        self.load_state_dict({name: torch.from_numpy(values) for name, values in weights.items()})

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        """dense: (B, C). rows: (B, T * D). Returns the log-odds (B, 1)."""
        first = self.bottom(dense)
        stacked = torch.cat([first.unsqueeze(1), rows.view(len(rows), -1, first.shape[1])], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
        result: Tensor = self.top(torch.cat([first, products.index_select(1, self.pairs)], dim=1))
        return result


def _mlp(weights: dict[str, np.ndarray], name: str) -> nn.Sequential:
    shapes = [values.shape for key, values in weights.items() if key.startswith(name) and key.endswith("weight")]
    layers: list[nn.Module] = []
    for wide, width in shapes:
        layers += [nn.Linear(width, wide), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Program:
    """The peer that is built, and the batches to run it on."""

    def __init__(self) -> None:
        self.given: dict[str, np.ndarray] = {}
        self.peer: Any = None
        self.model: Any = None
        self.dense: Any = None
        self.inputs: list[Any] = []

    def batches(self, path: str) -> dict[str, Any]:
        with np.load(path, allow_pickle=False) as given:
            self.given = dict(given)
        return {}

    def build(
        self, kind: str, optimizer: str, lr: float, eps: float, rows: int, dim: int, model: str
    ) -> dict[str, Any]:
        self.drop()
        _, tables, batch = self.given["numbers"].shape
        self.peer = KINDS[kind](optimizer, lr, eps, tables, rows, dim)
        self.inputs = [self.peer.inputs(numbers) for numbers in self.given["numbers"]]
        if model:
            with np.load(model, allow_pickle=False) as weights:
                self.model = Dlrm(dict(weights), tables)
            self.dense = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=True)
            self.values = [torch.from_numpy(each) for each in self.given["dense"]]
            self.labels = [torch.from_numpy(each) for each in self.given["labels"]]
        self.gradient = torch.from_numpy(gradient(batch, tables * dim))
        return {"version": self.peer.version}

    def drop(self) -> dict[str, Any]:
        self.peer = None
        self.inputs = []
        self.model = self.dense = None
        return {}

    def run(self, first: int, times: int, cores: int) -> dict[str, Any]:
        use_cores(cores)
        step = self._embeddings if self.model is None else self._model
        began = time.perf_counter()
        losses = [step(number % len(self.inputs)) for number in range(first, first + times)]
        return {"seconds": time.perf_counter() - began, "losses": losses[:16]}

    def _embeddings(self, index: int) -> float:
        self.peer.lookup(self.inputs[index]).backward(self.gradient)
        self.peer.step()
        return 0.0

    def _model(self, index: int) -> float:
        self.dense.zero_grad()
        logits = self.model(self.values[index], self.peer.lookup(self.inputs[index]))
        loss = functional.binary_cross_entropy_with_logits(logits, self.labels[index])
        value = float(loss.detach())
        loss.backward()  # type: ignore[no-untyped-call]
        self.dense.step()
        self.peer.step()
        return value

    def rows(self, index: int, path: str) -> dict[str, Any]:
        numbers = torch.from_numpy(self.given["numbers"][index])
        pairs = zip(self.peer.weights(), numbers, strict=True)
        np.save(path, torch.stack([weights.detach()[own] for weights, own in pairs]).numpy())
        return {}


def use_cores(count: int) -> None:
    """Binds the calling thread to the last `count` cores, and sets as many threads."""
    os.sched_setaffinity(0, CORES[-count:])
    torch.set_num_threads(count)


CORES = sorted(os.sched_getaffinity(0))


def main() -> None:
    warnings.simplefilter("ignore")
    answers = sys.stdout
    sys.stdout = sys.stderr  # the output of a library is no answer
    program = Program()
    verbs: dict[str, Callable[..., dict[str, Any]]] = {
        "batches": program.batches,
        "build": program.build,
        "drop": program.drop,
        "run": program.run,
        "rows": program.rows,
    }
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = verbs[order.pop("do")](**order)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()

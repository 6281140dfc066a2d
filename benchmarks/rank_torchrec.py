"""Trains a DLRM as TorchRec does with several processes: whole tables at one rank each, over FBGEMM's kernels.

Its batches are row numbers that lie in memory, as those of benchmarks.rank_peers: nothing is read, hashed or admitted,
and a table has a row for each of our ids from the start. Its packages are those of benchmarks.peers.environment.
"""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.peers import environment
from benchmarks.rank_peers import layer_shapes, made_batches, mlp
from benchmarks.rank_world import IDS, TABLES, Task, config

_NAMES = [f"c{table}" for table in range(TABLES)]


class _Dlrm(nn.Module):
    """The network of trainer/models/dlrm.py over a collection of TorchRec."""

    def __init__(self, bags: Any, dim: int, shapes: dict[str, list[tuple[int, int]]]) -> None:
        super().__init__()
        self.bags = bags
        self.bottom, self.top = (mlp(shapes[name]) for name in ("bottom", "top"))
        self.pairs = torch.tril_indices(TABLES + 1, TABLES + 1, offset=-1)
        self.dim = dim

    def forward(self, dense: Tensor, ids: Any) -> Tensor:
        first = self.bottom(dense)
        rows = self.bags(ids).values().view(len(dense), TABLES, self.dim)
        stacked = torch.cat([first.unsqueeze(1), rows], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        result: Tensor = self.top(torch.cat([first, products], dim=1))
        return result


class TorchRec:
    """Steps by Adagrad of the tables, within the backward pass, and Adam of the rest, as ours."""

    def __init__(self, task: Task) -> None:
        packages = next((environment.FOLDER / "lib").glob("python*/site-packages"))
        sys.path.append(str(packages))
        warnings.simplefilter("ignore")
        logging.getLogger("torchrec").setLevel(logging.ERROR)
        import torchrec
        from torchrec.distributed import DistributedModelParallel
        from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
        from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
        from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

        if task.size == 1:
            dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{task.port}", rank=0, world_size=1)
        else:
            dist.init_process_group("gloo")
        made = config(task.batch, **task.options)
        dim = made.row_tables[0].rows.dim
        torch.manual_seed(1)
        bags = torchrec.EmbeddingBagCollection(
            tables=[
                torchrec.EmbeddingBagConfig(name=name, embedding_dim=dim, num_embeddings=IDS, feature_names=[name])
                for name in _NAMES
            ],
            device=torch.device("meta"),
        )
        apply_optimizer_in_backward(torch.optim.Adagrad, bags.parameters(), {"lr": 0.05, "eps": 1e-10})
        network = _Dlrm(bags, dim, layer_shapes(made))
        sharder: Any = EmbeddingBagCollectionSharder()
        own = task.batch // task.size
        planner = EmbeddingShardingPlanner(topology=Topology(task.size, "cpu"), batch_size=own)
        self._network = DistributedModelParallel(
            network,
            device=torch.device("cpu"),
            plan=planner.collective_plan(network, [sharder], dist.group.WORLD),
            sharders=[sharder],
        )
        rest = [*network.bottom.parameters(), *network.top.parameters()]
        self._dense = torch.optim.Adam(rest, lr=1e-3, fused=True)
        numbers, self._inputs, self._labels = made_batches(task, IDS)
        lengths = torch.ones(own * TABLES, dtype=torch.int32)
        self._ids = [
            torchrec.KeyedJaggedTensor(_NAMES, torch.from_numpy(each.reshape(-1)), lengths=lengths) for each in numbers
        ]
        self._taken = 0

    def step(self) -> float:
        """Returns the loss of a step."""
        index = self._taken % len(self._ids)
        self._taken += 1
        self._dense.zero_grad()
        logits = self._network(self._inputs[index], self._ids[index])
        loss = functional.binary_cross_entropy_with_logits(logits, self._labels[index])
        loss.backward()  # type: ignore[no-untyped-call]
        self._dense.step()
        return float(loss.detach())

    def figures(self) -> tuple[dict[str, int], float, dict[str, float]]:
        """Returns nothing: TorchRec does not say."""
        return {}, 0.0, {}

    def auc(self, path: Path) -> float:
        """Is not measured."""
        raise NotImplementedError

"""Writes a checkpoint of tables that TorchRec sharded over two ranks: python -m ... FOLDER, where TorchRec is.

`table_rows` gives the rows that are in it.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn

SIZES = {"by_rows": 90, "by_tables": 50, "by_columns": 70}


def table_rows(name: str) -> Tensor:
    """Returns the rows of a table, (N, 8)."""
    rows = SIZES[name]
    return torch.arange(rows * 8, dtype=torch.float32).reshape(rows, 8) + rows


def work(rank: int, port: int, folder: str) -> None:
    """Saves the shards of one rank."""
    from torch import distributed
    from torch.distributed.checkpoint.state_dict_saver import save
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed import sharding_plan as plans
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.types import ShardingPlan

    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in own.items()} | {"MASTER_ADDR": "127.0.0.1"})
    distributed.init_process_group("gloo")
    tables = [
        EmbeddingBagConfig(name=name, embedding_dim=8, num_embeddings=rows, feature_names=[f"of_{name}"])
        for name, rows in SIZES.items()
    ]
    model = torch.nn.Sequential(EmbeddingBagCollection(tables=tables))
    sharder = EmbeddingBagCollectionSharder()
    ways = {
        "by_rows": plans.row_wise(),
        "by_tables": plans.table_wise(rank=1),
        "by_columns": plans.column_wise(ranks=[0, 1]),
    }
    plan = plans.construct_module_sharding_plan(
        model[0], ways, sharder=sharder, local_size=2, world_size=2, device_type="cpu"
    )
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=ShardingPlan(plan={"0": plan}), sharders=[sharder]
    )
    state = sharded.state_dict()
    for name, tensor in state.items():
        rows = table_rows(name.split(".")[-2])
        for shard in tensor.local_shards():
            (row, column), (count, width) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.data.copy_(rows[row : row + count, column : column + width])
    save(state, checkpoint_id=folder)
    kinds = sorted({type(tensor).__name__ for tensor in state.values()})
    # One write: both ranks write into one pipe.
    os.write(sys.stdout.fileno(), f"{kinds}\n".encode())


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        found = free.getsockname()[1]
    spawn(work, args=(found, str(Path(sys.argv[1]))), nprocs=2)

"""Writes the checkpoint under tests/unit/importing/dcp: two ranks, with tables in shards of every kind.

    python tests/support/importing/write_dcp.py tests/unit/importing/dcp

It was written by torch 2.13.0. torch.distributed.checkpoint ends some processes by a signal after all is written, so
the tests read its files instead of writing them.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

RANKS = 2


def rows(count: int, dim: int) -> torch.Tensor:
    """Returns the rows that the tests expect."""
    return torch.arange(count)[:, None] % 97 + torch.arange(dim)[None, :] / 8


def write(rank: int, folder: str) -> None:
    """Writes what one rank has."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ.get("MASTER_PORT", "29511")}
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    bags = "sparse.ebc.embedding_bags"
    state = {
        f"{bags}.by_rows.weight": distribute_tensor(rows(21, 4), mesh, [Shard(0)]),
        f"{bags}.by_columns.weight": distribute_tensor(rows(10, 6), mesh, [Shard(1)]),
        f"{bags}.whole.weight": rows(5, 2).to(torch.bfloat16),
        f"{bags}.hashed.weight": distribute_tensor(rows(6, 4), mesh, [Shard(0)]),
        f"{bags}.hashed.weight_id": distribute_tensor(torch.arange(6)[:, None] * 2**40, mesh, [Shard(0)]),
        "dense.0.weight": torch.ones(3, 4),
        "step": 7,
    }
    dcp.save(state, checkpoint_id=folder)  # type: ignore[attr-defined]
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    shutil.rmtree(target, ignore_errors=True)
    multiprocessing.spawn(  # type: ignore[attr-defined]
        write, (str(target),), nprocs=RANKS
    )

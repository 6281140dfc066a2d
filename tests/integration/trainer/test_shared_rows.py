"""Two processes of torchrun train one model over the same files, each on its share of the rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.slow

LOOP = """
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from storage.data import DataRows
from trainer.data import RowStream, Share

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
rows = DataRows.open(sys.argv[1], None)
stream = RowStream(rows, 64, shuffle_rows=300, seed=1, share=Share(rank, world_size))
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
for epoch in range(2):
    for table in stream.epoch(epoch):
        x = torch.from_numpy(table["x"].to_numpy()).unsqueeze(1)
        optimizer.zero_grad()
        (model(x) - 2.0 * x).square().mean().backward()  # waits for the other process
        optimizer.step()
        seen += table["row"].to_pylist()
weight = model.module.weight.item()
Path(sys.argv[2], f"{rank}.json").write_text(json.dumps({"seen": seen, "weight": weight}))
dist.destroy_process_group()
"""


@pytest.mark.long
def test_a_loop_under_torchrun_ends_in_all_processes_and_sees_each_row_once_an_epoch(tmp_path: Path) -> None:
    # Blocks of very different sizes, which a deal of whole blocks would not make even.
    table = pa.table({"row": range(1001), "x": pa.array([row / 1001 for row in range(1001)], pa.float32())})
    (tmp_path / "data").mkdir()
    for number, (first, last) in enumerate(((0, 10), (10, 700), (700, 701), (701, 1001))):
        pq.write_table(table.slice(first, last - first), tmp_path / "data" / f"{number}.parquet")
    (tmp_path / "loop.py").write_text(LOOP)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(tmp_path / "loop.py"), str(tmp_path / "data"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert len(first["seen"]) == len(second["seen"]) == 2 * 500
    assert len({*first["seen"][:500], *second["seen"][:500]}) == 1000
    assert first["weight"] == second["weight"]

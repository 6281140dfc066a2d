"""Lists of lists train the model of the joined lists, and a published version scores both forms alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import yaml
from click.testing import CliRunner

from emberline.cli.frame import command
from trainer import load_trained, train

CONFIG = """
model_name: sessions
label: label
inputs:
  - {name: sessions, dtype: INT64, kind: list, flatten: true}
  - {name: price, dtype: FP32}
features:
  - {name: items, inputs: [sessions], transforms: [{op: truncate, length: 4, keep: last}], output: ids, table: items,
     pooling: mean}
  - {name: price, inputs: [price], output: dense}
tables: [{name: items, dim: 4}]
model: {type: deepfm, hidden: [8]}
training: {batch_size: 128, epochs: 1, shuffle_rows: 500}
"""


def test_nested_and_joined_lists_train_and_score_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    nested = [[rng.integers(0, 30, rng.integers(0, 3)).tolist() for _ in range(rng.integers(0, 4))] for _ in range(600)]
    flat = [[item for session in row for item in session] for row in nested]
    rest = {"price": pa.array(rng.random(600), pa.float32()), "label": [int(sum(row) % 2) for row in flat]}
    pq.write_table(pa.table({"sessions": nested, **rest}), tmp_path / "nested.parquet", row_group_size=200)
    orc.write_table(pa.table({"sessions": nested, **rest}), tmp_path / "nested.orc")
    pq.write_table(pa.table({"sessions": flat, **rest}), tmp_path / "flat.parquet", row_group_size=200)
    scores = []
    for name in ("nested.parquet", "flat.parquet"):
        run = tmp_path / f"run-{name}"
        config = yaml.safe_load(CONFIG)
        train(config, tmp_path / name, output=run, repository=tmp_path / f"models-{name}", progress=False)
        scores += [
            load_trained(run).predict(tmp_path / other) for other in ("nested.parquet", "flat.parquet", "nested.orc")
        ]
    assert all(np.array_equal(score, scores[0]) for score in scores)
    model = tmp_path / "models-nested.parquet" / "sessions"
    done = CliRunner().invoke(
        command,
        ["score", "--model", str(model), "--quiet", str(tmp_path / "nested.orc"), str(tmp_path / "out.parquet")],
        catch_exceptions=False,
    )
    assert done.exit_code == 0, done.output
    served = pq.read_table(tmp_path / "out.parquet")["score"].to_numpy()
    np.testing.assert_allclose(served, scores[0], rtol=0, atol=2e-6)

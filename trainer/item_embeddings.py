"""Writes the item embeddings of two towers to Parquet, for an index of nearest neighbours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from storage.errors import ConfigError
from storage.paths import local_path
from trainer.data import BatchMaker, Data, DataRows, RowStream, Wanted
from trainer.evaluate import EVALUATION_ROWS, evaluation_mode
from trainer.models.two_tower import ITEM, TwoTower
from trainer.trained import Trained, load_trained


def export_item_embeddings(trained: Trained | Path | str, data: Data, target: Path | str) -> int:
    """Writes `id` and `embedding` of each distinct item in the data, as its first row has it; returns the number.

    trained: a run of the model two_tower, or its folder. data: rows with all inputs, those of the user included, whose
    values do not matter. id: int64, what the feature `item_id` of the model makes of the row. embedding: a fixed-size
    list of float32. The file appears under its name when it is complete. Raises ConfigError for another model.
    """
    if not isinstance(trained, Trained):
        trained = load_trained(trained)
    target = local_path(target, "target")
    model, config = trained.model, trained.config
    if not isinstance(model, TwoTower):
        raise ConfigError(f"model.type is {config.model.type}, expected two_tower", field="model.type")
    rows = DataRows.open(data, Wanted(config.inputs), config.data)
    maker = BatchMaker(config.spec, config.targets)
    schema = pa.schema([("id", pa.int64()), ("embedding", pa.list_(pa.float32(), model.dim))])
    seen: set[int] = set()
    unfinished = target.with_name(target.name + ".part")
    try:
        with (
            pq.ParquetWriter(unfinished, schema) as writer,
            evaluation_mode(model),
            torch.inference_mode(),
        ):
            for table in RowStream(rows, EVALUATION_ROWS).epoch(0):
                inputs = maker.inputs(table)
                ids, first = np.unique(model.item_ids(inputs), return_index=True)
                new = np.sort(first[[item not in seen for item in ids.tolist()]])
                seen.update(ids.tolist())
                values = model(inputs)[ITEM].numpy()[new].reshape(-1)
                embeddings = pa.FixedSizeListArray.from_arrays(pa.array(values), model.dim)
                writer.write_table(pa.table([pa.array(model.item_ids(inputs)[new]), embeddings], schema=schema))
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return len(seen)

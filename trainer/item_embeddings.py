"""Writes the item embeddings of two towers to Parquet, for an index of nearest neighbours.

B rows, N ids, W columns of a dense group.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from storage.errors import ConfigError, InvalidInput
from storage.features import FeatureSpec
from storage.features.fallback import MEAN
from storage.paths import local_path
from trainer.config import TrainConfig
from trainer.data import BatchMaker, Data, DataRows, RowStream, Wanted, located
from trainer.evaluate import EVALUATION_ROWS, evaluation_mode
from trainer.model_config import TwoTowerConfig
from trainer.models.two_tower import ITEM, TwoTower
from trainer.trained import Trained, load_trained

_OWN_COLUMNS = ("id", "embedding")


def export_item_embeddings(
    trained: Trained | Path | str, data: Data, target: Path | str, *, keep: Sequence[str] = ()
) -> int:
    """Writes `id` and `embedding` of each distinct item in the data, as its first row has it; returns the number.

    trained: a run of the model two_tower, or its folder. data: rows with the inputs of the item's features; those of
    the user are not read. keep: columns of the data that are taken over too, such as a name that `id` is a hash of. id:
    int64, what the feature `item_id` of the model makes of the row; rows without one are left out. embedding: a
    fixed-size list of float32. The file appears under its name when it is complete. Raises ConfigError for another
    model, InvalidInput for rows that cannot be read.
    """
    if not isinstance(trained, Trained):
        trained = load_trained(trained)
    target = local_path(target, "target")
    model, config = trained.model, trained.config
    if not isinstance(model, TwoTower) or not isinstance(config.model, TwoTowerConfig):
        raise ConfigError(f"model.type is {config.model.type}, expected two_tower", field="model.type")
    if wrong := [name for name in keep if name in _OWN_COLUMNS]:
        raise InvalidInput(f"keep: {wrong[0]!r} is a column of the result; rename it in the data", field="keep")
    items = _ItemInputs(config, config.model)
    rows = DataRows.open(
        data, Wanted(items.spec.inputs, keep=tuple(keep), fields=dict.fromkeys(keep, "keep")), config.data
    )
    kept = [rows.schema.field(name) for name in keep]
    schema = pa.schema([("id", pa.int64()), ("embedding", pa.list_(pa.float32(), model.dim)), *kept])
    seen: set[int] = set()
    unfinished = target.with_name(f".{target.name}.part")
    stream = RowStream(rows, EVALUATION_ROWS)
    read = located(lambda table: (table, items.of(table)), stream, 0)
    try:
        with pq.ParquetWriter(unfinished, schema) as writer, evaluation_mode(model), torch.inference_mode():
            for table, inputs in map(read, enumerate(stream.epoch(0))):
                ids = model.item_ids(inputs)
                new = _first_rows(ids, model.has_item(inputs), seen)
                seen.update(ids[new].tolist())
                values = model(inputs)[ITEM].numpy()[new].reshape(-1)
                embeddings = pa.FixedSizeListArray.from_arrays(pa.array(values), model.dim)
                columns = [table.column(name).take(pa.array(new)) for name in keep]
                writer.write_table(pa.table([pa.array(ids[new]), embeddings, *columns], schema=schema))
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return len(seen)


def _first_rows(ids: Any, has_item: Any, seen: set[int]) -> Any:
    """Returns the rows that are the first of an item that was not seen before, ascending."""
    present = np.flatnonzero(has_item)
    distinct, first = np.unique(ids[present], return_index=True)
    new = [place for item, place in zip(distinct.tolist(), first.tolist(), strict=True) if item not in seen]
    return np.sort(present[new])


class _ItemInputs:
    """Makes the inputs of a two-tower model of rows that have those of the item alone; a user has no ids and zeros."""

    def __init__(self, config: TrainConfig, model: TwoTowerConfig) -> None:
        combined = {entry.name: entry.parts for entry in config.combined}
        names = {part for name in model.item for part in combined.get(name, (name,))}
        features = tuple(
            each for each in config.spec.features if (each.group if each.output == "dense" else each.name) in names
        )
        for each in features:
            for level in each.fallback:
                if level not in {MEAN, *names}:
                    raise ConfigError(
                        f"features.{each.name}.fallback: {level!r} is no feature of the item (model.item), of "
                        "which alone the embedding of an item is made",
                        field=f"features.{each.name}.fallback",
                    )
        read = {name for each in features for name in (*each.inputs, each.weights)}
        #: The inputs and features of the item.
        self.spec = FeatureSpec(
            inputs=tuple(entry for entry in config.spec.inputs if entry.name in read), features=features
        )
        self._maker = BatchMaker(self.spec, config.targets)
        of_item = {each.name for each in features}
        self._users = [each for each in config.spec.ids_features if each.name not in of_item]
        self._groups = {name: width for name, width in config.spec.dense_groups.items() if name not in names}

    def of(self, table: Any) -> dict[str, Tensor]:
        """Returns the inputs of the model for the rows of a pyarrow Table."""
        inputs = self._maker.inputs(table)
        for each in self._users:
            inputs[f"{each.name}.values"] = torch.empty(0, dtype=torch.int64)
            inputs[f"{each.name}.offsets"] = torch.zeros(table.num_rows + 1, dtype=torch.int64)
            if each.pooling == "weighted":
                inputs[f"{each.name}.weights"] = torch.empty(0)
        for name, width in self._groups.items():
            inputs[name] = torch.zeros((table.num_rows, width))
        return inputs

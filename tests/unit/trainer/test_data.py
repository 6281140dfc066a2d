"""Parquet in, batches out: which rows, in which order, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from storage.errors import ConfigError, InvalidInput
from storage.features import pack_columns
from trainer.config import TrainConfig
from trainer.data import BatchMaker, DataRows, Prefetcher, RowStream, Wanted, mapped

Make = Callable[..., TrainConfig]


def opened(path: Path, config: TrainConfig) -> DataRows:
    return DataRows.open(path, Wanted(config.inputs, config.targets.numbers))


def prices(tables: Iterator[pa.Table]) -> list[list[float]]:
    return [table.column("price").to_pylist() for table in tables]


def test_only_the_named_columns_are_read(clicks: Path, config_of: Make) -> None:
    config = config_of()
    table = next(RowStream(opened(clicks, config), 10).epoch(0))
    assert sorted(table.column_names) == ["clicked", "history", "item_code", "price", "tags", "user"]


def test_batches_hold_every_row_once_in_the_files_order(clicks: Path, config_of: Make) -> None:
    rows = opened(clicks, config_of())
    seen = prices(RowStream(rows, 256).epoch(0))
    whole = [p for name in ("a", "b") for p in pq.read_table(clicks / f"{name}.parquet").column("price").to_pylist()]
    assert list(chain.from_iterable(seen)) == whole
    assert {len(batch) for batch in seen[:-1]} == {256}


def test_a_shuffled_epoch_is_a_permutation_that_depends_on_seed_and_epoch(clicks: Path, config_of: Make) -> None:
    rows = opened(clicks, config_of())
    plain = list(chain.from_iterable(prices(RowStream(rows, 256).epoch(0))))
    orders = [
        list(chain.from_iterable(prices(RowStream(rows, 256, shuffle_rows=1500, seed=seed).epoch(epoch))))
        for seed, epoch in [(1, 0), (1, 0), (1, 1), (2, 0)]
    ]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0] != orders[3]
    for order in orders:
        assert order != plain
        assert sorted(order) == sorted(plain)


@pytest.mark.parametrize("shuffle_rows", [None, 1, 1500, 10**9])
@pytest.mark.parametrize("skip", [0, 1, 5, 23, 24])
def test_skipping_batches_gives_the_rest_of_the_same_order(
    clicks: Path, config_of: Make, shuffle_rows: int | None, skip: int
) -> None:
    stream = RowStream(opened(clicks, config_of()), 256, shuffle_rows=shuffle_rows, seed=4)
    assert prices(stream.epoch(2, skip_batches=skip)) == prices(stream.epoch(2))[skip:]


def test_a_range_takes_rows_across_row_groups_and_files(clicks: Path, config_of: Make) -> None:
    rows = opened(clicks, config_of())
    plain = list(chain.from_iterable(prices(RowStream(rows, 999).epoch(0))))
    part = rows.range(650, 3100)
    assert part.rows == 2450
    assert list(chain.from_iterable(prices(RowStream(part, 999).epoch(0)))) == plain[650:3100]
    assert part.range(100, 200).read().column("price").to_pylist() == plain[750:850]
    assert rows.range(5, 10**9).rows == rows.rows - 5


def test_a_missing_column_is_named_with_those_that_exist(clicks: Path, config_of: Make) -> None:
    config = config_of()
    wrong = config.inputs[1].model_copy(update={"column": "item_cod"})
    broken = config.model_copy(update={"inputs": (config.inputs[0], wrong, *config.inputs[2:])})
    with pytest.raises(ConfigError, match=r"'item_cod'.*did you mean 'item_code'.*user \(int64\)") as caught:
        opened(clicks, broken)
    assert caught.value.field == "inputs.item.column"


def test_a_column_of_the_wrong_type_is_named_with_its_type(clicks: Path, config_of: Make, tmp_path: Path) -> None:
    table = pq.read_table(clicks / "a.parquet")
    table = table.set_column(table.column_names.index("user"), "user", table.column("user").cast(pa.string()))
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="string") as caught:
        opened(tmp_path, config_of())
    assert caught.value.field == "inputs.user.dtype"


def test_a_missing_label_and_a_text_label_are_refused(clicks: Path, config_of: Make) -> None:
    config = config_of()
    with pytest.raises(ConfigError, match="no label column 'clickd'; did you mean 'clicked'"):
        DataRows.open(clicks, Wanted(config.inputs, {"clickd": "label"}))
    with pytest.raises(ConfigError, match="'item_code' is string, expected numbers or booleans"):
        DataRows.open(clicks, Wanted(config.inputs, {"item_code": "label"}))
    with pytest.raises(ConfigError, match=r"^tasks\.1\.label: .* no label column 'clickd'") as caught:
        DataRows.open(clicks, Wanted(config.inputs, {"clicked": "tasks.0.label", "clickd": "tasks.1.label"}))
    assert caught.value.field == "tasks.1.label"


def test_no_files_and_no_parquet_are_refused(tmp_path: Path, config_of: Make) -> None:
    with pytest.raises(ConfigError, match=r"no \*\.parquet"):
        opened(tmp_path, config_of())
    with pytest.raises(ConfigError, match="no such file"):
        opened(tmp_path / "x", config_of())
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ConfigError, match="not a readable Parquet file"):
        opened(tmp_path, config_of())


def test_a_batch_holds_what_the_engine_gives(clicks: Path, config_of: Make) -> None:
    config = config_of()
    maker = BatchMaker(config.spec, config.targets)
    table = opened(clicks, config).range(0, 50).read()
    batch = maker.batch(table)
    assert batch.labels.shape == (50, 1)
    np.testing.assert_allclose(
        batch.inputs["dense"].numpy().ravel(), np.log1p(table.column("price").to_numpy()), rtol=1e-6
    )
    assert batch.inputs["user.values"].tolist() == table.column("user").to_pylist()
    lengths = np.diff(batch.inputs["tags.offsets"].numpy())
    assert lengths.tolist() == [len(row) for row in table.column("tags").to_pylist()]


def test_the_prefetcher_keeps_order_and_hands_on_errors() -> None:
    def items() -> Iterator[int]:
        yield from range(20)
        raise InvalidInput("row 21 is bad")

    seen: list[int] = []
    with Prefetcher(items(), depth=2) as prefetched, pytest.raises(InvalidInput, match="row 21"):
        seen.extend(prefetched)
    # extend keeps what came before the error
    assert seen == list(range(20))


def test_leaving_the_prefetcher_early_stops_its_thread() -> None:
    made = []

    def items() -> Iterator[int]:
        for number in range(10**9):
            made.append(number)
            yield number

    with Prefetcher(items(), depth=3) as prefetched:
        assert next(iter(prefetched)) == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]
    assert len(made) <= 6


@pytest.mark.parametrize("threads", [1, 3])
def test_mapped_items_keep_their_order_and_hand_on_errors(threads: int) -> None:
    def work(number: int) -> int:
        if number == 12:
            raise InvalidInput("item 12 is bad")
        threading.Event().wait(0.005 * (number % 3))  # later items are ready first
        return number * number

    seen: list[int] = []
    with pytest.raises(InvalidInput, match="item 12"):
        seen.extend(mapped(work, range(20), threads))
    assert seen == [number * number for number in range(12)]
    assert list(mapped(work, range(5), threads)) == [0, 1, 4, 9, 16]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stage")]


def test_batches_of_one_call_are_those_of_a_call_each(clicks: Path, config_of: Make) -> None:
    config = config_of("din")
    table = opened(clicks, config).range(0, 1100).read()
    maker = BatchMaker(config.spec, config.targets)
    together = maker.batches(table, 256)
    alone = [maker.batch(table.slice(start, 256)) for start in range(0, 1100, 256)]
    assert [batch.rows for batch in together] == [256, 256, 256, 256, 76]
    for one, other in zip(together, alone, strict=True):
        assert one.inputs.keys() == other.inputs.keys()
        for name, value in one.inputs.items():
            assert torch.equal(value, other.inputs[name]), name
            assert value.dtype == other.inputs[name].dtype
        assert torch.equal(one.labels, other.labels)
        raw = pack_columns(dict(one.columns)), pack_columns(dict(other.columns))
        assert raw[0].keys() == raw[1].keys()
        assert all(np.array_equal(value, raw[1][name]) for name, value in raw[0].items())

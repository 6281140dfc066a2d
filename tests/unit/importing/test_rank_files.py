"""Raw files by rank, of dynamicemb and TFRA: all shards are there, and their sizes fit."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.errors import InvalidInput
from storage.importing import KINDS, FileTable, ImportOptions
from tests.support.importing.files import content

IDS = np.array([[5, -9, 2**45], [1, 2, 3]], np.int64)
ROWS = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def read(kind: str, path: Path, **options: Any) -> list[FileTable]:
    """Opens tables."""
    return KINDS[kind].open([path], ImportOptions(**options))


def dump(folder: Path, strategy: str = "EvictStrategy.KLfu", dtype: Any = np.float32) -> Path:
    """Writes a dump of dynamicemb of two ranks, with a table `item`."""
    place = folder / "model.ebc"
    place.mkdir()
    for rank in range(2):
        end = f"rank_{rank}.world_size_2"
        IDS[rank].tofile(place / f"item_emb_keys.{end}")
        ROWS[rank].astype(dtype).tofile(place / f"item_emb_values.{end}")
        (np.arange(3, dtype=np.int64) + 10 * rank).tofile(place / f"item_emb_scores.{end}")
        np.zeros(3, np.float32).tofile(place / f"item_emb_opt_values.{end}")
    (place / "item_opt_args.json").write_text(json.dumps({"opt_type": "adam", "evict_strategy": strategy}))
    return place


def test_ranks_of_dynamicemb_are_one_table_with_scores_of_use_as_counts(tmp_path: Path) -> None:
    dump(tmp_path)
    (table,) = read("dynamicemb", tmp_path)
    ids, rows, counts = content(table)
    np.testing.assert_array_equal(ids, IDS.reshape(-1))
    np.testing.assert_array_equal(rows, ROWS.reshape(6, 4))
    assert counts is not None
    assert counts.tolist() == [0, 1, 2, 10, 11, 12]
    assert table.left_out == ("opt_values: the optimizer's",)


def test_scores_of_time_are_left_out_and_the_dtype_can_be_said(tmp_path: Path) -> None:
    dump(tmp_path, "EvictStrategy.KLru", np.float16)
    (table,) = read("dynamicemb", tmp_path, dtype="float16")
    assert content(table)[2] is None
    assert table.left_out[0] == "scores: times or steps, and no use counts"
    np.testing.assert_array_equal(content(table)[1], ROWS.reshape(6, 4))


def test_a_missing_rank_or_a_cut_file_of_dynamicemb_is_refused(tmp_path: Path) -> None:
    place = dump(tmp_path)
    values = place / "item_emb_values.rank_1.world_size_2"
    data = values.read_bytes()
    values.write_bytes(data[:-4])
    with pytest.raises(InvalidInput, match=r"item_emb_values\.rank_1\.world_size_2.*bytes"):
        read("dynamicemb", tmp_path)
    values.write_bytes(data)
    (place / "item_emb_keys.rank_1.world_size_2").unlink()
    with pytest.raises(InvalidInput, match="no files of rank 1 of 2; a shard is missing"):
        read("dynamicemb", tmp_path)
    IDS[0].tofile(place / "item_emb_keys.rank_0.world_size_3")
    with pytest.raises(InvalidInput, match="dumps of 2 and of 3 ranks"):
        read("dynamicemb", tmp_path)


def test_tables_of_one_name_are_called_after_their_modules(tmp_path: Path) -> None:
    dump(tmp_path)
    (tmp_path / "more").mkdir()
    dump(tmp_path / "more").rename(tmp_path / "more" / "other.ec")
    assert sorted(table.name for table in read("dynamicemb", tmp_path)) == ["model_ebc_item", "other_ec_item"]


def export(folder: Path, name: str = "user-parameter", shards: int = 2) -> None:
    """Writes an export of TFRA, of one process with two shards."""
    for shard in range(shards):
        stem = f"{name}_mht_{shard + 1}of{shards}_rank0_size1"
        IDS[shard].tofile(folder / f"{stem}-keys")
        ROWS[shard].tofile(folder / f"{stem}-values")


def test_shards_of_tfra_are_one_table_and_those_of_optimizers_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "TFADE").mkdir()
    export(tmp_path / "TFADE")
    export(tmp_path / "TFADE", "user-parameter_DynamicEmbedding_keras_adam_lazy_build-shadow_m")
    (table,) = read("tfra", tmp_path)
    ids, rows, _ = content(table)
    assert table.name == "user"
    np.testing.assert_array_equal(ids, IDS.reshape(-1))
    np.testing.assert_array_equal(rows, ROWS.reshape(6, 4))
    assert re.search("adam.*: the optimizer's", table.left_out[0])


def test_a_missing_shard_of_tfra_is_refused(tmp_path: Path) -> None:
    export(tmp_path)
    (tmp_path / "user-parameter_mht_2of2_rank0_size1-keys").unlink()
    with pytest.raises(InvalidInput, match="the shard 2 of 2 of the process 0 of 1 is missing"):
        read("tfra", tmp_path)


@pytest.mark.parametrize("kind", ["dynamicemb", "tfra"])
def test_keys_that_were_cut_off_to_nothing_are_refused(tmp_path: Path, kind: str) -> None:
    if kind == "tfra":
        export(tmp_path)
        keys = tmp_path / "user-parameter_mht_1of2_rank0_size1-keys"
    else:
        keys = dump(tmp_path) / "item_emb_keys.rank_0.world_size_2"
    keys.write_bytes(b"")
    with pytest.raises(InvalidInput, match=r"values.* has 48 bytes, which 0 rows of float32 do not fill evenly"):
        read(kind, tmp_path)


def test_scores_that_are_no_use_counts_are_named_and_cut_ones_refused(tmp_path: Path) -> None:
    place = dump(tmp_path)
    for rank in range(2):
        np.arange(6, dtype=np.int64).tofile(place / f"item_emb_scores.rank_{rank}.world_size_2")
    (table,) = read("dynamicemb", tmp_path)
    assert content(table)[2] is None
    assert table.left_out[0] == "scores: 2 of each row, and not one use count"
    np.arange(2, dtype=np.int64).tofile(place / "item_emb_scores.rank_1.world_size_2")
    with pytest.raises(InvalidInput, match=r"item_emb_scores\.rank_1\.world_size_2 has 16 bytes"):
        read("dynamicemb", tmp_path)


def test_two_tables_that_would_have_one_name_are_refused(tmp_path: Path) -> None:
    export(tmp_path, "a.b-parameter")
    export(tmp_path, "a_b-parameter")
    with pytest.raises(InvalidInput, match="two tables would be called 'a_b'"):
        ImportOptions().chosen(read("tfra", tmp_path))

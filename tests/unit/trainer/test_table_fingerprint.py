"""The fingerprint of a table's own rows is that of what it exports, wherever they lie and however they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from storage.checkpoint.fingerprint import rows_fingerprint, table_fingerprint
from storage.rows import RowCodec
from trainer import EmbeddingTable, SparseAdagrad
from trainer.embedding import RowMemory
from trainer.publishing.embedding_layers import TableNames

ROWS, DIM = 3000, 5


@pytest.fixture(params=["all in DRAM", "beyond DRAM"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddingTable]:
    """Makes rows of three stamps, some of them erased."""
    ids = np.random.default_rng(1).permutation(ROWS).astype(np.int64) * 7919 - 10_000
    with RowMemory(160_000, tmp_path) as memory:
        made = EmbeddingTable("t", DIM, memory=memory if request.param == "beyond DRAM" else None)
        for part in np.array_split(ids, 15):
            made.lookup(part, train=True)
        for stepped, erased in ((ids[:300], ids[5:20]), (ids[100:200], ids[150:160])):
            made.advance()
            made.add_gradients(stepped, np.full((len(stepped), DIM), 0.5, np.float32))
            SparseAdagrad([made], lr=0.1).step()
            made.erase(erased)
        assert (made.rows_on_ssd() > 0) == (request.param == "beyond DRAM")
        yield made


@pytest.mark.parametrize("row_type", ["fp32", "fp16", "bf16", "int8"])
def test_it_is_the_fingerprint_of_what_is_exported(
    table: EmbeddingTable, row_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.rows._CHUNK_VALUES", 70 * DIM)  # so that there are many pieces
    codec = RowCodec(row_type, DIM)
    ids, rows, *_ = table.export_rows()
    assert len(ids) == ROWS - 25
    whole = table.rows_fingerprint(row_type)
    assert whole == rows_fingerprint(ids, codec.encode(rows))
    seen = {whole}
    for since in (0, 1, 2, 3):
        changed, removed = table.changed_since(since), table.removed_since(since)
        expected = table_fingerprint(changed, codec.encode(table.export_ids(changed)[0]), removed)
        assert table.changes_fingerprint(row_type, since) == expected
        seen.add(expected)
    assert len(seen) == 5
    assert table.changes_fingerprint(row_type, 3) == 0


def test_looking_does_not_count_as_a_use(table: EmbeddingTable) -> None:
    before = [part.tolist() for part in table.export_rows()]
    table.rows_fingerprint()
    assert [part.tolist() for part in table.export_rows()] == before
    assert len(table.changed_since(3)) == 0


@pytest.mark.parametrize("padding", [None, 3])
def test_a_plain_layers_rows_are_those_that_it_publishes(padding: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.rows._CHUNK_VALUES", 4 * DIM)
    layer = nn.EmbeddingBag(11, DIM, mode="sum", padding_idx=padding)
    with torch.no_grad():
        layer.weight[3] = 1.0
    names = TableNames()
    names.name("bag", layer)
    (source,) = names.sources()
    for row_type in ("fp32", "int8"):
        data = source.data(row_type)
        assert len(data.ids) == (11 if padding is None else 10)
        assert source.fingerprint(row_type) == rows_fingerprint(data.ids, data.encoded)

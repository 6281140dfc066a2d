"""Tables of files become versions that a server takes: alone, and with a module around them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

from emberline.cli.import_tables import command_of
from serving.scoring import Scorer, find_as_of
from storage import open_version
from storage.errors import ConfigError, InvalidInput
from storage.features import column_from_jagged, column_from_numpy
from storage.importing import KINDS, FileTable, ImportOptions
from trainer.importing import import_tables, look_at_tables, rows_elsewhere

IDS = np.array([2**61, 5, -8, 40, 41], np.int64)
ROWS = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)


@pytest.fixture
def tables(tmp_path: Path) -> list[FileTable]:
    """Two tables; ids without a row of `item` read as 0.5."""
    np.savez(tmp_path / "user.npz", ids=IDS, rows=ROWS, n=[1, 2, 3, 4, 5])
    np.savez(tmp_path / "item.npz", ids=IDS[:3], rows=-ROWS[:3], n=[1, 2, 3])
    options = ImportOptions(count="n", defaults={"item": 0.5})
    return KINDS["numpy"].open([tmp_path / "user.npz", tmp_path / "item.npz"], options)


def test_tables_alone_answer_with_their_rows(tmp_path: Path, tables: list[FileTable]) -> None:
    report = import_tables(tables, tmp_path / "models", name="shop", pooling={"item": "mean"})

    version = open_version(report.folder)
    (shard,) = version.shards("user")
    order = np.argsort(IDS)
    np.testing.assert_array_equal(shard.ids, IDS[order])
    np.testing.assert_array_equal(shard.rows, ROWS[order])
    np.testing.assert_array_equal(shard.freq, np.arange(1, 6)[order])
    assert report.tables[0].hottest[0] == (41, 5)
    with Scorer(find_as_of(report.folder.parent), tmp_path / "store") as scorer:
        users = column_from_numpy("INT64", np.array([40, 6]))
        items = column_from_jagged("INT64", np.array([5, 77, -8]), np.array([0, 2, 3]))
        found = dict(
            zip((out.name for out in scorer.outputs), scorer.score({"user": users, "item": items}, 2), strict=True)
        )
    np.testing.assert_array_equal(found["user_rows"], [ROWS[3], np.zeros(4)])
    np.testing.assert_allclose(found["item_rows"], [(-ROWS[1] + 0.5) / 2, -ROWS[2]], atol=1e-7)
    assert sorted(path.name for path in report.folder.parent.iterdir()) == ["1", "config.pbtxt"]


class Ranker(nn.Module):
    """A module as its authors wrote it, with tables of any number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(1 << 40, 4)
        self.goods = nn.EmbeddingBag(1 << 40, 4, mode="sum", padding_idx=0)
        torch.manual_seed(0)
        self.head = nn.Linear(9, 1)

    def forward(self, user: torch.Tensor, goods: torch.Tensor, price: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.user(user), self.goods(goods), price], dim=1)).sigmoid()


def made() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Returns the module without rows, and a sample."""
    with rows_elsewhere():
        module = Ranker()
    sample = {
        "user": torch.tensor([5, 40, 6]),
        "goods": torch.tensor([[5, 9], [2**61, 5], [0, 0]]),
        "price": torch.rand(3, 1),
    }
    return module, sample


def test_a_module_scores_with_the_rows_of_the_files(tmp_path: Path, tables: list[FileTable]) -> None:
    module, sample = made()
    tables = [tables[0], KINDS["numpy"].open([tmp_path / "item.npz"], ImportOptions())[0]]
    report = import_tables(
        tables, tmp_path / "models", name="shop", module=module, sample_batch=sample, mapping={"item": "goods"}
    )

    user = nn.Embedding.from_pretrained(torch.from_numpy(np.stack([ROWS[1], ROWS[3], np.zeros(4, np.float32)])))
    goods = torch.from_numpy(np.stack([-ROWS[1], -ROWS[0] - ROWS[1], np.zeros(4, np.float32)]))
    assert isinstance(module, Ranker)
    wanted = module.head(torch.cat([user(torch.arange(3)), goods, sample["price"]], dim=1)).sigmoid()
    with Scorer(find_as_of(report.folder.parent), tmp_path / "store") as scorer:
        columns = {
            name: column_from_numpy("FP32" if value.is_floating_point() else "INT64", value.numpy())
            for name, value in sample.items()
        }
        (found,) = scorer.score(columns, 3)
    np.testing.assert_allclose(found, wanted.detach().numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ({}, "the module's table 'goods' is in no file; the files have item, user"),
        ({"itme": "goods"}, "did you mean 'item'"),
        ({"item": "good"}, "did you mean 'goods'"),
        ({"item": "user"}, "are both to be 'user'"),
        ({"item": "goods"}, "padding_idx reads the padding as nothing, and the default vector of 'item'"),
    ],
)
def test_names_that_do_not_fit_are_refused(
    tmp_path: Path, tables: list[FileTable], mapping: dict[str, str], said: str
) -> None:
    module, sample = made()
    with pytest.raises(ConfigError, match=said):
        import_tables(tables, tmp_path / "models", name="shop", module=module, sample_batch=sample, mapping=mapping)
    assert not list((tmp_path / "models").glob("*/*"))
    with pytest.raises(ConfigError, match=said):
        look_at_tables(tables, module=module, sample_batch=sample, mapping=mapping)


MODULE = """
import torch
from torch import nn

class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.head = nn.Embedding(1 << 40, DIM), nn.Linear(DIM, 1)

    def forward(self, user):
        return self.head(self.user(user))

def made():
    return Ranker(), {"user": torch.tensor([5, 40, 6])}
"""


def test_a_check_looks_at_the_module_before_it_reads_rows(tmp_path: Path, tables: list[FileTable]) -> None:
    for dim in (4, 3):
        (tmp_path / f"dim{dim}.py").write_text(MODULE.replace("DIM", str(dim)))
    user, item = (str(tmp_path / f"{table.name}.npz") for table in tables)

    def check(*arguments: str) -> Result:
        return CliRunner().invoke(command_of("numpy"), [*arguments, "--count", "n", "--check", "--quiet"])

    done = check(user, item, "--module", f"{tmp_path / 'dim4.py'}:made")
    assert done.exit_code == 0, repr(done.exception)
    assert "table user: 5 rows of 4 values" in done.output
    assert "table item: left out, the module does not use it" in done.output
    assert "table item: 3 rows" not in done.output
    done = check(user, "--module", f"{tmp_path / 'dim3.py'}:made")
    assert isinstance(done.exception, ConfigError), repr(done.exception)
    assert "the module's table 'user' has rows of 3 values, 'user' of the files has 4" in str(done.exception)
    done = check(item, "--module", f"{tmp_path / 'dim4.py'}:made")
    assert "the module's table 'user' is in no file; the files have item" in str(done.exception)
    done = check(user, "--module", f"{tmp_path / 'none.py'}:made")
    assert isinstance(done.exception, InvalidInput), repr(done.exception)
    done = check(user, "--pooling", "usr=mean")
    assert "there is no table 'usr'; did you mean 'user'" in str(done.exception)


def test_nothing_is_published_when_a_row_cannot_be(tmp_path: Path) -> None:
    np.savez(tmp_path / "user.npz", ids=IDS, rows=np.where(ROWS[4, 3] == ROWS, np.inf, ROWS).astype(np.float32))
    tables = KINDS["numpy"].open([tmp_path / "user.npz"], ImportOptions())
    with pytest.raises(InvalidInput, match=r"the row of id 41 in .*user\.npz holds NaN or infinity"):
        import_tables(tables, tmp_path / "models", name="shop")
    assert not list((tmp_path / "models").glob("*/*"))


def test_rows_beyond_the_memory_give_the_same_version(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    ids = random.permutation(20_000).astype(np.int64)
    np.savez(tmp_path / "user.npz", ids=ids, rows=random.normal(size=(20_000, 16)).astype(np.float32))
    tables = KINDS["numpy"].open([tmp_path / "user.npz"], ImportOptions())
    one = import_tables(tables, tmp_path / "models", name="shop", row_types="int8", memory_bytes=1 << 18)
    two = import_tables(tables, tmp_path / "models", name="shop", row_types="int8")
    first, second = open_version(one.folder).manifest, open_version(two.folder).manifest
    assert first.tables == second.tables
    assert [file.sha256 for file in first.files] == [file.sha256 for file in second.files]
    assert one.tables[0].largest_error == two.tables[0].largest_error > 0


def test_the_row_of_a_padding_id_is_left_out_where_it_is_the_only_one(tmp_path: Path, tables: list[FileTable]) -> None:
    np.savez(tmp_path / "goods.npz", ids=np.zeros(1, np.int64), rows=ROWS[:1])
    (padding,) = KINDS["numpy"].open([tmp_path / "goods.npz"], ImportOptions())
    module, sample = made()
    report = import_tables([tables[0], padding], tmp_path / "models", name="r", module=module, sample_batch=sample)
    assert {spec.name: spec.rows for spec in open_version(report.folder).tables} == {"user": 5, "goods": 0}

"""Models of HPS: folders of key and emb_vector, described by a ps.json that may name paths of another machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.errors import EmberlineError, InvalidInput, NotFound
from storage.importing import KINDS, FileTable, ImportOptions
from tests.support.importing.files import content

IDS = np.array([7, -3, 2**50], np.int64)


def rows(dim: int) -> np.ndarray:
    """Returns a row for each of IDS."""
    return np.arange(3 * dim, dtype=np.float32).reshape(3, dim)


def table(folder: Path, dim: int) -> Path:
    """Writes a table as HugeCTR does."""
    folder.mkdir(parents=True)
    IDS.tofile(folder / "key")
    rows(dim).tofile(folder / "emb_vector")
    return folder


def described(folder: Path, **fields: Any) -> Path:
    """Writes two tables and a ps.json that names them by paths of another machine."""
    for number, dim in enumerate((1, 15)):
        table(folder / "wdl" / "1" / f"wdl{number}_sparse_2000.model", dim)
    model = {
        "model": "wdl",
        "sparse_files": [f"/wdl_infer/model/wdl/1/wdl{number}_sparse_2000.model" for number in range(2)],
        "dense_file": "/wdl_infer/model/wdl/1/wdl_dense_2000.model",
        "default_value_for_each_table": [0.0, 0.5],
        "embedding_vecsize_per_table": [1, 15],
        "embedding_table_names": ["wide", "deep"],
        **fields,
    }
    place = folder / "ps.json"
    place.write_text(json.dumps({"supportlonglong": True, "models": [model], "volatile_db": {"type": "hash_map"}}))
    return place


def read(*paths: Path, **options: Any) -> list[FileTable]:
    """Opens tables."""
    return KINDS["hps"].open(paths, ImportOptions(**options))


def test_a_ps_json_gives_names_dims_and_default_values(tmp_path: Path) -> None:
    wide, deep = read(described(tmp_path))
    assert [(each.name, each.dim, str(each.absent)) for each in (wide, deep)] == [
        ("wide", 1, "zeros"),
        ("deep", 15, "constant(0.5)"),
    ]
    ids, found, _ = content(deep)
    np.testing.assert_array_equal(ids, IDS)
    np.testing.assert_array_equal(found, rows(15))


def test_folders_are_read_without_a_ps_json(tmp_path: Path) -> None:
    described(tmp_path)
    (tmp_path / "wdl" / "1" / "wdl1_sparse_2000.model" / "slot_id").write_bytes(bytes(24))
    found = read(tmp_path / "wdl" / "1")
    assert [(each.name, each.dim) for each in found] == [("wdl0_sparse_2000", 1), ("wdl1_sparse_2000", 15)]
    assert found[1].left_out[0].startswith("slot_id")
    (named,) = read(Path(f"deep={tmp_path}/wdl/1/wdl1_sparse_2000.model"), dims={"deep": 15})
    assert (named.name, named.rows) == ("deep", 3)


def test_of_several_models_one_is_named(tmp_path: Path) -> None:
    place = described(tmp_path)
    text = json.loads(place.read_text())
    text["models"].append({**text["models"][0], "model": "dlrm", "embedding_table_names": ["user", "item"]})
    place.write_text(json.dumps(text))
    with pytest.raises(InvalidInput, match="describes the models wdl, dlrm; --model names one"):
        read(place)
    assert [each.name for each in read(place, model="dlrm")] == ["user", "item"]
    with pytest.raises(InvalidInput, match="did you mean 'dlrm'"):
        read(place, model="dlrn")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"embedding_vecsize_per_table": [1, 16]}, "expected 192: 3 keys in .* times 16 float32"),
        ({"embedding_vecsize_per_table": [1]}, "2 sparse_files and 1 embedding_vecsize_per_table"),
        ({"default_value_for_each_table": ["x", 0]}, "default_value_for_each_table is .* expected a list of float"),
        ({"sparse_files": ["/a/b.model", "/c.model"]}, "there is no folder /a/b.model"),
        ({"sparse_files": None}, "sparse_files is None"),
        ({"sparse_files": [None, "a"]}, "sparse_files is .* expected a list of str$"),
        ({"embedding_table_names": [None, "a"]}, "embedding_table_names is .* expected a list of str$"),
        ({"default_value_for_each_table": [None, 0]}, "default_value_for_each_table is .* expected a list of float$"),
        ({"embedding_vecsize_per_table": ["x", 1]}, "embedding_vecsize_per_table is .* list of int or null"),
        ({"embedding_table_names": ["a", "a"]}, "two tables are called 'a'"),
    ],
)
def test_a_ps_json_that_does_not_fit_is_refused(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(EmberlineError, match=said):
        read(described(tmp_path, **fields))


def test_a_dim_may_be_null_and_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    place = described(tmp_path, embedding_vecsize_per_table=[None, 15])
    assert [each.dim for each in read(place)] == [1, 15]
    text = json.loads(place.read_text())
    text["models"].append({**text["models"][0], "embedding_table_names": ["user", "item"]})
    place.write_text(json.dumps(text))
    for options in ({}, {"model": "wdl"}):
        with pytest.raises(InvalidInput, match="two of `models` have the `model` wdl, expected one"):
            read(place, **options)


def test_a_folder_with_an_equals_sign_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described(tmp_path / "dt=2026-11-01")
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path / "dt=2026-11-01" / "wdl" / "1", Path("dt=2026-11-01/wdl/1")):
        assert [each.name for each in read(folder)] == ["wdl0_sparse_2000", "wdl1_sparse_2000"]
    with pytest.raises(NotFound, match="dt=2026-11-02/wdl: there is no such file or folder"):
        read(tmp_path / "dt=2026-11-02" / "wdl")
    deep = f"deep={tmp_path}/dt=2026-11-01/wdl/1/wdl1_sparse_2000.model"
    assert [each.name for each in read(Path(deep))] == ["deep"]


@pytest.mark.parametrize("name", ["key", "emb_vector"])
def test_a_file_that_is_cut_off_is_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = table(tmp_path / "t.model", 15)
    file = folder / name
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(InvalidInput, match=f"t.model/{name}.* bytes"):
        read(folder)

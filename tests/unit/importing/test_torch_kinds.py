"""State dicts and distributed checkpoints of torch: their tables, put together, and nothing in them runs."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.checkpoint.tensors import write_tensors
from storage.errors import EmberlineError, InvalidInput, NotFound, UnsafeArtifact, Unsupported
from storage.importing import KINDS, FileTable, ImportOptions
from storage.importing.dcp_metadata import read_metadata
from storage.importing.files import RawArray
from storage.importing.kinds.dcp import Assembled
from tests.support.examples import examples
from tests.support.importing.files import content

SAVED = Path(__file__).parent / "dcp"
ROWS = torch.arange(12.0).reshape(6, 2)


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self._target}",)


def read(kind: str, *paths: Path, **options: Any) -> list[FileTable]:
    """Opens tables."""
    return KINDS[kind].open(paths, ImportOptions(**options))


def expected(count: int, dim: int) -> np.ndarray:
    """Returns the rows that write_dcp.py wrote."""
    return (np.arange(count)[:, None] % 97 + np.arange(dim)[None, :] / 8).astype(np.float32)


def test_tables_of_torchrec_are_found_under_their_names(tmp_path: Path) -> None:
    state = {
        "model.ebc.embedding_bags.user.weight": ROWS,
        "model.ec.embeddings.item.weight": ROWS.bfloat16(),
        "model.over.0.weight": torch.ones(3, 3),
        "step": torch.tensor(3),
    }
    torch.save(state, tmp_path / "model.pt")
    user, item = sorted(read("state-dict", tmp_path / "model.pt"), key=lambda table: table.name, reverse=True)
    assert [user.name, item.name] == ["user", "item"]
    for table in (user, item):
        ids, rows, _ = content(table)
        np.testing.assert_array_equal(ids, np.arange(6))
        np.testing.assert_array_equal(rows, ROWS)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_other_tables_are_those_called_like_embeddings_or_named(tmp_path: Path, suffix: str) -> None:
    # A view of a larger tensor lies behind the start of its storage.
    state = {"user_emb.weight": ROWS[2:], "head.weight": torch.ones(3, 3), "head.bias": torch.ones(3)}
    path = tmp_path / f"model{suffix}"
    if suffix == ".pt":
        torch.save({"state": state, "config": {"lr": 0.1}}, path)
    else:
        write_tensors(path, {f"state.{name}": value.numpy() for name, value in state.items()})
    (table,) = read("state-dict", path)
    assert table.name == "state_user_emb"
    np.testing.assert_array_equal(content(table)[1], ROWS[2:])
    (head,) = read("state-dict", path, only=("state_head",))
    assert (head.name, head.rows) == ("state_head", 3)
    with pytest.raises(InvalidInput, match="did you mean 'state_head'"):
        read("state-dict", path, only=("state_haed",))


def test_a_state_dict_with_a_payload_is_refused_and_not_run(tmp_path: Path) -> None:
    torch.save({"user_emb.weight": ROWS, "x": Payload(tmp_path / "ran")}, tmp_path / "model.pt")
    with pytest.raises(UnsafeArtifact, match=r"model\.pt: it would import posix\.system"):
        read("state-dict", tmp_path / "model.pt")
    assert not (tmp_path / "ran").exists()


def test_what_is_no_state_dict_is_refused_by_name(tmp_path: Path) -> None:
    torch.save({"user_emb.weight": ROWS}, tmp_path / "model.pt")
    data = (tmp_path / "model.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(data[:-200])
    (tmp_path / "text.pt").write_text("nothing")
    torch.save({"head.weight": ROWS}, tmp_path / "none.pt")
    for name, said in (("cut", "cut off"), ("text", "no file of torch.save"), ("none", "no tensor is called like")):
        with pytest.raises(InvalidInput, match=said):
            read("state-dict", tmp_path / f"{name}.pt")


def test_shards_of_two_ranks_are_put_together() -> None:
    tables = {table.name: table for table in read("dcp", SAVED)}
    assert {name: (table.rows, table.dim) for name, table in tables.items()} == {
        "by_rows": (21, 4),
        "by_columns": (10, 6),
        "whole": (5, 2),
        "hashed": (6, 4),
    }
    for name, table in tables.items():
        ids, rows, _ = content(table)
        np.testing.assert_array_equal(rows, expected(table.rows, table.dim), err_msg=name)
        np.testing.assert_array_equal(ids, np.arange(table.rows) * (2**40 if name == "hashed" else 1))


def test_a_checkpoint_of_one_process_is_read(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    with pytest.warns(UserWarning, match="assuming the intent is to save in a single process"):
        dcp.save(  # type: ignore[attr-defined]
            {"user_emb": {"weight": ROWS}}, checkpoint_id=tmp_path / "one", no_dist=True
        )
    (table,) = read("dcp", tmp_path / "one")
    np.testing.assert_array_equal(content(table)[1], ROWS)


def test_metadata_with_a_payload_is_refused_and_not_run(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"a": Payload(tmp_path / "ran")}))
    with pytest.raises(UnsafeArtifact, match=r"\.metadata: it would import posix\.system, .*nothing was run"):
        read("dcp", tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_missing_or_damaged_file_of_shards_is_refused_by_name(tmp_path: Path) -> None:
    shutil.copytree(SAVED, tmp_path / "saved")
    file = tmp_path / "saved" / "__1_0.distcp"
    whole = file.read_bytes()
    file.write_bytes(whole[:-3000])
    with pytest.raises(InvalidInput, match=r"__1_0\.distcp: .*cut off"):
        [content(table) for table in read("dcp", tmp_path / "saved")]
    file.unlink()
    with pytest.raises(NotFound, match=r"__1_0\.distcp: there is no such file"):
        [content(table) for table in read("dcp", tmp_path / "saved")]


def damaged(whole: bytes, data: Any) -> bytes:
    """Returns bytes of which some are others, or missing."""
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[place] = data.draw(st.integers(0, 255))
        else:
            del content[place : place + data.draw(st.integers(1, 20))]
    return bytes(content)


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_damaged_metadata_is_refused_and_never_anything_else(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    (folder / ".metadata").write_bytes(damaged((SAVED / ".metadata").read_bytes(), data))
    try:
        read_metadata(folder)
    except EmberlineError as error:
        assert ".metadata" in str(error)  # noqa: PT017  it may also be readable


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_a_damaged_state_dict_is_refused_and_never_anything_else(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "model.pt"
    torch.save({"user_emb.weight": ROWS}, path)
    path.write_bytes(damaged(path.read_bytes(), data))
    try:
        [content(table) for table in read("state-dict", path)]
    except EmberlineError as error:
        assert "model.pt" in str(error)  # noqa: PT017  it may also be readable


def test_tensors_whose_names_become_one_are_refused_and_not_left_out(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"a.b_emb.weight": ROWS, "a_b.emb.weight": ROWS + 1}, path)
    with pytest.raises(InvalidInput, match=r"'a\.b_emb\.weight' and 'a_b\.emb\.weight' would both be called 'a_b_emb'"):
        read("state-dict", path)
    (table,) = read("state-dict", path, only=("a_b.emb.weight",))
    np.testing.assert_array_equal(content(table)[1], (ROWS + 1).numpy())


def test_a_table_can_be_named_as_it_is_listed_and_as_its_tensor(tmp_path: Path) -> None:
    path, both = tmp_path / "model.pt", ["a_embeddings_user", "b_embeddings_user"]
    torch.save({"a.embeddings.user.weight": ROWS, "b.embeddings.user.weight": ROWS + 1, "user": ROWS + 2}, path)
    assert [table.name for table in read("state-dict", path)] == both
    for wanted, name, values in (
        ("b_embeddings_user", both[1], ROWS + 1),
        ("a.embeddings.user.weight", both[0], ROWS),
        ("user", "user", ROWS + 2),
    ):
        options = ImportOptions(only=(wanted,))
        (table,) = options.chosen(KINDS["state-dict"].open([path], options))
        assert table.name == name
        np.testing.assert_array_equal(content(table)[1], values)
    with pytest.raises(InvalidInput, match="--only: there is no table 'b'"):
        ImportOptions(only=("b",)).chosen(read("state-dict", path))


def test_a_table_goes_before_another_tensor_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"m.embeddings.user.weight": ROWS, "user.weight": ROWS + 1}, path)
    (table,) = read("state-dict", path, only=("user",))
    np.testing.assert_array_equal(content(table)[1], ROWS)


def test_tensors_that_are_no_tables_do_not_keep_others_from_being_read(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"user_emb.weight": ROWS, "none": torch.empty(5, 0), "turned.weight": ROWS.t()}, path)
    (table,) = read("state-dict", path)
    np.testing.assert_array_equal(content(table)[1], ROWS)
    with pytest.raises(InvalidInput, match=r"'turned\.weight' is float32 that is not contiguous"):
        content(read("state-dict", path, only=("turned",))[0])
    torch.save({"a": {"emb.weight": ROWS}, "a.emb.weight": ROWS + 1}, path)
    with pytest.raises(InvalidInput, match=r"it holds two tensors 'a\.emb\.weight'"):
        read("state-dict", path)


def test_shards_outside_of_their_tensor_or_of_several_dtypes_are_refused(tmp_path: Path) -> None:
    ROWS.numpy().tofile(tmp_path / "rows")

    def part(row: int, dtype: str = "float32") -> tuple[int, int, RawArray]:
        return row, 0, RawArray(tmp_path / "rows", dtype, ROWS.shape[1], 3)

    for parts, said in (
        ([part(0), part(9)], "the shard at row 9, column 0 lies outside of it"),
        ([part(0), part(3, "float16")], "its shards are float16 and float32, expected one dtype"),
        ([part(0), part(2)], "two shards hold the same rows, from 2 on"),
        ([part(0)], "a shard is missing"),
    ):
        with pytest.raises(InvalidInput, match=rf"'t' \[6, {ROWS.shape[1]}\]: {said}"):
            Assembled(tmp_path, "t", (6, ROWS.shape[1]), parts)


def test_files_of_shards_may_be_links_and_lie_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "saved").mkdir()
    for number, file in enumerate(sorted(SAVED.iterdir())):
        shutil.copy(file, tmp_path / "blobs" / str(number))
        (tmp_path / "saved" / file.name).symlink_to(tmp_path / "blobs" / str(number))
    assert len(read("dcp", tmp_path / "saved")) == 4
    metadata = tmp_path / "saved" / ".metadata"
    data = metadata.read_bytes().replace(b"__1_0.distcp", b"../_0.distcp")
    metadata.unlink()
    metadata.write_bytes(data)
    tables = read("dcp", tmp_path / "saved")
    with pytest.raises(InvalidInput, match=r"the metadata names \.\./_0\.distcp, which is no file of the checkpoint"):
        list(map(content, tables))


def test_a_table_whose_ids_are_remapped_is_not_imported_by_row_number(tmp_path: Path) -> None:
    path, managed = tmp_path / "model.pt", "m._managed_collision_collection._managed_collision_modules.user"
    state = {f"m._embedding_module.embedding_bags.{name}.weight": ROWS for name in ("user", "user_2")}
    torch.save({**state, f"{managed}._mch_sorted_raw_ids": torch.arange(6)}, path)
    with pytest.raises(Unsupported, match=rf"the ids of the table 'user' are remapped by {managed}, so the number"):
        read("state-dict", path)
    assert [table.name for table in read("state-dict", path, only=("user_2",))] == ["user_2"]

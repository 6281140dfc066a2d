"""Forgetting finds ids in logs of served requests: as raw values, as digests, and by the ids made of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import ConfigError, InvalidInput
from storage.features import FeatureSpec
from storage.forgetting import Needles, Wanted, find_places, forget_in_logs, served_logs, wanted_values
from storage.served_log import AT, ID, LABEL, ROW, keyed_hash, read_hash_key

KEY = b"0123456789abcdef0123"
SPEC = FeatureSpec.model_validate(
    {
        "inputs": [
            {"name": "user", "dtype": "BYTES", "column": "account"},
            {"name": "items", "dtype": "INT64", "kind": "list"},
            {"name": "price", "dtype": "FP32"},
        ],
        "features": [
            {"name": "user", "inputs": ["user"], "output": "ids", "table": "user", "transforms": [{"op": "hash"}]},
            {"name": "items", "inputs": ["items"], "output": "ids", "table": "item"},
            {"name": "price", "inputs": ["price"], "output": "dense"},
        ],
    }
)
USERS = ["ada", "bob", "ada", "cleo"]


def write(folder: Path, columns: dict[str, Any], name: str = "a") -> Path:
    path = folder / "m" / "requests" / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = {ID: [f"r{number}" for number in range(4)], ROW: pa.array([0, 1, 2, 3], pa.int32()), AT: [1.0] * 4}
    pq.write_table(pa.table({**beside, **columns}), path)
    labels = folder / "m" / "labels" / "score" / f"{name}.parquet"
    labels.parent.mkdir(parents=True, exist_ok=True)
    known = {ID: ["r0", "r1"], ROW: pa.array([0, 1], pa.int32()), AT: [2.0] * 2, LABEL: [1.0, 1.0]}
    pq.write_table(pa.table(known), labels)
    return path


def ids(path: Path) -> list[str]:
    return list(pq.read_table(path).column(ID).to_pylist())


@pytest.mark.parametrize("has_price", [True, False])
def test_rows_with_a_raw_value_are_erased_and_their_labels(tmp_path: Path, has_price: bool) -> None:
    prices = {"price": [1.0, 2.0, 3.0, 4.0]} if has_price else {}
    path = write(tmp_path, {"account": USERS, "items": [[1], [2], [], [3]], **prices})
    path.chmod(0o640)
    before = path.read_bytes()
    wanted = wanted_values(SPEC, "user", ["ada"])
    assert [(place.what, place.count) for place in find_places([tmp_path], wanted, SPEC, Needles())] == [
        ("requests", 2)
    ]
    assert path.read_bytes() == before
    assert forget_in_logs([tmp_path], wanted, SPEC) == 2
    assert ids(path) == ["r1", "r3"]
    assert path.stat().st_mode & 0o777 == 0o640
    assert ids(tmp_path / "m" / "labels" / "score" / "a.parquet") == ["r1"]
    assert find_places([tmp_path], wanted, SPEC, Needles()) == []
    assert forget_in_logs([tmp_path], wanted, SPEC) == 0
    assert not list(tmp_path.rglob(".*"))


def test_a_call_that_was_killed_is_finished_by_the_same_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, {"account": USERS, "items": [[1], [2], [], [3]]})
    wanted, replace, replaced = wanted_values(SPEC, "user", ["ada"]), served_logs._replace, list[Path]()

    def killed(path: Path, table: Any) -> None:
        if replaced:
            raise KeyboardInterrupt
        replaced.append(path)
        replace(path, table)

    monkeypatch.setattr(served_logs, "_replace", killed)
    with pytest.raises(KeyboardInterrupt):
        forget_in_logs([tmp_path], wanted, SPEC)
    monkeypatch.setattr(served_logs, "_replace", replace)
    assert forget_in_logs([tmp_path], wanted, SPEC) == 2
    assert (ids(path), ids(tmp_path / "m" / "labels" / "score" / "a.parquet")) == (["r1", "r3"], ["r1"])


def test_digests_are_found_with_the_key_and_refused_without(tmp_path: Path) -> None:
    digests = [keyed_hash(KEY, user.encode()) for user in USERS]
    path = write(tmp_path, {"account.hash": digests, "items": [[1], [2], [], [3]]})
    wanted = wanted_values(SPEC, "user", ["ada", "cleo"])
    with pytest.raises(ConfigError, match="give the key"):
        forget_in_logs([tmp_path], wanted, SPEC)
    assert forget_in_logs([tmp_path], wanted, SPEC, KEY) == 3
    assert ids(path) == ["r1"]


def test_ids_of_a_table_are_found_in_lists_and_a_file_without_rows_goes(tmp_path: Path) -> None:
    path = write(tmp_path, {"account": USERS, "items": [[1, 7], [7], [9, 7], [7]]})
    other = write(tmp_path, {"account": USERS, "items": [[1], [2], [], [3]]}, "b")
    wanted = Wanted.of_ids({"item": [7]})
    assert forget_in_logs([tmp_path], wanted, SPEC) == 4
    assert not path.exists()
    assert len(ids(other)) == 4


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    pq.write_table(pa.table({"account": USERS}), tmp_path / "mine.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    before = (tmp_path / "mine.parquet").read_bytes()
    assert forget_in_logs([tmp_path], wanted_values(SPEC, "user", ["ada"]), SPEC) == 0
    assert (tmp_path / "mine.parquet").read_bytes() == before


def test_a_key_is_neither_short_nor_long(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"short\n")
    with pytest.raises(ConfigError, match="5 bytes"):
        read_hash_key(file)
    file.write_bytes(b" " + KEY + b"\n")
    assert read_hash_key(file) == KEY
    with pytest.raises(ConfigError, match="cannot be read"):
        read_hash_key(tmp_path / "none")


def test_pipes_are_not_waited_for_and_a_folder_that_cannot_be_listed_does_not_count_as_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    write(tmp_path, {"account": USERS, "items": [[1], [2], [], [3]]})
    wanted = wanted_values(SPEC, "user", ["ada"])
    assert len(find_places([tmp_path], wanted, SPEC, Needles())) == 1
    scan, closed = os.scandir, str(tmp_path / "m" / "requests")

    def scandir(path: Any) -> Any:
        if str(path) == closed:
            raise PermissionError(13, "Permission denied", closed)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError, match="requests"):
        find_places([tmp_path], wanted, SPEC, Needles())


def test_a_log_that_is_damaged_is_named_and_does_not_count_as_clean(tmp_path: Path) -> None:
    path = write(tmp_path, {"account": USERS, "items": [[1], [2], [], [3]]})
    wanted, data = wanted_values(SPEC, "user", ["ada"]), path.read_bytes()
    path.write_bytes(data[:4] + b"\xff" * 40 + data[44:])
    for look in (
        lambda: find_places([tmp_path], wanted, SPEC, Needles()),
        lambda: forget_in_logs([tmp_path], wanted, SPEC),
    ):
        with pytest.raises(InvalidInput, match=r"a\.parquet: is a log of requests that cannot be read"):
            look()


def test_ids_of_a_table_are_found_as_digests_where_they_are_the_values(tmp_path: Path) -> None:
    items = [[keyed_hash(KEY, item) for item in row] for row in ([1, 7], [2], [], [7])]
    path = write(tmp_path, {"account": USERS, "items.hash": items})
    wanted = Wanted.of_ids({"item": [7]})
    with pytest.raises(ConfigError, match="the input 'items' is logged as digests; give the key"):
        find_places([tmp_path], wanted, SPEC, Needles())
    assert forget_in_logs([tmp_path], wanted, SPEC, KEY) == 2
    assert ids(path) == ["r1", "r2"]
    assert forget_in_logs([tmp_path], wanted, SPEC, KEY) == 0


def test_digests_of_values_that_ids_do_not_tell_are_refused_and_found_by_the_values(tmp_path: Path) -> None:
    digests = [keyed_hash(KEY, user.encode()) for user in USERS]
    path = write(tmp_path, {"account.hash": digests, "items": [[1], [2], [], [3]]})
    values = wanted_values(SPEC, "user", ["ada"])
    wanted = Wanted.of_ids(values.tables)
    for look in (
        lambda: find_places([tmp_path], wanted, SPEC, Needles(), log_key=KEY),
        lambda: forget_in_logs([tmp_path], wanted, SPEC, KEY),
    ):
        with pytest.raises(InvalidInput, match=r"a\.parquet: the input 'user' is logged as .* with --input user"):
            look()
    assert forget_in_logs([tmp_path], Wanted.of_ids({"item": [9]}), SPEC) == 0
    assert forget_in_logs([tmp_path], values, SPEC, KEY) == 2
    assert ids(path) == ["r1", "r3"]


def test_digests_of_another_input_of_the_table_are_found_by_the_values(tmp_path: Path) -> None:
    shared = {"output": "ids", "table": "user", "transforms": [{"op": "hash"}]}
    spec = FeatureSpec.model_validate(
        {
            "inputs": [{"name": "user", "dtype": "BYTES"}, {"name": "friend", "dtype": "BYTES"}],
            "features": [
                {"name": "user", "inputs": ["user"], **shared},
                {"name": "friend", "inputs": ["friend"], **shared},
                {"name": "both", "inputs": ["user", "friend"], **shared, "transforms": [{"op": "cross"}]},
            ],
        }
    )
    friends = [keyed_hash(KEY, friend) for friend in (b"bob", b"ada", b"cleo", b"bob")]
    path = write(tmp_path, {"user.hash": [keyed_hash(KEY, user.encode()) for user in USERS], "friend.hash": friends})
    assert forget_in_logs([tmp_path], wanted_values(spec, "user", ["cleo"]), spec, KEY) == 2
    assert ids(path) == ["r0", "r1"]
    with pytest.raises(InvalidInput, match="cannot be known"):
        forget_in_logs([tmp_path], Wanted.of_ids({"user": [1]}), spec, KEY)


def test_ids_are_found_where_their_weights_are_not_logged(tmp_path: Path) -> None:
    weighted = {"pooling": "weighted", "weights": "shares", "output": "ids", "table": "item"}
    spec = FeatureSpec.model_validate(
        {
            "inputs": [
                {"name": "items", "dtype": "INT64", "kind": "list"},
                {"name": "shares", "dtype": "FP32", "kind": "list"},
            ],
            "features": [{"name": "items", "inputs": ["items"], **weighted}],
        }
    )
    path = write(tmp_path, {"items": [[1, 7], [2], [], [3]]})
    assert forget_in_logs([tmp_path], Wanted.of_ids({"item": [7]}), spec) == 1
    assert ids(path) == ["r1", "r2", "r3"]

"""Folders of Parquet files: what is read, in which order, what is left out with a word, and what is refused."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.data import DataRows, Wanted, find_files
from storage.errors import ConfigError, InvalidInput
from storage.features import InputSpec

USER = InputSpec(name="user", dtype="INT64")
DATE = InputSpec(name="day", dtype="INT64", column="date")
AT = InputSpec(name="at", dtype="INT64")


def write(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def opened(data: Path, *inputs: InputSpec, **wanted: Any) -> DataRows:
    return DataRows.open(data, Wanted(inputs, **{"learns": True, **wanted}))


def read(data: Path, *inputs: InputSpec, **wanted: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = opened(data, *inputs, **wanted).read().to_pydict()
    return found


def test_hive_partitions_are_read_by_path_and_become_columns(tmp_path: Path) -> None:
    for day, at, user in (("2026-01-02", "7", 3), ("2026-01-01", "10", 1), ("2026-01-01", "9", 2)):
        write(tmp_path / f"date={day}" / f"hour={at}" / "part-0.parquet", user=[user, user + 10])
    hour, text = InputSpec(name="hour", dtype="FP32"), InputSpec(name="text", dtype="BYTES", column="hour")
    found = read(tmp_path, USER, DATE, hour, keep=["date"])
    assert found["user"] == [1, 11, 2, 12, 3, 13]
    assert found["hour"] == [10.0, 10.0, 9.0, 9.0, 7.0, 7.0]
    assert found["date"][0] == datetime.date(2026, 1, 1)
    assert read(tmp_path, USER, text)["hour"] == ["10", "10", "9", "9", "7", "7"]
    assert opened(tmp_path, DATE).column_types == {"day": "timestamp"}
    assert [batch.num_rows for batch in opened(tmp_path, USER).range(1, 6).batches(2)] == [1, 2, 2]


def test_a_path_into_a_partition_has_its_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "date=2026-01-02" / "hour=7" / "part-0.parquet", user=[3])
    hour = InputSpec(name="hour", dtype="INT64")
    monkeypatch.chdir(file.parent)
    for path in (tmp_path, tmp_path / "date=2026-01-02", file.parent, file, Path(), Path(file.name)):
        assert read(path, DATE, hour) == {"date": [datetime.date(2026, 1, 2)], "hour": [7]}
    assert len({opened(path, DATE, hour).fingerprint for path in (tmp_path, file)}) == 1


def test_values_of_partitions_are_decoded_and_may_be_null(tmp_path: Path) -> None:
    write(tmp_path / "city=K%C3%B6ln%2FBonn" / "a.parquet", user=[1])
    write(tmp_path / "city=__HIVE_DEFAULT_PARTITION__" / "a.parquet", user=[2])
    assert read(tmp_path, InputSpec(name="city", dtype="BYTES")) == {"city": ["Köln/Bonn", None]}


def test_a_partition_that_does_not_fit_its_input_is_named(tmp_path: Path) -> None:
    write(tmp_path / "user=1" / "a.parquet", x=[1])
    write(tmp_path / "user=one" / "a.parquet", x=[1])
    with pytest.raises(ConfigError, match=r"user=one/a.parquet: the partition user=one feeds .*'user'.*expected int64"):
        opened(tmp_path, USER)


def test_a_column_of_the_file_counts_more_than_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "user=1" / "a.parquet", user=[5])
    assert read(tmp_path, USER) == {"user": [5]}


def test_markers_and_hidden_files_are_left_out_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "a.parquet", user=[1])
    for name in ("_SUCCESS", "_metadata", ".a.parquet.crc", "a.parquet.crc", ".hidden.parquet"):
        (tmp_path / name).write_text("x")
    write(tmp_path / "_temporary" / "b.parquet", user=[2])
    assert read(tmp_path, USER) == {"user": [1]}
    assert len(caplog.messages) == 1
    assert ".a.parquet.crc, .hidden.parquet, _SUCCESS, _metadata, _temporary and 1 more" in caplog.text


def test_files_without_a_suffix_are_known_by_their_content(tmp_path: Path) -> None:
    write(tmp_path / "000000_0", user=[1])
    write(tmp_path / "b.parq", user=[2])
    assert read(tmp_path, USER) == {"user": [1, 2]}


def test_other_files_and_a_mixture_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("{}")
    for path in (tmp_path, tmp_path / "b.json"):
        with pytest.raises(ConfigError, match=r"b.json.*expected Parquet, CSV, .*got a file of the kind JSON"):
            find_files(path)
    write(tmp_path / "a.parquet", user=[1])
    with pytest.raises(ConfigError, match=r"1 Parquet files \(a.parquet, ...\) and 1 of the kind JSON \(b.json\)"):
        find_files(tmp_path)
    (tmp_path / "b.json").rename(tmp_path / "c.csv")
    with pytest.raises(ConfigError, match=r"1 Parquet files \(a.parquet, ...\) and 1 of the kind CSV \(c.csv\)"):
        find_files(tmp_path)


def test_folders_that_are_no_partitions_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "2026" / "a.parquet", user=[1])
    with pytest.raises(
        ConfigError, match=r"2026: a folder inside of the data, which is no partition; expected KEY=VALUE"
    ):
        find_files(tmp_path)


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (("a.parquet", "x=1/a.parquet"), "a.parquet and x=1/a.parquet do not lie in partitions of the same keys"),
        (("y=1/a.parquet", "x=1/a.parquet"), "x=1/a.parquet and y=1/a.parquet do not lie in"),
        (("x=1/x=2/a.parquet",), "the partition 'x' is given twice"),
        (("_delta_log/a.parquet", "b.parquet"), "is a Delta Lake table"),
    ],
)
def test_partitions_of_other_keys_and_tables_with_a_log_are_refused(
    tmp_path: Path, paths: tuple[str, ...], words: str
) -> None:
    for path in paths:
        write(tmp_path / path, user=[1])
    with pytest.raises(ConfigError, match=words):
        find_files(tmp_path)


def test_an_empty_file_is_named_and_a_file_without_rows_is_fine(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", user=pa.array([], pa.int64()))
    write(tmp_path / "b.parquet", user=[1])
    assert read(tmp_path, USER) == {"user": [1]}
    (tmp_path / "c.parquet").touch()
    with pytest.raises(ConfigError, match=r"c.parquet: is empty \(0 bytes\)"):
        opened(tmp_path, USER)


def test_files_of_other_schemas_are_refused_by_file_and_column(tmp_path: Path) -> None:
    first = write(tmp_path / "a.parquet", user=[1], at=[1])
    write(tmp_path / "b.parquet", user=pa.array([2], pa.int32()), at=pa.array([2], pa.timestamp("us")))
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, USER, AT)
    assert "b.parquet: the column 'at' of the input 'at' holds timestamp[us] (timestamp)" in str(caught.value)
    assert f"expected integer, as in {first}" in str(caught.value)
    write(tmp_path / "b.parquet", at=[2])
    with pytest.raises(ConfigError, match=r"b.parquet: input 'user' wants the column 'user', which is not there"):
        opened(tmp_path, USER, AT)
    write(tmp_path / "b.parquet", user=[1], at=[1], more=["x"])
    with pytest.raises(ConfigError, match=r"a.parquet: has no column 'more'"):
        opened(tmp_path, USER, keep=["more"])


#: Text that every file has as a dictionary is read as one.
TEXT = pa.dictionary(pa.int32(), pa.string())


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (pa.array([1], pa.int32()), pa.array([2**40]), pa.int64()),
        (pa.array(["a"]), pa.array([b"\xff"]), pa.binary()),
        (pa.array(["a"]).dictionary_encode(), pa.array(["b"], pa.string_view()), TEXT),
        (pa.nulls(1), pa.array([1.5]), pa.float64()),
        (pa.array([1.5]), pa.nulls(1), pa.float64()),
        (pa.array([1], pa.date32()), pa.array([1], pa.timestamp("ns", tz="UTC")), pa.timestamp("us")),
        (
            pa.array([[1]], pa.list_(pa.field("element", pa.int64()))),
            pa.array([[2]], pa.large_list(pa.int32())),
            pa.large_list(pa.int64()),
        ),
        (pa.array([[1]], pa.list_(pa.int8())), pa.array([[2]], pa.large_list(pa.int64())), pa.large_list(pa.int64())),
    ],
    ids=str,
)
def test_widths_and_units_that_differ_between_files_come_together(
    tmp_path: Path, first: pa.Array, second: pa.Array, kind: Any
) -> None:
    write(tmp_path / "a.parquet", x=first)
    write(tmp_path / "b.parquet", x=second)
    dtype = {"d": "FP64", "i": "INT64", "t": "INT64"}.get(str(getattr(kind, "value_type", kind))[0], "BYTES")
    rows = opened(tmp_path, InputSpec(name="x", dtype=dtype, kind="list" if pa.types.is_large_list(kind) else "fixed"))
    assert rows.schema.field("x").type == kind
    assert rows.read().num_rows == 2


def test_data_of_another_type_than_in_training_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", at=[1])
    with pytest.raises(
        ConfigError, match=r"'at' of the input 'at' holds int64 \(integer\); expected timestamp, as in training"
    ):
        opened(path, AT.model_copy(update={"column_type": "timestamp"}))
    assert opened(path, AT.model_copy(update={"column_type": "timestamp", "unit": "ms"})).rows == 1
    price = InputSpec(name="at", dtype="FP32", column_type="float")
    assert opened(path, price).rows == 1
    write(path, at=[1.5])
    with pytest.raises(ConfigError, match=r"holds double \(float\); expected integer"):
        opened(path, price.model_copy(update={"column_type": "integer"}))
    write(path, at=pa.array([1], pa.timestamp("us")))
    with pytest.raises(ConfigError, match="it is not known what the model was trained on"):
        opened(path, AT, learns=False)


def test_a_value_that_does_not_fit_names_its_file(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", user=[1])
    write(tmp_path / "b.parquet", user=pa.array([2**63], pa.uint64()))
    with pytest.raises(InvalidInput, match=r"b.parquet: row group 0 cannot be read"):
        opened(tmp_path, USER).read()


def test_text_with_few_values_is_read_as_dictionaries(tmp_path: Path) -> None:
    few, tags = ["a", None, "", "b"] * 5_000, [["x"], None, [], ["y", None]] * 5_000
    many = [f"a value of its own, {number * 7919}" for number in range(20_000)]
    for name in ("a.parquet", "b.parquet"):
        write(tmp_path / name, few=few, many=many, tags=tags, note=few)
    inputs = [InputSpec(name=name, dtype="BYTES") for name in ("few", "many", "note")]
    inputs.append(InputSpec(name="tags", dtype="BYTES", kind="list"))
    rows = opened(tmp_path, *inputs, keep=["note"])
    assert rows.schema.field("few").type == TEXT
    assert rows.schema.field("tags").type.value_type == TEXT
    assert rows.schema.field("many").type == pa.string()
    assert rows.schema.field("note").type == pa.string()  # it is copied, not only read
    assert rows.read().to_pydict() == {"few": few * 2, "many": many * 2, "tags": tags * 2, "note": few * 2}
    assert rows.range(3, 20_002).read().column("few").to_pylist() == (few * 2)[3:20_002]


def test_a_file_without_dictionaries_keeps_others_from_being_read_as_such(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", word=["a", "b"])
    pq.write_table(pa.table({"word": ["b", None]}), tmp_path / "b.parquet", use_dictionary=False)
    rows = opened(tmp_path, InputSpec(name="word", dtype="BYTES"))
    assert rows.schema.field("word").type == pa.string()
    assert rows.read().to_pydict() == {"word": ["a", "b", "b", None]}

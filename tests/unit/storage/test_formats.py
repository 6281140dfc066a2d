"""Files of text, ORC, Arrow and libsvm give the rows that Parquet gives, and say where they are damaged."""

from __future__ import annotations

import datetime
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.feather as feather
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from storage.data import BlockIndex, DataOptions, DataRows, Wanted
from storage.errors import ConfigError, InvalidInput
from storage.features import InputSpec

USER = InputSpec(name="user", dtype="INT64")
CITY = InputSpec(name="city", dtype="BYTES")
TAGS = InputSpec(name="tags", dtype="INT64", kind="list")
PRICE = InputSpec(name="price", dtype="FP32")
AT = InputSpec(name="at", dtype="INT64")
ROWS = pa.table(
    {
        "user": [3, None, -5, 2**62],
        "city": ["Bonn, 1", "", None, 'K"öln'],
        "tags": [[1, 2], [], [7], [8, 9, 10]],
        "price": pa.array([0.1, 1e-7, None, 3.0], pa.float32()),
    }
)


def opened(data: Any, *inputs: InputSpec, index: BlockIndex | None = None, **options: Any) -> DataRows:
    return DataRows.open(data, Wanted(inputs, learns=True), DataOptions(**options), index)


def text(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def written(folder: Path, suffix: str) -> Path:
    path = folder / f"rows{suffix}"
    flat = ROWS.set_column(2, "tags", pa.array(["1|2", "", "7", "8|9|10"]))
    if suffix == ".parquet":
        pq.write_table(ROWS, path, row_group_size=3)
    elif suffix == ".orc":
        orc.write_table(ROWS, path, stripe_size=1, batch_size=2)
    elif suffix == ".arrow":
        feather.write_feather(ROWS, str(path), chunksize=3)
    else:
        delimiter = "," if suffix == ".csv" else "\t"
        pa_csv.write_csv(flat, path, pa_csv.WriteOptions(delimiter=delimiter))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".orc", ".arrow", ".parquet"])
def test_every_format_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    rows = opened(written(tmp_path, suffix), PRICE, TAGS, CITY, USER, block_rows=3)
    assert rows.read().select(ROWS.column_names).cast(ROWS.schema).equals(ROWS)
    assert len(rows.blocks) > 1 or suffix == ".orc"
    assert rows.column_types == {"user": "integer", "city": "string", "tags": "integer", "price": "float"}
    assert rows.range(2, 4).read()["user"].to_pylist() == [-5, 2**62]


def test_columns_of_text_have_the_type_of_their_input(tmp_path: Path) -> None:
    path = text(
        tmp_path / "a.csv", "code,at,day,unit\n007,2026-01-02 03:04:05,2026-01-02,5\n08,2026-01-02 03:04:06,,6\n"
    )
    code, day = InputSpec(name="code", dtype="BYTES"), InputSpec(name="day", dtype="FP64")
    rows = opened(path, code, AT, day, InputSpec(name="unit", dtype="INT64", unit="s"))
    found = rows.read().to_pydict()
    assert found["code"] == ["007", "08"]
    assert found["at"][0] == datetime.datetime(2026, 1, 2, 3, 4, 5)
    assert found["day"] == [datetime.date(2026, 1, 2), None]
    assert rows.column_types["at"] == rows.column_types["unit"] == "timestamp"
    assert opened(path, PRICE, missing_columns={"price": 1}).schema.field("price").type == pa.float32()
    number = InputSpec(name="code", dtype="INT64")
    assert opened(path, number, types={"code": "int32"}).schema.field("code").type == pa.int32()


def test_files_without_a_header_other_delimiters_and_names_that_do_not_tell(tmp_path: Path) -> None:
    path = text(tmp_path / "part-0.txt", b"\xef\xbb\xbf3;'a;b';1 2\r\n\r\n4;NA;\r\n")
    rows = opened(
        path,
        *(USER, CITY, TAGS),
        format="csv",
        columns=("user", "city", "tags"),
        delimiter=";",
        quote="'",
        list_delimiter=" ",
        null_values=("NA", ""),
    )
    assert rows.read().to_pydict() == {"user": [3, 4], "city": ["a;b", None], "tags": [[1, 2], None]}
    with pytest.raises(ConfigError, match=r"got a file of the kind TXT; name its format if it is text \(data.format"):
        opened(path, USER)


def test_the_format_of_binary_files_without_a_known_extension_counts_and_is_checked(tmp_path: Path) -> None:
    for suffix, name in ((".parquet", "parquet"), (".orc", "orc"), (".arrow", "arrow")):
        path = written(tmp_path, suffix).rename(tmp_path / f"{name}.data")
        for asked in (None, name, "csv"):
            assert opened(path, USER, format=asked).rows == 4
        other = "orc" if name == "parquet" else "parquet"
        with pytest.raises(
            ConfigError, match=rf"{name}.data: is \w+ by its first bytes, and data.format is {other}; set"
        ):
            opened(path, USER, format=other)
    path = text(tmp_path / "clicks.data", "user\n1\n")
    with pytest.raises(ConfigError, match=r"clicks.data: not a readable Parquet file"):
        opened(path, USER, format="parquet")


def test_quoted_line_ends_belong_to_their_field(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", 'user,city\n1,"a\n\nb"\n2,"c ""\n"\n3,d')
    rows = opened(path, USER, CITY, newlines_in_values=True, block_rows=1)
    assert rows.read()["city"].to_pylist() == ["a\n\nb", 'c "\n', "d"]
    assert [block.place_of(0).rpartition(": ")[2] for block in rows.blocks] == ["line 2", "line 5", "line 7"]
    with pytest.raises(InvalidInput, match=r"a.csv: lines 2 to 7 hold 3 rows, and 5 line ends.*Set data.newlines_in"):
        opened(path, USER, CITY).read()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("user,price\n1,2\n\n3\n", r"a.csv.*: line 4: 1 fields, expected 2 as there are columns"),
        ("user,price\n1,2\n3,4,5\n", r"a.csv.*: line 3: 3 fields, expected 2"),
        ("user,price\n1,2\n3,4x\n", r"a.csv: line 3, column 'price': '4x' is no float"),
        ("user,price\n1,2\n3.5,4\n", r"a.csv: line 3, column 'user': '3.5' is no int64"),
        ("user,price\n1,2\n3.0,4\n", r"a.csv: line 3, column 'user': '3.0' is no int64; write 3 for it"),
        ("price,tags,user\n1,2|x,3\n", r"a.csv: line 2, column 'tags': 'x' is no int64"),
        ("user,price\n1,N/A\n", r"'N/A' is no float; if it stands for no value, list it in data.null_values"),
        (b"user,city\n1,\xff\n", r"a.csv: line 2, column 'city': the text is not UTF-8"),
        (b"user,city\r1,a\r2,b\r", r"a.csv: .*line 1 holds a carriage return.*expected .n or .r.n"),
        ("user,at\n1,2026-01-01 10:00:00\n2,31.01.2026\n", r"line 2, column 'at': .*times is read where every value"),
        ("user,city\n1,a\r2,b\n", r"a.csv: lines 2 to 2 hold 2 rows, and 1 line ends"),
    ],
)
def test_damaged_lines_are_named(tmp_path: Path, content: str | bytes, words: str) -> None:
    path = text(tmp_path / "a.csv", content)
    there = content.split(b"\n" if isinstance(content, bytes) else "\n")[0]  # type: ignore[arg-type]
    inputs = [entry for entry in (USER, CITY, TAGS, PRICE, AT) if entry.name in str(there)]
    with pytest.raises((ConfigError, InvalidInput), match=words):
        opened(path, *inputs).read()


def test_a_day_without_rows_goes_with_the_types_of_the_others(tmp_path: Path) -> None:
    header = "user,at,clicked\n"
    for day, rows in ((1, ""), (2, "5,2026-01-31 10:00:00,1\n"), (3, "")):
        text(tmp_path / f"{day}.csv", header + rows)
    wanted = Wanted((USER, AT), numbers={"clicked": "label"}, learns=True)
    found = DataRows.open(tmp_path, wanted)
    assert found.rows == 1
    assert found.column_types["at"] == "timestamp"
    assert DataRows.open(tmp_path, None).read()["clicked"].to_pylist() == [1]
    with pytest.raises(ConfigError, match=r"1.csv: holds the names of columns and no row; give data with rows"):
        DataRows.open(tmp_path / "1.csv", wanted)
    text(tmp_path / "3.csv", "user,clicked\n")
    with pytest.raises(ConfigError, match=r"3.csv: input 'at' wants the column 'at', which is not there"):
        DataRows.open(tmp_path, wanted)


def test_text_holds_no_lists_of_lists(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "tags\n1|2\n")
    nested = InputSpec(name="tags", dtype="INT64", kind="list", flatten=True)
    assert opened(path, nested).read()["tags"].to_pylist() == [[1, 2]]
    with pytest.raises(InvalidInput, match=r"a.csv: .*one list of values, which cannot be read as list<.*list<"):
        opened(path, nested, types={"tags": "list<list<int64>>"}).read()


def test_a_file_with_another_delimiter_gets_advice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the file has one column, 'user;price'; is there another delimiter\?"):
        opened(text(tmp_path / "a.csv", "user;price\n1;2\n"), USER)


def test_libsvm_gives_columns_by_index_and_lists(tmp_path: Path) -> None:
    path = text(tmp_path / "a.libsvm", "1 qid:4 2:0.5 7:3\n\n0 qid:5 7:-1 # a comment\n1 qid:5\n")
    second, seventh = InputSpec(name="2", dtype="FP32"), InputSpec(name="count", dtype="INT64", column="7")
    rows = DataRows.open(path, Wanted((second, seventh), keep=("label", "indices", "values", "qid"), learns=True))
    assert rows.read().to_pydict() == {
        "2": [0.5, 0.0, 0.0],
        "7": [3, -1, 0],
        "label": [1.0, 0.0, 1.0],
        "indices": [[2, 7], [7], []],
        "values": [[0.5, 3.0], [-1.0], []],
        "qid": [4, 5, 5],
    }
    named = text(tmp_path / "b.svm", "1 1:5 2:9\n")
    assert opened(named, USER, PRICE, columns=("user", "price")).read().to_pydict() == {"user": [5], "price": [9.0]}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1 1:2 3", "'3' is no pair index:value"),
        ("1 x:2", "the index 'x' is no int64"),
        ("1 1:2x", "the value of user '2x' is no int64"),
        ("1 9:2", "the index 9 has no name in data.columns; expected 1 to 1"),
        ("# nothing", "there is no label"),
    ],
)
def test_damaged_lines_of_libsvm_are_named(tmp_path: Path, line: str, words: str) -> None:
    path = text(tmp_path / "a.libsvm", f"1 1:5\n0 1:6\n\n{line}\n")
    with pytest.raises(InvalidInput, match=f"a.libsvm: line 4: {words}"):
        opened(path, USER, columns=("user",)).read()


def test_columns_that_files_lack_have_their_default(tmp_path: Path) -> None:
    first = text(tmp_path / "a.csv", "user\n1\n")
    second = text(tmp_path / "b.csv", "user,price\n2,2.5\n")
    rows = opened(tmp_path, USER, PRICE, TAGS, missing_columns={"price": 9.5, "tags": [1]})
    assert rows.read().to_pydict() == {"user": [1, 2], "price": [9.5, 2.5], "tags": [[1], [1]]}
    with pytest.raises(ConfigError, match=r"data.missing_columns.price: 'x' is no float"):
        opened([first, second], USER, PRICE, missing_columns={"price": "x"})


def test_damaged_files_are_an_error_or_left_out_and_named(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"user": [number] * 1000}), tmp_path / f"{number}.parquet")
    whole = (tmp_path / "1.parquet").read_bytes()
    (tmp_path / "1.parquet").write_bytes(whole[:-9])
    with pytest.raises(ConfigError, match=r"1.parquet: not a readable Parquet file"):
        opened(tmp_path, USER)
    (tmp_path / "2.parquet").write_bytes(whole[:40] + bytes(60) + whole[100:])
    with pytest.raises(InvalidInput, match=r"2.parquet: row group 0 cannot be read"):
        opened(tmp_path / "2.parquet", USER).read()
    text(tmp_path / "3.csv", "user\n1\nx\n").rename(tmp_path / "x")
    rows = opened(tmp_path, USER, on_damaged="skip") if not (tmp_path / "x").unlink() else None
    assert rows is not None
    assert rows.rows == 1000
    assert [Path(entry.path).name for entry in rows.skipped] == ["1.parquet", "2.parquet"]


def test_an_arrow_file_that_is_damaged_inside_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"word": ["abcdefgh", "ijklmnop", "qrstuvwx"]})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    offsets = np.array([0, 8, 16, 24], np.int32).tobytes()
    content = path.read_bytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, np.array([0, 8, 2**30, 24], np.int32).tobytes()))
    with pytest.raises(InvalidInput, match=r"a.arrow: record batch 0 cannot be read: .*offset"):
        opened(path, InputSpec(name="word", dtype="BYTES")).read()


def test_a_column_that_changes_its_type_in_file_7_is_named(tmp_path: Path) -> None:
    for number in range(1, 9):
        values = ["x"] if number == 7 else [number]
        pq.write_table(pa.table({"user": values}), tmp_path / f"{number}.parquet")
    with pytest.raises(ConfigError, match=r"7.parquet: column 'user' is string, which cannot feed the input 'user'"):
        opened(tmp_path, USER)
    with pytest.raises(ConfigError, match=r"7.parquet: the column 'user' holds string; expected int64, as in .*1.parq"):
        DataRows.open(tmp_path, Wanted((), keep=("user",)))


def test_blocks_are_remembered_until_the_file_changes(tmp_path: Path) -> None:
    path = text(tmp_path / "a.csv", "user\n" + "".join(f"{number}\n" for number in range(100)))
    index = BlockIndex(tmp_path / "index")
    rows = opened(path, USER, index=index, block_rows=30)
    assert [block.rows for block in rows.blocks] == [30, 30, 30, 10]
    (kept,) = (tmp_path / "index").glob("*.json")
    content = json.loads(kept.read_text())
    blocks = [[29 if value == 30 else value for value in block] for block in content["blocks"]]
    kept.write_text(json.dumps({**content, "blocks": blocks}))
    assert opened(path, USER, index=index, block_rows=30).blocks[0].rows == 29  # it was not searched again
    text(path, "user\n1\n")
    assert opened(path, USER, index=index, block_rows=30).rows == 1


@pytest.mark.parametrize("suffix", [".parquet", ".orc", ".arrow"])
def test_only_the_bytes_of_the_columns_in_use_are_read(tmp_path: Path, suffix: str) -> None:
    texts = {f"text_{column}": [f"{column} {row * 7919}" for row in range(20_000)] for column in range(8)}
    table = pa.table({"user": range(20_000), **texts})
    path = tmp_path / f"wide{suffix}"
    if suffix == ".parquet":
        pq.write_table(table, path, compression="none")
    elif suffix == ".orc":
        orc.write_table(table, path)
    else:
        feather.write_feather(table, str(path), compression="uncompressed")
    rows = opened(path, USER)
    before = bytes_read()
    assert rows.read().num_rows == 20_000
    assert 0 < bytes_read() - before < path.stat().st_size / 4


def bytes_read() -> int:
    """Returns the bytes that this process has read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


def test_a_data_frame_of_pandas_is_a_table() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"user": [1, 2, 3], "city": ["a", None, "c"]}).iloc[1:]
    assert opened(frame, USER, CITY).read().to_pydict() == {"user": [2, 3], "city": [None, "c"]}
    with pytest.raises(ConfigError, match="data: a DataFrame that is no table of Arrow"):
        opened(pandas.DataFrame({"user": [1, "x", []]}), USER)


def test_tables_in_memory_and_patterns(tmp_path: Path) -> None:
    rows = opened(ROWS, USER, TAGS, block_rows=3)
    assert [block.rows for block in rows.blocks] == [3, 1]
    assert rows.read()["tags"].to_pylist() == ROWS["tags"].to_pylist()
    assert rows.fingerprint == opened(ROWS.slice(0), USER, block_rows=3).fingerprint
    assert rows.fingerprint != opened(ROWS.slice(0, 3), USER, block_rows=3).fingerprint
    for number in "123":
        (tmp_path / f"day={number}").mkdir()
        text(tmp_path / f"day={number}" / "a.csv", f"user\n{number}\n")
        text(tmp_path / f"day={number}" / "_SUCCESS", "")
    day = InputSpec(name="day", dtype="INT64")
    found = opened(str(tmp_path / "day=[12]" / "*"), USER, day).read().to_pydict()
    assert found == {"user": [1, 2], "day": [1, 2]}
    assert opened([str(tmp_path / "day=[3]"), tmp_path / "day=1"], USER).read()["user"].to_pylist() == [3, 1]
    with pytest.raises(ConfigError, match="no file or folder matches this pattern"):
        opened(str(tmp_path / "*.orc"), USER)
    with pytest.raises(ConfigError, match="expected paths, a pyarrow Table or a DataFrame, got dict"):
        opened({"user": [1]}, USER)


@pytest.mark.parametrize(
    ("entry", "value", "expected"),
    [
        ("user", 1.9, "1.9 is no int64"),
        ("user", True, "True is no int64"),
        ("price", True, "True is no float"),
        ("tags", [1, 2.5], r"\[1, 2.5\] is no list<"),
    ],
)
def test_values_of_missing_columns_are_not_bent_to_their_type(
    tmp_path: Path, entry: str, value: Any, expected: str
) -> None:
    path = text(tmp_path / "a.csv", "city\nBonn\n")
    with pytest.raises(ConfigError, match=rf"data.missing_columns.{entry}: {expected}"):
        opened(path, CITY, USER, PRICE, TAGS, missing_columns={"user": 1, "price": 1, "tags": [], entry: value})


def test_times_of_missing_columns_are_read_as_those_of_text(tmp_path: Path) -> None:
    bare = text(tmp_path / "a.csv", "user\n1\n")
    timed = text(tmp_path / "b.csv", "user,at\n2,2026-01-01 00:00:01\n")
    written = ("2026-01-01 00:00:00", datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1))  # YAML knows dates
    for files, at in itertools.product(([bare], [bare, timed]), written):  # also without a file that has the column
        rows = opened(files, USER, AT, missing_columns={"at": at})
        assert rows.column_types["at"] == "timestamp"
        assert rows.read()["at"][0].as_py() == datetime.datetime(2026, 1, 1)
    with pytest.raises(ConfigError, match=r"missing_columns.at: 5 is no timestamp.*; write a time as text, such as"):
        opened([bare, timed], USER, AT, missing_columns={"at": 5})
    days = text(tmp_path / "c.csv", "user,at\n2,2026-01-01\n")
    assert opened([bare, days], USER, AT, missing_columns={"at": "2026-01-01"}).read()["at"][0].as_py().day == 1
    with pytest.raises(ConfigError, match=r"missing_columns.at: '2026-01-01 05:00:00' is no date32"):
        opened([bare, days], USER, AT, missing_columns={"at": "2026-01-01 05:00:00"})
    with pytest.raises(ConfigError, match=r"missing_columns.at: 'noon' is no int64"):
        opened(bare, USER, AT, missing_columns={"at": "noon"})


def test_options_of_text_that_cannot_work_are_named_once() -> None:
    for name in ("delimiter", "quote"):
        with pytest.raises(ValidationError) as caught:
            DataOptions(**{name: ";;"})
        assert "got" not in caught.value.errors()[0]["msg"]  # the caller says what was given
    for options in ({"delimiter": ";", "quote": ";"}, {"quote": ","}, {"format": "tsv", "quote": "\t"}):
        with pytest.raises(ValidationError, match=r"quote: .* is the delimiter too"):
            DataOptions(**options)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_threads_of_columns_change_no_row(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"wide{suffix}"
    table = pa.table({f"user_{column}": np.arange(1000) * column for column in range(40)})
    pq.write_table(table, path) if suffix == ".parquet" else feather.write_feather(table, path)
    inputs = [InputSpec(name=name, dtype="INT64") for name in table.column_names]
    before = pa.cpu_count()
    try:
        one, many = (opened(path, *inputs, column_threads=count).read() for count in (1, 3))
        assert pa.cpu_count() == 3
    finally:
        pa.set_cpu_count(before)
    assert one.equals(many)
    assert one.select(table.column_names).equals(table)

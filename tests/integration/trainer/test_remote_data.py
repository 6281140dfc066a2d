"""Rows in an object store train the model that the same files of this machine train."""

from __future__ import annotations

import gzip
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

from storage.data import DataOptions, DataRows, Wanted, described, find_files
from storage.data.streams import open_stream
from storage.errors import ConfigError
from storage.features import InputSpec
from trainer import train
from trainer.config import TrainConfig

USER = InputSpec(name="user", dtype="INT64")
PRICE = InputSpec(name="price", dtype="FP32")


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """Runs an S3 server on a free port; returns the options of a URL that reach it."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"endpoint_override=http://{host}:{port}&region=us-east-1"
    server.stop()


@pytest.fixture
def bucket(store: str, monkeypatch: pytest.MonkeyPatch) -> fs.FileSystem:
    """Makes an empty bucket `clicks`."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    filesystem, _ = fs.FileSystem.from_uri(f"s3://clicks?{store}&allow_bucket_creation=true")
    filesystem.create_dir("clicks")
    filesystem.delete_dir_contents("clicks")
    return filesystem


def test_a_model_trained_from_s3_is_the_one_of_local_files(
    tmp_path: Path,
    store: str,
    bucket: fs.FileSystem,
    config_of: Callable[..., TrainConfig],
    click_table: Callable[[int, int], pa.Table],
) -> None:
    for day in "12":
        name = f"data/date=2026-01-0{day}/a.parquet"
        (tmp_path / name).parent.mkdir(parents=True)
        pq.write_table(click_table(300, int(day)), tmp_path / name, row_group_size=100)
        with bucket.open_output_stream(f"clicks/{name}") as stream:
            stream.write((tmp_path / name).read_bytes())
    made = []
    for number, data in enumerate(
        (tmp_path / "data", f"s3://clicks/data?{store}", f"s3://clicks/d*/**/*.parquet?{store}")
    ):
        report = train(config_of(), data, output=tmp_path / str(number), progress=False)
        made.append({path.name: path.read_bytes() for path in report.checkpoint.rglob("*.safetensors")})
    assert made[0] == made[1] == made[2]


def test_a_folder_in_s3_is_followed(store: str, bucket: fs.FileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.data.streams.folder._SCAN_REMOTE_S", 0.0)
    for number, rows in enumerate(([1, 2], [3])):
        with bucket.open_output_stream(f"clicks/data/day={number}/a.parquet") as out:
            pq.write_table(pa.table({"user": rows}), out)
    stream = open_stream(f"s3://clicks/data?{store}", Wanted((USER,)), DataOptions())
    stream.seek(None, "earliest")
    found = []
    while (piece := stream.read(10)) is not None:
        found += piece.table["user"].to_pylist()
        position = piece.after(piece.table.num_rows)
    assert found == [1, 2, 3]
    assert (stream.name, sorted(position["done"])) == ("s3://clicks/data", ["day=0/a.parquet", "day=1/a.parquet"])


def test_text_partitions_and_messages_of_s3(store: str, bucket: fs.FileSystem) -> None:
    for number in "12":
        with bucket.open_output_stream(f"clicks/text/day={number}/a.csv") as stream:
            pa_csv.write_csv(pa.table({"user": [int(number), 9], "price": [1.5, 2.5]}), stream)
    day = InputSpec(name="day", dtype="INT64")
    rows = DataRows.open(f"s3://clicks/text?{store}", Wanted((USER, PRICE, day), learns=True))
    assert rows.read().to_pydict() == {"user": [1, 9, 2, 9], "price": [1.5, 2.5] * 2, "day": [1, 1, 2, 2]}
    assert rows.blocks[1].place_of(1) == "s3://clicks/text/day=2/a.csv: line 3"
    with pytest.raises(ConfigError, match=r"^s3://clicks/nothing: there is no such file or folder$"):
        find_files(f"s3://me:secret@clicks/nothing?{store}")
    with pytest.raises(ConfigError, match="no file or folder matches this pattern"):
        find_files(f"s3://clicks/text/*.orc?{store}")


@pytest.fixture
def google() -> Iterator[str]:
    """Runs a server of Google's protocol with a bucket `clicks`; returns the options of a URL that reach it."""
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="clicks")
    server.start()
    port = server._api._httpd.socket.getsockname()[1]
    yield f"scheme=http&endpoint_override=127.0.0.1:{port}&retry_limit_seconds=5"
    server.stop()


def test_partitions_and_patterns_of_google_storage(google: str) -> None:
    filesystem, _ = fs.FileSystem.from_uri(f"gs://anonymous@clicks?{google}")
    for number in "12":  # no objects stand for these folders, as where Spark has written them
        with filesystem.open_output_stream(f"clicks/text/day={number}/a.csv.gz", compression=None) as stream:
            stream.write(gzip.compress(f"user,price\n{number},1.5\n9,2.5\n".encode()))
    wanted = Wanted((USER, PRICE, InputSpec(name="day", dtype="INT64")), learns=True)
    expected = {"user": [1, 9, 2, 9], "price": [1.5, 2.5] * 2, "day": [1, 1, 2, 2]}
    for place in ("text", "te*/**/*.csv.gz"):
        assert DataRows.open(f"gs://anonymous@clicks/{place}?{google}", wanted).read().to_pydict() == expected
    with pytest.raises(ConfigError, match=r"^gs://clicks/nothing: there is no such file or folder$"):
        find_files(f"gs://anonymous@clicks/nothing?{google}")


class _Ranges(BaseHTTPRequestHandler):
    """Serves files, also parts of them, for who knows the signature."""

    files: ClassVar[dict[str, bytes]] = {}

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path, _, query = self.path.partition("?")
        content = self.files.get(path)
        if content is None or query != "signature=s3cr3t":
            self.send_error(404)
            return
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        begin, end = (int(found[1]), min(int(found[2]) + 1, len(content))) if found else (0, len(content))
        self.send_response(206 if found else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - begin))
        if found:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        self.end_headers()
        if with_body:
            self.wfile.write(content[begin:end])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Ranges)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_files_of_a_web_server_are_read_and_their_signature_is_not_shown(web: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": range(1000), "price": [1.5] * 1000}), tmp_path / "a.parquet", row_group_size=300)
    lines = "user,price\n" + "".join(f"{user},1.5\n" for user in range(1000))
    _Ranges.files = {"/a.parquet": (tmp_path / "a.parquet").read_bytes(), "/b.csv.gz": gzip.compress(lines.encode())}
    for name in ("a.parquet", "b.csv.gz"):
        rows = DataRows.open(
            f"{web}/{name}?signature=s3cr3t", Wanted((USER,), learns=True), DataOptions(block_rows=300)
        )
        assert [block.rows for block in rows.blocks] == [300, 300, 300, 100]
        assert rows.blocks[2].read(rows.schema)["user"].to_pylist() == list(range(600, 900))
        assert rows.blocks[0].file.path == f"{web}/{name}"
    with pytest.raises(ConfigError, match=rf"^{web}/a.parquet: there is no such file, or the server does not answer$"):
        find_files(f"{web}/a.parquet?signature=other")
    assert described(f"{web}/a.parquet?signature=s3cr3t") == [f"{web}/a.parquet"]


def test_a_scheme_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data: s4:// is not supported; known are: .*s3; mount the storage"):
        find_files("s4://bucket/clicks")
    with pytest.raises(ConfigError, match=r"gs:// names no bucket; expected gs://BUCKET/PATH"):
        find_files("gs://?scheme=http")

"""Rows in an object store train the model that the same files of this machine train."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs

from storage.data import DataRows, Wanted, find_files
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


def test_a_scheme_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data: s4:// is not supported; known are: .*s3; mount the storage"):
        find_files("s4://bucket/clicks")

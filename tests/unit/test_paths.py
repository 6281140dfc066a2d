"""A URL in place of a path is refused with that reason, and no folder with the name of its scheme is made."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import emberline
import storage
import trainer
from serving import Server, ServerConfig
from serving.scoring import find_as_of
from storage.errors import ConfigError
from storage.paths import local_path
from storage.tiers.tiered import TieredStore
from trainer.datasets import write_wide
from trainer.publishing import Publisher

ROOT = Path(__file__).parents[2]
URL = "s3://bucket/models"
OTHER = "hdfs://host/models"
CONFIG = ROOT / "trainer/configs/movielens.yaml"
MODULE, SAMPLE = torch.nn.Embedding(8, 2), torch.zeros(4, 2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (URL, "here: expected a path of this machine, got 's3://bucket/models'; s3:// is not supported; mount"),
        (Path(URL), "here: expected a path of this machine, got 's3://bucket/models'; s3:// is not supported; mount"),
        ("https://host/x", "'https://host/x'; https:// is not supported"),
        ("Abfss://c@a/x", "'abfss://c@a/x'; abfss:// is not supported"),
        ("hdfs:///x", "hdfs:// is not supported"),
        ("file:///x/y", "'file:///x/y'; give the path itself: /x/y"),
        (Path("file:///x/y"), "'file:///x/y'; give the path itself: /x/y"),
    ],
    ids=str,
)
def test_a_url_is_refused_by_its_scheme(given: Path | str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        local_path(given, "here")
    assert message in str(refusal.value)
    assert refusal.value.field == "here"


@pytest.mark.parametrize("given", ["models", "/a/b", "./s3://x", "a:b/c", "s3:", "x/s3://y", "", "c:/x", "10:30/x"])
def test_every_other_path_is_taken_as_it_is(given: str) -> None:
    assert local_path(given, "here") == Path(given)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["loadtest", "--model", "m", "--data", __file__, "--json", URL],
        ["examples.quickstart", "--work", URL],
        ["examples.quickstart", "--wheel", URL],
    ],
    ids=lambda arguments: " ".join((arguments[0], arguments[-2])),
)
def test_programs_beside_the_command_refuse_it_too(arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode != 0
    # The command quotes the option, as click does; the other programs do not.
    assert f"{arguments[-2]}: expected a path of this machine, got 's3:" in done.stderr.replace("'--json'", "--json")
    assert "s3:// is not supported" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: emberline.publish(MODULE, SAMPLE, OTHER, name="m"),
        lambda: Publisher(MODULE, SAMPLE, OTHER, name="m"),
        lambda: emberline.train(CONFIG, __file__, output="run", repository=OTHER),
        lambda: emberline.update("run", __file__, repository=OTHER),
        lambda: Server(ServerConfig(model_repository=OTHER)),
    ],
)
def test_a_repository_is_a_path_or_in_a_known_store(
    call: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"hdfs://host/models: expected a URL of an object store, one of s3://"):
        call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: emberline.train(CONFIG, __file__, output=URL),
        lambda: emberline.train(URL, __file__, output="run"),
        lambda: emberline.update(URL, __file__, repository="models"),
        lambda: trainer.load_trained(URL),
        lambda: trainer.RowMemory(1 << 20, Path(URL)),
        lambda: write_wide(Path(URL), rows=1000),
        lambda: emberline.open_version(URL),
        lambda: storage.open_delta(URL),
        lambda: storage.list_deltas(URL),
        lambda: storage.next_sequence(URL),
        lambda: TieredStore.open(URL, [], dram_bytes=None),
        lambda: find_as_of(Path(URL)),
        *(
            lambda field=field: ServerConfig.model_validate(
                {"model_repository": "models", "tls_certificate": "c.pem", field: URL}
            )
            for field in (
                *("store", "access_file", "tls_certificate", "tls_key", "tls_client_ca"),
                "audit_log",
            )
        ),
    ],
)
def test_python_refuses_it_before_anything_is_made(
    call: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"expected a path of this machine, got 's3://bucket/models'"):
        call()
    assert list(tmp_path.iterdir()) == []

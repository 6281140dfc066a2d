"""The committed example: what an older version of this code published stays readable and gives the same scores."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from serving import Server, ServerConfig
from storage import open_version

REPOSITORY = Path(__file__).parents[2] / "model_repo"


@pytest.mark.parametrize("folder", sorted(REPOSITORY.glob("*/[0-9]*")), ids=lambda path: path.parent.name)
def test_every_digest_of_a_committed_version_holds(folder: Path) -> None:
    version = open_version(folder)
    assert version.golden().batch >= 256


def test_the_readme_s_request_is_answered_after_golden_replay(tmp_path: Path) -> None:
    line = next(text for text in (REPOSITORY / "README.md").read_text().splitlines() if "curl " in text)
    path, body = line.split("8000")[1].split(" ", 1)[0], line.split("-d '")[1].rstrip("'")
    config = ServerConfig(model_repository=REPOSITORY, store=tmp_path, http_port=0, grpc_port=0, metrics_port=0)
    with Server(config) as server:
        request = urllib.request.Request(f"http://127.0.0.1:{server.http_port}{path}", body.encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            predictions = json.loads(answer.read())["predictions"]
    assert len(predictions) == 1
    assert 0.0 < predictions[0] < 1.0

"""A version that someone changed is refused by name before torch sees it, in a server that stays up."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving import Server, ServerConfig
from tests.e2e.conftest import Served


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (self.marker,))


MEMBERS = [
    "data.pkl",
    "archive/data/sample_inputs/model.pt",
    "archive/data/weights/weight_0",
    "archive/data/constants/x.pt",
]


def files_of(version: Path) -> list[str]:
    return sorted(str(path.relative_to(version)) for path in version.rglob("*") if path.is_file())


def tampered_copies(version: Path, repository: Path, marker: Path) -> dict[str, str]:
    """Makes tampered copies of the version; returns model -> the file that was changed in its copy."""
    changed: dict[str, str] = {}

    def copy(model: str, file: str) -> Path:
        shutil.copytree(version, repository / model / "1")
        config = (version.parent / "config.pbtxt").read_text().replace(f'"{version.parent.name}"', f'"{model}"', 1)
        (repository / model / "config.pbtxt").write_text(config)
        changed[model] = file
        return repository / model / "1" / file

    for number, file in enumerate(files_of(version)):
        path = copy(f"flipped_{number}", file)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    payload = pickle.dumps(Payload(marker))
    for number, member in enumerate(MEMBERS):
        path = copy(f"planted_{number}", "dense.pt2")
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(member, payload)
    copy("replaced", "dense.pt2").write_bytes(_archive_of(payload))
    copy("extra", "extra.pkl").write_bytes(payload)
    return changed


def _archive_of(payload: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", payload)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def tampered(models: dict[str, Served], tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("tampered")
    version, marker = models["din"].version, place / "ran"
    changed = tampered_copies(version, place / "models", marker)
    shutil.copytree(version, place / "models" / "din" / "1")
    config = ServerConfig(
        model_repository=place / "models", store=place / "store", http_port=0, grpc_port=0, metrics_port=0
    )
    with Server(config) as server:
        yield f"http://127.0.0.1:{server.http_port}", changed, marker


def index_of(url: str) -> dict[str, dict[str, Any]]:
    request = urllib.request.Request(f"{url}/v2/repository/index", b"{}", {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return {entry["name"]: entry for entry in json.loads(answer.read())}


def test_every_changed_file_is_refused_by_its_name_and_nothing_ran(tampered: Any) -> None:
    url, changed, marker = tampered
    index = index_of(url)
    assert len(changed) > len(MEMBERS) + 5
    for model, file in changed.items():
        assert index[model]["state"] == "UNAVAILABLE", model
        assert file in index[model]["reason"], index[model]["reason"]
    assert not marker.exists()


def test_the_payload_of_this_test_would_run_if_it_were_unpickled(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()


def test_the_untouched_model_beside_them_is_served(tampered: Any) -> None:
    url, changed, _ = tampered
    urllib.request.urlopen(f"{url}/v2/models/din/ready", timeout=30).close()
    for model in changed:
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{url}/v2/models/{model}/ready", timeout=30)

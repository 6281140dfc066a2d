"""The metrics of a server as a whole: readiness as the health routes answer it, and the disk."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from serving import Server, ServerConfig
from tests.integration.serving.identity_models import write_identity


def test_readiness_and_the_disk_are_metrics(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_identity(repository, "echo", {"A": ("FP32", [4])})
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "manifest.json").write_text("{}")
    config = ServerConfig(
        model_repository=repository, store=tmp_path / "store", http_port=0, grpc_port=0, metrics_port=0
    )
    with Server(config) as server:
        samples = metrics(server)
        assert samples["emberline_ready", ""] == 0
        assert status(server, "/v2/health/ready") == 400
        assert samples["emberline_model_ready", "echo"] == 1
        assert samples["emberline_model_ready", "broken"] == 0
        room = shutil.disk_usage(tmp_path)
        assert samples["emberline_disk_bytes", ""] == room.total
        assert 0 < samples["emberline_disk_free_bytes", ""] <= room.total

        server.repository.unload("broken")
        assert metrics(server)["emberline_ready", ""] == (status(server, "/v2/health/ready") == 200)


def metrics(server: Server) -> dict[tuple[str, str], float]:
    """Returns the samples of the page by name and model."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    return {(each.name, each.labels.get("model", "")): each.value for family in families for each in family.samples}


def status(server: Server, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}{path}") as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code

"""The metrics page under Triton's names, as Prometheus reads it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from serving import Server
from serving.engine.statistics import FAILURE_REASONS, LATENCY_BUCKETS_MS
from tests.integration.serving.identity_models import write_identity

PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def page(server: Server, accept: str = "") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{server.metrics_port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.headers["content-type"].startswith(accept or "text/plain; version=0.0.4")
        return str(answer.read().decode())


def samples(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # This reader adds "_total" to every counter, which Triton's names do not have.
            is_tritons = family.type == "counter" and family.name.startswith("nv_")
            name = family.name if is_tritons else sample.name
            found[name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


def change(before: Samples, after: Samples, name: str, model: str = "ranker", **labels: str) -> float:
    key = (name, tuple(sorted({"model": model, "version": "1", **labels}.items())))
    return after[key] - before.get(key, 0.0)


def infer(server: Server, model: str, inputs: list[dict[str, object]], **parameters: str) -> int:
    body = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    try:
        url = f"http://127.0.0.1:{server.http_port}/v2/models/{model}/infer"
        with urllib.request.urlopen(url, body, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def ranker(rows: int) -> list[dict[str, object]]:
    return [
        {"name": "item", "shape": [rows, 1], "datatype": "INT64", "data": [3] * rows},
        {"name": "user", "shape": [1, 1], "datatype": "INT64", "data": [1]},
        {"name": "price", "shape": [rows, 2], "datatype": "FP32", "data": [0.5] * (2 * rows)},
    ]


def test_requests_count_under_tritons_names(server: Server) -> None:
    before = samples(page(server))
    for rows in (1, 4):
        assert infer(server, "ranker", ranker(rows)) == 200
    assert infer(server, "ranker", ranker(1), min_snapshot="latest") == 400
    after = samples(page(server))
    assert change(before, after, "nv_inference_request_success") == 2
    assert change(before, after, "nv_inference_request_failure", reason="OTHER") == 1
    for reason in set(FAILURE_REASONS) - {"OTHER"}:
        assert change(before, after, "nv_inference_request_failure", reason=reason) == 0
    assert change(before, after, "nv_inference_count") == 5
    assert change(before, after, "nv_inference_exec_count") == 2
    whole = change(before, after, "nv_inference_request_duration_us")
    parts = ["queue", "compute_input", "compute_infer", "compute_output"]
    assert 0 < whole < 20_000_000
    assert all(change(before, after, f"nv_inference_{part}_duration_us") >= 0 for part in parts)
    assert after["nv_inference_pending_request_count", (("model", "ranker"), ("version", "1"))] == 0


def test_the_histogram_is_cumulative_and_ends_at_the_count(server: Server) -> None:
    before = samples(page(server))
    assert infer(server, "ranker", ranker(1)) == 200
    after = samples(page(server))
    name = "nv_inference_first_response_histogram_ms"
    ends = [*map(str, LATENCY_BUCKETS_MS), "+Inf"]
    counts = [change(before, after, f"{name}_bucket", le=end) for end in ends]
    assert counts == sorted(counts)
    assert counts[-1] == change(before, after, f"{name}_count") == 1
    assert change(before, after, f"{name}_sum") > 0


def test_a_table_counts_under_its_own_name(server: Server) -> None:
    before = samples(page(server))
    ids: list[dict[str, object]] = [{"name": "ids", "shape": [3], "datatype": "INT64", "data": [1, 2, 3]}]
    assert infer(server, "ranker.item", ids) == 200
    after = samples(page(server))
    assert change(before, after, "nv_inference_request_success", model="ranker.item") == 1
    assert change(before, after, "nv_inference_count", model="ranker.item") == 3
    assert change(before, after, "nv_inference_request_success") == 0


def test_the_page_is_well_formed(server: Server) -> None:
    text = page(server)
    declared: list[str] = []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            declared.append(line.split()[2])
        elif not line.startswith("#"):
            family = line.split("{")[0].split(" ")[0]
            assert family == declared[-1] or family.rpartition("_")[0] == declared[-1], line
    assert len(declared) == len(set(declared))
    assert text.endswith("\n")


def test_openmetrics_says_the_same(server: Server) -> None:
    assert infer(server, "ranker", ranker(1)) == 200

    def told(families: Iterable[Metric]) -> Samples:
        """Returns the samples by names without "_total".

        The machine's metrics, disks and ages change at any time, and are left out.
        """
        return {
            (
                sample.name.removesuffix("_total"),
                tuple((key, plain(value)) for key, value in sorted(sample.labels.items())),
            ): sample.value
            for family in families
            for sample in family.samples
            if not (family.name.startswith("nv_cpu_") or family.name.endswith(("_age_seconds", "disk_free_bytes")))
        }

    def plain(value: str) -> str:
        return value.removesuffix(".0")

    before = told(text_string_to_metric_families(page(server)))
    for _ in range(100):
        openmetrics = page(server, "application/openmetrics-text")
        after = told(text_string_to_metric_families(page(server)))
        if before == after:  # Nothing was counted in between.
            break
        before = after
    assert openmetrics.endswith("# EOF\n")
    assert told(parse_openmetrics(openmetrics)) == before
    assert len(before) > 100


def test_every_metric_stands_in_the_documentation(server: Server) -> None:
    families = [family.name for family in text_string_to_metric_families(page(server))]
    names = [name for name in families if name.startswith("nv_")]
    assert len(names) >= 12
    for name in names:
        assert f"`{name}`" in PAGE, name


def test_a_full_queue_is_rejected(
    repository: Path, tmp_path: Path, start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    from serving.engine.batcher import RequestQueue
    from storage.errors import Overloaded

    def full(self: RequestQueue, request: object) -> None:
        raise Overloaded("full")

    with start_server(repository, tmp_path / "store") as running:
        monkeypatch.setattr(RequestQueue, "put", full)
        before = samples(page(running))
        assert infer(running, "ranker", ranker(1)) == 503
        after = samples(page(running))
        assert change(before, after, "nv_inference_request_failure", reason="REJECTED") == 1


def test_a_model_without_updates_counts_too(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    write_identity(tmp_path / "repository", "echo", {"a": ("FP32", [2])}, max_batch=4)
    with start_server(tmp_path / "repository", tmp_path / "store") as running:
        inputs: list[dict[str, object]] = [{"name": "in_a", "shape": [3, 2], "datatype": "FP32", "data": [0.5] * 6}]
        assert infer(running, "echo", inputs) == 200
        after = samples(page(running))
        assert change({}, after, "nv_inference_request_success", model="echo") == 1
        assert change({}, after, "nv_inference_count", model="echo") == 3

"""Triton's metrics: why requests failed, how long they took, and what the kernel says of the machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from serving.engine.requests import ReplacedError, RequestCancelled
from serving.engine.statistics import LATENCY_BUCKETS_MS, ModelStatistics, failure_reason
from serving.http.prometheus import encode, family, label_value
from serving.http.triton_metrics import MachineGauges
from storage.errors import DeadlineExceeded, InvalidInput, Overloaded, StoreError, Unavailable

# As Prometheus 3 asks.
OPENMETRICS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("error", "reason", "rejected"),
    [
        (Overloaded("full"), "REJECTED", 1),
        (ReplacedError(), "REJECTED", 1),
        (DeadlineExceeded("late"), "REJECTED", 0),
        (RequestCancelled(), "CANCELED", 0),
        (asyncio.CancelledError(), "CANCELED", 0),
        (RuntimeError("a bug"), "BACKEND", 0),
        (StoreError("a disk"), "BACKEND", 0),
        (InvalidInput("too large"), "OTHER", 0),
        (Unavailable("held by a rollback"), "OTHER", 0),
    ],
)
def test_every_failure_has_one_reason(error: BaseException, reason: str, rejected: int) -> None:
    assert failure_reason(error) == reason
    statistics = ModelStatistics()
    statistics.finished(5, error)
    assert statistics.failures[reason] == sum(statistics.failures.values()) == 1
    assert statistics.rejected == rejected
    assert sum(statistics.latencies) == 0


def test_a_time_is_in_the_bucket_whose_end_it_does_not_pass() -> None:
    statistics = ModelStatistics()
    for ns in (0, 1_000_000, 1_000_001, 5_000_000_000, 5_000_000_001):
        statistics.finished(ns)
    assert statistics.latencies == [2, 1, *[0] * (len(LATENCY_BUCKETS_MS) - 3), 1, 1]


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_label_values_may_be_anything(accept: str) -> None:
    name = 'a"b\\c\nd\ud800'
    page, _ = encode(lambda: [family("metric", "gauge", "A metric", [({"model": label_value(name)}, 1)])], accept)
    parse = parse_openmetrics if accept else text_string_to_metric_families
    (parsed,) = parse(page.decode())
    assert parsed.samples[0].labels == {"model": 'a"b\\c\nd?'}


def triton_families() -> list[Metric]:
    histogram = Metric("nv_times", "Times.", "histogram")
    histogram.samples = [
        Sample("nv_times_bucket", {"le": "1"}, 2),
        Sample("nv_times_bucket", {"le": "+Inf"}, 3),
        Sample("nv_times_sum", {}, 4.5),
        Sample("nv_times_count", {}, 3),
    ]
    return [
        family("nv_requests", "counter", "Requests", [({"model": "m"}, 7)]),
        family("emberline_rows_total", "counter", "Rows", [({}, 8)]),
        histogram,
    ]


@pytest.mark.parametrize(
    "accept", ["", "*/*", "text/plain", "application/openmetrics-text;version=x", "text/plain;version=\xe9"]
)
def test_the_text_format_has_counters_of_any_name(accept: str) -> None:
    page, content_type = encode(triton_families, accept)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert page.decode().splitlines() == [
        "# HELP nv_requests Requests.",
        "# TYPE nv_requests counter",
        'nv_requests{model="m"} 7',
        "# HELP emberline_rows_total Rows.",
        "# TYPE emberline_rows_total counter",
        "emberline_rows_total 8",
        "# HELP nv_times Times.",
        "# TYPE nv_times histogram",
        'nv_times_bucket{le="1"} 2',
        'nv_times_bucket{le="+Inf"} 3',
        "nv_times_sum 4.5",
        "nv_times_count 3",
    ]


def test_large_numbers_have_no_exponent_in_the_text_format() -> None:
    """perf_analyzer reads digits and a point; an exponent would make gigabytes a few bytes."""
    values = [80 * 2**30, 12_345_678.5, 0.25, 1e-7, float("inf"), 2**63]
    samples = [({"n": str(number)}, value) for number, value in enumerate(values)]
    page, _ = encode(lambda: [family("nv_bytes", "gauge", "Bytes", samples)], "")
    shown = [line.rpartition(" ")[2] for line in page.decode().splitlines()[2:]]
    assert shown == ["85899345920", "12345678.5", "0.25", "1e-07", "+Inf", "9223372036854775808"]


@pytest.mark.parametrize("escaping", ["dots", "values", "underscores", "allow-utf-8"])
@pytest.mark.parametrize("accept", ["text/plain;version=1.0.0", "application/openmetrics-text;version=1.0.0"])
def test_names_are_never_escaped(accept: str, escaping: str) -> None:
    page, _ = encode(triton_families, f"{accept};escaping={escaping}")
    assert page.decode().splitlines()[:2] == encode(triton_families, accept)[0].decode().splitlines()[:2]
    assert "nv_requests{" in page.decode()
    assert "emberline_rows_total 8" in page.decode()


def test_openmetrics_has_the_same_names() -> None:
    """Names stay the same where OpenMetrics allows no counter of such a name; the ends of buckets are floats."""
    page, content_type = encode(triton_families, OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = list(parse_openmetrics(page.decode()))
    assert [each.type for each in families] == ["unknown", "counter", "histogram"]
    found = {(sample.name, sample.labels.get("le")): sample.value for each in families for sample in each.samples}
    assert found == {
        ("nv_requests", None): 7,
        ("emberline_rows_total", None): 8,
        ("nv_times_bucket", "1.0"): 2,
        ("nv_times_bucket", "+Inf"): 3,
        ("nv_times_sum", None): 4.5,
        ("nv_times_count", None): 3,
    }


def test_the_machine_is_reported_as_the_kernel_counts(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3 4\n")
    (tmp_path / "meminfo").write_text("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  250 kB\n")
    machine = MachineGauges(tmp_path)

    def read() -> dict[str, float]:
        return {sample.name: sample.value for each in machine.metrics() for sample in each.samples}

    assert read() == {
        "nv_cpu_utilization": 0.2,
        "nv_cpu_memory_total_bytes": 1_024_000,
        "nv_cpu_memory_used_bytes": 768_000,
    }
    (tmp_path / "stat").write_text("cpu  175 0 100 725 100 0 0 0 0 0\n")
    assert read()["nv_cpu_utilization"] == 0.75
    assert read()["nv_cpu_utilization"] == 0  # no time has passed


@pytest.mark.parametrize("text", [None, "", "cpu\n", "MemTotal: many\n"])
def test_nothing_is_said_where_the_kernel_says_nothing(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "stat").write_text(text)
        (tmp_path / "meminfo").write_text(text)
    assert list(MachineGauges(tmp_path).metrics()) == []

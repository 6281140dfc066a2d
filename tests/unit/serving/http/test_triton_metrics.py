"""Triton's metrics: why requests failed, how long they took, and what the kernel says of the machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.engine.requests import ReplacedError, RequestCancelled
from serving.engine.statistics import LATENCY_BUCKETS_MS, ModelStatistics, failure_reason
from serving.http.prometheus import head, label_text
from serving.http.triton_metrics import MachineGauges
from storage.errors import DeadlineExceeded, InvalidInput, Overloaded, StoreError, Unavailable


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


def test_label_values_may_be_anything() -> None:
    name = 'a"b\\c\nd\ud800'
    lines: list[str] = []
    head(lines, "metric", "gauge", "A metric")
    text = "\n".join([*lines, f"metric{{{label_text(model=name)}}} 1", ""])
    (family,) = text_string_to_metric_families(text)
    assert family.samples[0].labels == {"model": 'a"b\\c\nd?'}


def test_the_machine_is_reported_as_the_kernel_counts(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3 4\n")
    (tmp_path / "meminfo").write_text("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  250 kB\n")
    machine = MachineGauges(tmp_path)

    def read() -> dict[str, float]:
        families = text_string_to_metric_families("\n".join([*machine.lines(), ""]))
        return {sample.name: sample.value for family in families for sample in family.samples}

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
    assert MachineGauges(tmp_path).lines() == []

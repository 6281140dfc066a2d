"""Figures of `emberline top` between two pages of metrics, and the frame that shows them."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from emberline.top.figures import figures_of
from emberline.top.frame import SORTS, Screen
from emberline.top.readings import Reading, Window

URL = "http://127.0.0.1:8000"


def page(
    *, answered: int, fast: int, dram: int, ssd: int = 0, absent: int = 0, waited_s: float = 0.0, models: int = 1
) -> str:
    """A page of metrics. fast: requests within 1 ms; the others took 1 to 2 ms."""
    lines = ["emberline_ready 1", "emberline_restarts_total 0", "nv_cpu_utilization 0.5"]
    for number in range(models):
        of = f'model="ranker-{number}",version="3"'
        arm = f'{of},arm="main"'
        lines += [
            f'emberline_model_ready{{model="ranker-{number}"}} 1',
            f"emberline_requests_success_total{{{arm}}} {answered}",
            f"emberline_requests_failure_total{{{arm}}} 0",
            f"emberline_rows_total{{{arm}}} {answered * 10}",
            f'emberline_stage_seconds_total{{{arm},stage="queue"}} {waited_s}',
            f'emberline_request_seconds_bucket{{{arm},le="0.001"}} {fast}',
            f'emberline_request_seconds_bucket{{{arm},le="0.002"}} {answered}',
            f'emberline_request_seconds_bucket{{{arm},le="+Inf"}} {answered}',
            f"emberline_queue_length{{{of}}} {number}",
            f"emberline_sessions{{{of}}} 2",
            f"emberline_snapshot_sequence{{{arm}}} 17",
            f"emberline_snapshot_published_unix_seconds{{{arm}}} 1764328000",
            f'emberline_ids_hit_total{{{of},tier="dram"}} {dram}',
            f'emberline_ids_hit_total{{{of},tier="ssd"}} {ssd}',
            f"emberline_ids_absent_total{{{of}}} {absent}",
            f"emberline_ids_unresolved_total{{{of}}} 0",
            f'emberline_tier_bytes{{{of},tier="dram"}} 1073741824',
            f'emberline_tier_bytes{{{of},tier="ssd"}} 107374182400',
            f'emberline_deltas_applied_total{{model="ranker-{number}"}} 4',
        ]
    return "\n".join(lines) + "\n"


def window(before: str | None, now: str, seconds: float = 2.0) -> Window:
    return Window(None if before is None else Reading.parse(before, 10.0), Reading.parse(now, 10.0 + seconds))


def test_rates_are_those_between_two_pages() -> None:
    before = page(answered=1000, fast=1000, dram=50_000)
    now = page(answered=1200, fast=1150, dram=50_900, ssd=80, absent=20, waited_s=0.1)
    found = figures_of(window(before, now))
    (model,) = found.models
    assert (found.ready, found.cpu_utilization, model.name, model.ready) == (True, 0.5, "ranker-0", True)
    assert (model.requests_per_second, model.failures_per_second, model.rows_per_second) == (100, 0, 1000)
    assert model.hit_rates == {"dram": 0.9, "ssd": 0.08}
    assert model.absent_rate == 0.02
    assert model.queue_ms == pytest.approx(0.5)
    assert (model.snapshot, model.published_unix_ms) == ("3.17", 1764328000000)
    assert (model.bytes["dram"], model.deltas_applied, model.sessions) == (1 << 30, 4, 2)


def test_quantiles_are_interpolated_within_their_bucket() -> None:
    found = figures_of(window(page(answered=0, fast=0, dram=0), page(answered=200, fast=100, dram=0))).models[0]
    assert found.p50_ms == pytest.approx(1.0)
    assert found.p99_ms == pytest.approx(1.98)


def test_the_first_page_has_no_rates() -> None:
    found = figures_of(window(None, page(answered=200, fast=100, dram=5))).models[0]
    assert (found.requests_per_second, found.p99_ms, found.queue_ms, found.hit_rates) == (None, None, None, {})
    assert found.snapshot == "3.17"


def test_a_server_that_restarted_counts_from_zero() -> None:
    found = figures_of(window(page(answered=900, fast=900, dram=9), page(answered=100, fast=100, dram=10))).models[0]
    assert found.requests_per_second == 50
    assert found.hit_rates["dram"] == 1.0


def test_a_frame_fits_80_by_24_with_any_number_of_models() -> None:
    for models in (0, 1, 5, 40):
        before, now = (page(answered=n, fast=n, dram=n * 1000, models=models) for n in (1_000_000, 1_123_456))
        screen = Screen(URL, figures_of(window(before, now)))
        for sort in SORTS:
            screen.sort = sort
            lines = [line.plain for line in screen.lines(80, 24)]
            assert len(lines) <= 24
            assert max(map(cell_len, lines)) <= 80
            assert f"sorted by {sort}" in lines[-1]
            assert sum("61,728" in line for line in lines) == min(models, 6)
        if models == 40:
            assert "and 34 more" in lines


def test_models_are_sorted_by_what_is_asked_for() -> None:
    screen = Screen(URL, figures_of(window(None, page(answered=1, fast=1, dram=1, models=3))), sort="queue")
    shown = [line.plain.split()[0] for line in screen.lines(80, 24) if line.plain.startswith("ranker-")]
    assert shown[:3] == ["ranker-2", "ranker-1", "ranker-0"]


def test_a_server_that_does_not_answer_leaves_the_last_figures() -> None:
    screen = Screen(URL, figures_of(window(None, page(answered=1, fast=1, dram=1))), trouble="no answer: refused")
    lines = [line.plain for line in screen.lines(80, 24)]
    assert " s ago" in lines[0]
    assert lines[1] == "trying again: no answer: refused"
    assert any(line.startswith("ranker-0") for line in lines)
    assert [line.plain for line in Screen(URL, trouble="no answer").lines(80, 24)][:2] == [
        URL,
        "trying again: no answer",
    ]

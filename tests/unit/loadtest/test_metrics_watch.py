"""Hit rates and snapshots are read from a server's metrics page, and shown in the report on the axis of the latency."""

from __future__ import annotations

import json
import math
import re
import threading
from typing import Any

import pytest

from emberline.loads.page import to_html
from emberline.loads.results import result_of
from loadtest.counts import SecondCounts
from loadtest.phases import Phase
from loadtest.records import PhaseRecord
from loadtest.runner import KindRun
from loadtest.scrape import Look, MetricsWatch, read_page, server_figures
from tests.support.html_page import Page

PAGE = """# TYPE emberline_ids_hit_total counter
emberline_ids_hit_total{{model="m",version="1",tier="dram"}} {dram}
emberline_ids_hit_total{{model="m",version="1",tier="overlay"}} 10
emberline_ids_hit_total{{model="m",version="1",tier="ssd"}} {ssd}
emberline_ids_hit_total{{model="other",version="1",tier="ssd"}} 1000000
# TYPE emberline_ids_absent_total counter
emberline_ids_absent_total{{model="m",version="1"}} 7
# TYPE emberline_queue_length gauge
emberline_queue_length{{model="m",version="1"}} 3
# TYPE emberline_snapshot_sequence gauge
emberline_snapshot_sequence{{model="m",version="1",arm="main"}} {sequence}
emberline_snapshot_sequence{{model="m",version="1",arm="canary"}} 99
"""


def look(when: float, dram: int, ssd: int, sequence: int) -> Look:
    return read_page(PAGE.format(dram=dram, ssd=ssd, sequence=sequence), "m", when)


def test_a_page_says_hits_by_tier_and_what_is_served() -> None:
    found = look(5.0, 100, 20, 4)
    assert found.hits == {"dram": 100, "overlay": 10, "ssd": 20}
    assert (found.absent, found.waiting, found.snapshot) == (7, 3, "1.4")
    assert read_page(PAGE.format(dram=1, ssd=1, sequence=1), "unknown", 0.0).snapshot == ""
    with pytest.raises(ValueError):
        read_page("<html>", "m", 0.0)


def test_hit_rates_are_those_between_two_looks_and_switches_are_found() -> None:
    found = server_figures([look(10, 0, 0, 0), look(12, 90, 10, 0), look(14, 120, 80, 1)], began=10.0)
    assert [entry["hit_rate"] for entry in found["series"]] == [0.9, 0.3]
    assert found["hit_rate"] == pytest.approx(120 / 200)
    assert found["switches"] == [{"second": 4.0, "from": "1.0", "to": "1.1"}]
    again = server_figures([look(10, 500, 0, 0), look(12, 3, 0, 0)], began=10.0)
    assert again["hit_rate"] is None, "the server was started again, so its counters went back"
    assert server_figures([], began=0.0)["hit_rate"] is None


def test_a_page_that_cannot_be_read_is_said() -> None:
    def refuse() -> str:
        raise OSError("Connection refused")

    with MetricsWatch(refuse, "m") as watch:
        pass
    assert watch.looks == []
    assert watch.trouble == "Connection refused"


def test_the_page_is_read_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.scrape.EVERY_S", 0.01)
    read, enough = [0], threading.Event()

    def fetch() -> str:
        read[0] += 1
        if read[0] >= 5:
            enough.set()
        return PAGE.format(dram=read[0], ssd=0, sequence=0)

    with MetricsWatch(fetch, "m") as watch:
        assert enough.wait(60)
    assert len(watch.looks) == read[0] >= 6


def test_looks_of_hours_are_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.scrape.EVERY_S", 0.0)
    monkeypatch.setattr("loadtest.scrape.MOST_LOOKS", 10)
    read, enough = [0], threading.Event()

    def fetch() -> str:
        read[0] += 1
        if read[0] >= 50:
            enough.set()
        return PAGE.format(dram=read[0], ssd=0, sequence=0)

    with MetricsWatch(fetch, "m") as watch:
        assert enough.wait(60)
    assert len(watch.looks) <= 11
    counts = [each.hits["dram"] for each in watch.looks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, read[0])


def run_with_a_switch() -> dict[str, Any]:
    record = PhaseRecord(Phase(6, (100, 100)), 1, 10.0, lasted=6.0)
    for second in range(7):
        counts = SecondCounts()
        if second < 6:
            for number in range(100):
                counts.latency.add(1.0 + number % 10)
        counts.answered = 100 if second < 6 else 3
        record.add(second, counts)
    watch = MetricsWatch(lambda: "", "m")
    watch.looks = [look(10, 0, 0, 0), look(12, 90, 10, 0), look(14, 120, 80, 1)]
    generator = {"name": "locust", "processes": 1, "connections": 4}
    return result_of(KindRun("grpc", [record]), watch, "", "rows & <ids>", 10, generator)


def test_the_report_marks_the_switch_on_every_plot_over_time() -> None:
    found = run_with_a_switch()
    assert [entry["second"] for entry in found["over_time"]] == list(range(6)), "the last answers are no second of load"
    text = to_html("m <at> http://x", {"grpc": found})
    Page(text)
    assert text.count('class="switch"') == 3
    assert "from then on 1.1 is served, before 1.0" in text
    assert "rows &amp; &lt;ids&gt;" in text
    assert not re.search(r"\b(nan|inf)\b", text)
    json.dumps(found)
    # The upright line stands at the same place in all three.
    places = set(re.findall(r'class="switch" x1="([0-9.]+)"', text))
    assert len(places) == 1


def test_a_run_without_an_answer_has_a_report() -> None:
    found = run_with_a_switch()
    found["over_time"], found["p99_ms"] = [], math.nan
    for phase in found["phases"]:
        phase.update(p50_ms=math.nan, p99_ms=math.nan, max_ms=math.nan)
    Page(to_html("m", {"grpc": found}))

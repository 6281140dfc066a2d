"""Compares what fleet_model computes with plain counting, real files, and the tables of docs/scaling.md."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import fleet_costs
from benchmarks.fleet_model import Load, Prices, costs, index_bytes, page_bytes
from benchmarks.fleet_world import head_with
from storage._pages import PageFile, PageWriter
from trainer.publishing.policy import DeltaPolicy

PAGE = Path(__file__).parents[3] / "docs" / "scaling.md"


def test_an_idle_fleet_costs_its_looks() -> None:
    month = costs(Load(replicas=100, deltas_per_hour=0))
    assert month.requests_month == pytest.approx(100 * (3600 + 63) * 730 * 0.0004 / 1000)
    slower = costs(Load(replicas=100, deltas_per_hour=0, poll_s=5))
    assert slower.requests_month == pytest.approx(month.requests_month * (720 + 63) / (3600 + 63))
    assert month.deltas_h == month.versions_h == month.head_h == 0


@pytest.mark.parametrize("every", [0, 4, 16])
@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_cumulative_deltas_hold_what_changed_since_the_version(every: int, overlap: float) -> None:
    """Counts the rows of each delta of a version, kind by kind, as the trainer's policy wants them."""
    load = Load(changed_rows=1000, cumulative_every=every, version_every=64, overlap=overlap)
    policy = DeltaPolicy(cumulative_every=every, version_every_deltas=64, version_at_share=0.0)
    rows, changed = 0.0, 0.0
    for deltas in range(64):
        changed += 1000 * (1 if deltas == 0 else 1 - overlap)
        lineage: Any = SimpleNamespace(newest=object(), deltas=deltas, version_bytes=1e12, delta_bytes=0)
        rows += changed if policy.next_kind(lineage) == "cumulative" else 1000
    assert policy.cumulative_every == every
    per_row = load.row_bytes + 9
    assert costs(load).mean_delta_bytes == pytest.approx((1 << 20) + rows / 64 * per_row)


@pytest.mark.parametrize("row_bytes", [20, 64, 256, 512, 1500, 4096])
def test_rows_take_on_disk_and_in_memory_what_page_files_take(row_bytes: int, tmp_path: Path) -> None:
    rows = 40_000
    writer = PageWriter(str(tmp_path / "x.pages"), table=0, row_bytes=row_bytes, row_type="fp32")
    writer.append(np.arange(rows, dtype=np.int64), np.zeros((rows, row_bytes), np.uint8))
    writer.finish()
    file = PageFile.open(str(tmp_path / "x.pages"))
    assert page_bytes(row_bytes) == pytest.approx(file.file_bytes / rows, rel=0.02)
    assert index_bytes(row_bytes) == pytest.approx(file.memory_bytes / rows, rel=0.1)


def test_head_json_has_the_bytes_that_are_computed() -> None:
    load = Load(deltas_per_hour=60, keep_deltas=32, cumulative_every=17)
    assert costs(load).head_bytes == pytest.approx(len(head_with(2, 48, 10).to_bytes()), rel=0.05)


def test_more_replicas_wait_longer_and_cost_more_each() -> None:
    few, many = costs(Load(replicas=10)), costs(Load(replicas=1000))
    assert many.served_s - few.served_s == pytest.approx(0.02 * (125 - 2))  # eight replica objects at a time
    assert many.gets_delta > 100 * few.gets_delta  # they look more often while they wait
    assert many.replica_ssd_bytes == few.replica_ssd_bytes


def test_reading_is_paid_by_the_byte() -> None:
    load = Load(replicas=10, deltas_per_hour=1, version_every=0, cumulative_every=0)
    found = costs(load, replace(Prices(), read_gb=0.02))
    moved = 730 * (found.head_h + 10 * found.delta_bytes) / 1e9
    assert found.read_month == pytest.approx(moved * 0.02)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--replicas", "3,many"], "is no list of numbers such as 3,100,1000"),
        (["--replicas", "0"], "replicas is 0, expected more than 0"),
        (["--overlap", "2"], "overlap is 2.0, expected 0 to 1"),
        (["--poll", "-1"], "poll_s is -1.0, expected more than 0"),
        (["--row-byte", "3"], "Did you mean --row-bytes?"),
    ],
)
def test_wrong_options_are_refused_by_name(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(fleet_costs.command, arguments)
    assert done.exit_code != 0
    assert words.lower() in (done.output + str(done.exception)).lower()


def test_the_tables_of_the_page_are_what_its_commands_print() -> None:
    text = PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"^ *(python -m benchmarks\.fleet_costs.*)$", text, re.M)
    printed = set()
    for command in commands:
        done = CliRunner().invoke(fleet_costs.command, shlex.split(command)[3:])
        assert done.exit_code == 0, done.output
        printed |= set(done.output.splitlines())
    tables = [part.splitlines() for part in re.findall(r"(?:^\|.*\n)+", text, re.M)]
    quoted = [table for table in tables if table[0].startswith(("| replicas ", "| used up "))]
    assert len(quoted) >= 2
    for table in quoted:
        assert [line for line in table if line not in printed] == []

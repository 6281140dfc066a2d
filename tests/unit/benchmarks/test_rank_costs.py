"""The computed scaling of ranks: what must hold of it, and the page that quotes it."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import rank_costs
from benchmarks.rank_costs import Training, different, step
from benchmarks.rank_world import IDS, TABLES
from benchmarks.traffic import Traffic
from loadtest.popularity import zipf

PAGE = Path(__file__).parents[3] / "docs" / "scaling.md"


def test_one_rank_is_one_process_and_sends_nothing() -> None:
    alone = step(Training(batch=4096), 1)
    assert alone.ms == pytest.approx(11.0 + 4096 * 6.6 / 1000)
    assert (alone.network_ms, alone.sent_bytes) == (0.0, 0.0)


def test_different_ids_are_those_of_drawn_batches() -> None:
    drawn = Traffic(zipf(IDS), seed=3).batches(20, 2048)
    mean = np.mean([len(np.unique(batch)) for batch in drawn])
    assert different(2048) == pytest.approx(TABLES * mean, rel=0.01)


def test_a_slower_network_takes_longer_and_sixteen_bits_less() -> None:
    base = Training()
    assert step(replace(base, gbit=1.0), 8).network_ms > step(base, 8).network_ms
    assert step(replace(base, latency_ms=1.0), 8).network_ms > step(base, 8).network_ms
    half = step(replace(base, value_bytes=2), 8)
    assert 0.5 < half.sent_bytes / step(base, 8).sent_bytes < 0.65
    for weak in (False, True):
        speeds = [step(replace(base, weak=weak), ranks).samples_s / ranks for ranks in (1, 2, 4, 8, 16, 32, 64)]
        assert speeds == sorted(speeds, reverse=True)


@pytest.mark.parametrize("arguments", [["--ranks", "2,many"], ["--ranks", "0"], ["--gbit", "0"], ["--batch", "3"]])
def test_wrong_options_are_refused(arguments: list[str]) -> None:
    done = CliRunner().invoke(rank_costs.command, arguments)
    assert done.exit_code != 0
    assert "expected" in (done.output + str(done.exception)).lower()


def test_the_tables_of_the_page_are_what_its_commands_print() -> None:
    text = PAGE.read_text(encoding="utf-8")
    printed = set()
    for command in re.findall(r"^ *(python -m benchmarks\.rank_costs.*)$", text, re.M):
        done = CliRunner().invoke(rank_costs.command, shlex.split(command)[3:])
        assert done.exit_code == 0, done.output
        printed |= set(done.output.splitlines())
    tables = [part.splitlines() for part in re.findall(r"(?:^\|.*\n)+", text, re.M)]
    quoted = [table for table in tables if table[0].startswith("| ranks ")]
    assert len(quoted) >= 2
    for table in quoted:
        assert [line for line in table if line not in printed] == []

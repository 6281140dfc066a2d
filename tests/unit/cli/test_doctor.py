"""`emberline doctor` says what the native module itself says, and what to do about what is missing."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from emberline.cli.doctor import command, examine, huge_pages
from storage._table import isa, isas, numa_nodes, set_isa

NAMES = ["emberline", "machine", "cores", "memory", "NUMA nodes", "huge pages", "instruction set", "cold reads"]


def test_the_report_names_what_the_store_depends_on() -> None:
    done = CliRunner().invoke(command, ["--json"])
    assert done.exit_code == 0
    report = json.loads(done.output)
    assert [*NAMES, "RocksDB", "torch", "GPU"] == list(report)[: len(NAMES) + 3]
    assert report["instruction set"]["value"].split()[0] == isa()
    assert report["NUMA nodes"]["value"].startswith(str(len(numa_nodes())))
    lines = CliRunner().invoke(command).output.splitlines()
    assert sum(not line.startswith("!") for line in lines) == len(report)


def test_it_follows_the_instruction_set_in_use() -> None:
    best = isa()
    try:
        set_isa("portable")
        finding = next(finding for finding in examine() if finding.name == "instruction set")
        assert finding.value.startswith("portable")
        assert all(name in finding.value for name in isas())
    finally:
        set_isa(best)


@pytest.mark.parametrize(
    ("modes", "value", "advice"),
    [
        ("always [madvise] never\n", "madvise: tables", ""),
        ("[always] madvise never\n", "always: tables", ""),
        ("always madvise [never]\n", "never", "echo madvise >"),
        ("", "unknown", ""),
    ],
)
def test_huge_pages_that_are_switched_off_are_told(modes: str, value: str, advice: str) -> None:
    finding = huge_pages(modes)
    assert finding.value.startswith(value)
    assert finding.advice.startswith(advice)
    assert bool(finding.advice) == bool(advice)

"""`python -m tests.repo.flaky` names a test that fails once in a while, says why, and ends with 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repo import flaky

TESTS = """
from pathlib import Path

import pytest


class TestOften:
    def test_every_second_time(self):
        count = Path(__file__).with_name("count")
        seen = int(count.read_text()) if count.exists() else 0
        count.write_text(str(seen + 1))
        assert seen % 2 == 0, "the second time"


@pytest.mark.parametrize("number", [1])
def test_never(number):
    pass
"""


def test_what_fails_once_is_named_and_the_slowest_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_planted.py").write_text(TESTS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    plain = ["--out", "reports", "test_planted.py", "-p", "no:cacheprovider"]
    assert flaky.main(["--runs", "2", "--busy", "1", *plain]) == 1
    often = "test_planted.py::TestOften::test_every_second_time"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("failed so far: nothing")
    assert lines[1].endswith(f"failed so far: {often}")
    assert lines[2] == "2 runs of 2 tests; 1 failed at least once"
    assert lines[3].startswith(
        "    1 times  test_planted.py::TestOften::test_every_second_time: AssertionError: the second"
    )
    assert lines[4] == "slowest 2: mean and longest, in seconds"
    assert {line.split()[-1] for line in lines[5:]} == {
        often,
        "test_planted.py::test_never[1]",
    }
    assert flaky.main(["--runs", "1", "--busy", "0", *plain, "-k", "never"]) == 0


def test_a_run_without_a_report_has_failed(tmp_path: Path) -> None:
    found = flaky.Runs()
    found.add(tmp_path / "none.xml", tmp_path / "log")
    assert found.failed == {"(a whole run)": 1}
    assert "no report" in found.reasons["(a whole run)"]

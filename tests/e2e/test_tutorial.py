"""Follows docs/tutorial.md word for word: every command, and what it promises to print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.followed_page import Step, broken_promises, files_of, follow, keeps, steps_of, why_not

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
LIMIT_S = 480.0


@pytest.mark.long
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
def test_the_tutorial_works_word_for_word(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    steps = steps_of(PAGE)
    assert len(steps) > 10
    assert set(files_of(PAGE)) == {"rank.py"}
    printed = follow(PAGE, tmp_path, LIMIT_S)
    broken = {step.commands: broken_promises(step, text) for step, text in zip(steps, printed, strict=True)}
    assert not {commands: lines for commands, lines in broken.items() if lines}, "\n".join(printed)


def test_a_promise_that_is_not_kept_is_found() -> None:
    step = Step("", ("trained ... rows", "AUC 0.70", "published models/clicks/1"))
    assert broken_promises(step, "trained 8,000 rows\nAUC 0.712 (...)\npublished models/clicks/1\n") == []
    assert broken_promises(step, "trained 8,000 rows\nAUC 0.80\npublished models/clicks/1\n") == [
        "AUC 0.70",
        "published models/clicks/1",
    ]
    assert not keeps("answered by snapshot 1.1", "answered by snapshot 2.0")

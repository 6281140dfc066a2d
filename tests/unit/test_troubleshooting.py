"""Every message that docs/troubleshooting.md quotes is in the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.quoted_messages import is_in_source, quoted

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


def test_the_page_quotes_many() -> None:
    assert len(quoted(PAGE)) > 40


@pytest.mark.parametrize("message", quoted(PAGE))
def test_a_quoted_message_is_in_the_source(message: str) -> None:
    assert is_in_source(message)


def test_a_message_that_nothing_says_is_found() -> None:
    assert not is_in_source("input ... was eaten by ...; feed it")
    assert not is_in_source("the store ... is open in another planet")
    assert is_in_source("...: exceeds maximum queue size of ...; try later")

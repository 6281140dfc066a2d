"""The checker of docstrings on small examples."""

from __future__ import annotations

import pytest

from tests.repo.docstrings import docstrings, is_tail, tails


@pytest.mark.parametrize(
    "text",
    [
        "Of a lookup.",
        "By table.",
        "As of every pipeline.",
        "What is so now.",
        "Whether it is there.",
        "None: they share none.",
        "\n    For people.\n    ",
        "of a lookup",
    ],
)
def test_a_tail_is_found(text: str) -> None:
    assert is_tail(text)


@pytest.mark.parametrize(
    "text",
    [
        "Table numbers that a lookup probes, in order.",
        "Returns whether it is there.",
        "Office hours.",
        "`of` is a class method.",
        "Forgets the rows.",
        "",
    ],
)
def test_a_sentence_is_not(text: str) -> None:
    assert not is_tail(text)


SOURCE = '''"""What a module is."""

class Table:
    """Rows by id."""

    rows: int
    """Of the table."""

    def find(self) -> None:
        """Finds
        rows."""
        name = """For no reason: this is a value, not a docstring."""

    async def wait(self) -> None:
        """
        Whose turn it is.
        """

key = lambda: "By name."
'''


def test_docstrings_of_modules_classes_functions_and_attributes() -> None:
    assert [line for line, _ in docstrings(SOURCE)] == [1, 4, 7, 10, 15]


def test_tails_with_their_lines() -> None:
    assert tails(SOURCE) == [(1, "What a module is."), (7, "Of the table."), (15, "Whose turn it is.")]

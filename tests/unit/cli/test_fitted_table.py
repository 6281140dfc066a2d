"""Tables fit the terminal, and a figure is never cut, whatever its width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from emberline.fitted_table import Column, FittedTable, elide, elided, whole, wrapping

ID = "0123456789abcdef0123456789abcdef"


def lines(table: FittedTable, width: int) -> list[str]:
    return [line.plain for line in table.lines(width)]


def snapshots() -> FittedTable:
    table = FittedTable(
        whole("snapshot"), whole("state"), "rows", "bytes", wrapping("published (UTC)"), "visible in", elided("id")
    )
    table.add_row("1.17", "served", "1,234,567", "123,456,789", "2026-11-28 07:45:51", "1,234 ms", ID)
    table.add_row("1.16", "retained", "1", "1", "2026-11-28 07:40:00", "", ID)
    return table


def test_without_a_bound_each_row_is_one_line_with_everything() -> None:
    assert lines(snapshots(), 10_000)[2:] == [
        f"1.17      served    1,234,567  123,456,789  2026-11-28 07:45:51    1,234 ms  {ID}",
        f"1.16      retained          1            1  2026-11-28 07:40:00              {ID}",
    ]


def test_in_80_columns_texts_wrap_and_ids_lose_their_middle() -> None:
    shown = lines(snapshots(), 80)
    assert max(map(cell_len, shown)) <= 80
    rows = [line for line in shown if "," in line]
    assert len(rows) == 1
    assert rows[0].split()[:4] == ["1.17", "served", "1,234,567", "123,456,789"]
    assert rows[0].endswith("cdef")
    assert "…" in rows[0]


def test_where_that_is_too_narrow_each_row_is_a_block() -> None:
    shown = lines(snapshots(), 40)
    assert max(map(cell_len, shown)) <= 40
    assert "bytes            123,456,789" in shown
    assert sum(line.startswith("snapshot ") for line in shown) == 2


def test_markup_and_line_ends_in_cells_are_text() -> None:
    table = FittedTable(wrapping("shape"), "n", title="[bold]of[/bold]")
    table.add_row("[-1, 3]\n[2]", "1")
    assert lines(table, 80) == ["[bold]of[/bold]", "shape        n", "──────────────", "[-1, 3] [2]  1"]


def test_columns_are_aligned_where_letters_are_wide() -> None:
    table = FittedTable(wrapping("model"), "rows")
    table.add_row("推荐", "7")
    table.add_row("abcd", "12")
    assert lines(table, 80)[2:] == ["推荐      7", "abcd     12"]


def test_a_row_of_another_length_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        FittedTable("a", "b").add_row("1")


@pytest.mark.parametrize("text", ["", "abc", ID, "推荐模型推荐模型推荐模型"])
@pytest.mark.parametrize("width", [3, 4, 9, 20])
def test_an_elided_text_fits_and_keeps_both_ends(text: str, width: int) -> None:
    shown = elide(text, width)
    assert cell_len(shown) <= width
    if cell_len(text) <= width:
        assert shown == text
    else:
        head, tail = shown.split("…")
        assert head
        assert text.startswith(head)
        assert text.endswith(tail)


words = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=14)
texts = st.lists(words, max_size=6).map(" ".join)
figures = st.integers(-(10**15), 10**15).map("{:,}".format)
kinds = st.sampled_from(["figure", "word", "text", "id"])


@given(st.data(), st.lists(st.tuples(words, kinds), min_size=1, max_size=7), st.integers(24, 140))
def test_figures_are_whole_at_any_width(data: st.DataObject, named: list[tuple[str, str]], width: int) -> None:
    columns = [Column(name, kind) for name, kind in named]  # type: ignore[arg-type]
    table = FittedTable(*columns)
    rows = []
    for _ in range(data.draw(st.integers(1, 3))):
        cells = [
            data.draw(figures if each.kind == "figure" else words if each.kind == "word" else texts) for each in columns
        ]
        table.add_row(*cells)
        rows.append(cells)
    shown = lines(table, width)
    together = "\n".join(shown)
    for cells in rows:
        for column, cell in zip(columns, cells, strict=True):
            if not column.is_flexible:
                assert cell in together
    # A block is as wide as its name and its figure have to be.
    least = max(cell_len(each.name) for each in columns) + 2
    longest = max(
        (cell_len(c) for r in rows for c, each in zip(r, columns, strict=True) if not each.is_flexible), default=0
    )
    assert max(map(cell_len, shown)) <= max(width, least + max(longest, 12))

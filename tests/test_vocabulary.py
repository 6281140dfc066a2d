"""The check for retired words finds them in names, paths and prose, and only there."""

from __future__ import annotations

import pytest

from tests.repo.vocabulary import RETIRED, Finding, find, findings, is_read


def test_retired_words_are_not_used() -> None:
    found = findings()
    assert not found, "\n".join(["python -m tests.repo.vocabulary", *map(str, found)])


def words(path: str, text: str) -> list[tuple[int, str]]:
    return [(finding.line, finding.word) for finding in find(path, text)]


@pytest.mark.parametrize("text", ["CardLookup", "card_lookup", "kCardRows", "a card's rows", "CARD_ROWS", "the-card"])
def test_a_word_is_found_in_every_kind_of_name(text: str) -> None:
    assert words("serving/a.py", f"one\n{text}") == [(2, "card")]


@pytest.mark.parametrize("text", ["discard", "wildcards", "cardinality", "planes", "indoors", "scaffolding", "GPU"])
def test_a_word_within_another_one_is_not(text: str) -> None:
    assert words("serving/a.py", text) == []


@pytest.mark.parametrize("text", ["late rows", "late_rows", "LateRows", "find_late_rows", "late-rows"])
def test_a_phrase_is_found_in_every_kind_of_name(text: str) -> None:
    assert words("serving/a.py", text) == [(1, "late rows")]


@pytest.mark.parametrize("text", ["late, rows", "rows that are late", "latest rows"])
def test_the_words_of_a_phrase_apart_are_not(text: str) -> None:
    assert words("serving/a.py", text) == []


def test_a_path_counts_as_line_0() -> None:
    assert words("serving/gpu/card.py", "") == [(0, "card")]


def test_a_word_with_an_ordinary_meaning_is_retired_where_it_had_another_one() -> None:
    assert words("storage/native/table/table.h", "the index's lines") == [(1, "lines")]
    assert words("serving/http/head.py", "a header is one line") == []
    assert words("serving/engine/replay.py", "the gate") == [(1, "gate")]
    assert words("serving/security/principals.py", "the gate") == []


def test_an_exception_covers_the_word_and_nothing_beside_it() -> None:
    assert words("cuda/tile.cuh", "lanes of a warp on a card") == [(1, "card")]
    assert words("storage/native/table/match_neon.cpp", "vgetq_lane_u64(low, 0)") == []
    assert words("storage/native/table/match_neon.cpp", "vgetq_lane_u64(lane, 0)") == [(1, "lane")]
    assert words("storage/native/table/table.h", "a row is one cache line, an entry a line") == [(1, "line")]
    assert words("docs/store.md", "[results](../benchmarks/results/2026-11-22-doors.txt)") == []


def test_history_is_not_read() -> None:
    assert not is_read("CHANGELOG.md")
    assert not is_read("benchmarks/results/2026-11-22-doors.txt")
    assert is_read("docs/live.md")


def test_a_finding_says_what_to_use() -> None:
    assert str(Finding("a.py", 3, "heir", "next base")) == "a.py:3: 'heir' is retired: use next base"


def test_every_form_is_in_one_rule_alone() -> None:
    forms = [(form, rule.where) for rule in RETIRED for form in rule.words]
    assert len(set(forms)) == len(forms)
    assert all(form == form.lower() and form.replace(" ", "").isalpha() for form, _ in forms)

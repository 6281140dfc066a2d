"""Intervals, the gaps between them, and the picture."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.timeline import Span, between, idle_share, merged, svg

SVG = "{http://www.w3.org/2000/svg}"
SPANS = [
    Span("stream 7", 'gemm<"a" & b>', "kernel", 10.0, 30.0),
    Span("stream 8", "Memcpy HtoD", "copy in", 20.0, 40.0),
    Span("stream 7", "Memcpy DtoH", "copy out", 60.0, 70.0),
]


def test_intervals_that_touch_are_one() -> None:
    assert merged(SPANS) == [(10.0, 40.0), (60.0, 70.0)]
    assert merged([]) == []
    assert idle_share(SPANS) == pytest.approx(20 / 60)
    assert idle_share([]) == 1.0
    assert idle_share(SPANS[:1]) == 0.0


def test_a_window_cuts_what_reaches_into_it() -> None:
    assert [(span.start, span.end) for span in between(SPANS, 25.0, 65.0)] == [(25.0, 30.0), (25.0, 40.0), (60.0, 65.0)]
    assert between(SPANS, 41.0, 59.0) == []


def test_the_picture_is_well_formed_and_has_a_row_for_each_stream() -> None:
    text = svg(SPANS, 'a title with <marks> & "quotes"')
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert 'a title with <marks> & "quotes"' in texts
    assert texts.count("stream 7") == texts.count("stream 8") == 1
    boxes = [each for each in root.iter(f"{SVG}rect") if each.find(f"{SVG}title") is not None]
    assert len(boxes) == 3
    said = [str(box.findtext(f"{SVG}title")) for box in boxes]
    assert 'gemm<"a" & b>: 20.0 us from 0.0' in said
    for box in boxes:
        assert 150 <= float(box.get("x", "0")) < 1100
        assert float(box.get("width", "0")) > 0


def test_a_picture_of_nothing_and_of_too_much_is_one_too() -> None:
    ElementTree.fromstring(svg([], "nothing"))
    many = [Span(f"stream {number % 9}", "k", "kernel", float(number), number + 0.5) for number in range(20_000)]
    text = svg(many, "much")
    ElementTree.fromstring(text)
    assert len(text) < 1_000_000

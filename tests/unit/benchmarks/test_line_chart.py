"""Lines over time as SVG: every point lies within the axes, and names are escaped."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from benchmarks.drift_world import DriftWorld
from benchmarks.line_chart import line_chart


def test_lines_lie_within_the_axes_and_names_are_shown() -> None:
    lines = {"a & b": [(0.1, 0.61), (1.0, 0.93)], "c": [(0.1, 0.70), (1.9, 0.71)]}
    picture = line_chart(lines, "title", x_name="days", y_name="AUC", marks=[1, 2])
    root = ElementTree.fromstring(picture)
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    for text in ("a & b", "c", "title", "days", "0.60", "0.95"):
        assert text in texts
    points = [
        tuple(map(float, point.split(",")))
        for line in re.findall(r'polyline points="([^"]+)"', picture)
        for point in line.split()
    ]
    assert len(points) == 4
    assert all(60 <= x <= 880 and 64 <= y <= 332 for x, y in points)
    assert points[1][1] < points[0][1]  # more is higher up


def test_tastes_turn_and_items_change() -> None:
    world = DriftWorld(day_s=100.0, begin=1000.0)
    first, second = world.clicks(2000, 1000.0), world.clicks(2000, 1100.0)
    items = [set(clicks.table.column("item").to_pylist()) for clicks in (first, second)]
    assert len(items[0] & items[1]) / len(items[0]) == pytest.approx(0.5, abs=0.05)
    for clicks in (first, second):
        assert clicks.table.column("clicked").to_numpy(zero_copy_only=False).mean() == pytest.approx(
            clicks.probabilities.mean(), abs=0.03
        )

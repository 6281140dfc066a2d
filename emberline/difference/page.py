"""The difference of two snapshots as one HTML page."""

from __future__ import annotations

from html import escape

from emberline.difference.report import SnapshotDifference, grids, score_lines
from emberline.pages.parts import document, grid, key_figures


def to_html(found: SnapshotDifference) -> str:
    """Returns the page as text, to be written as UTF-8."""
    differing = sum(not table.is_same for table in found.tables)
    figures = [
        ("tables that differ", f"{differing} of {len(found.tables)}", ""),
        ("rows that differ", f"{sum(t.added + t.removed + t.changed for t in found.tables):,}", ""),
        ("weights that differ", f"{len(found.weights)} of {len(found.weights) + found.same_weights}", ""),
        *((f"{score.output} moved by", f"{score.mean:.4g}", "mean over the requests") for score in found.scores),
    ]
    lines = [line for score in found.scores for line in score_lines(score)] + found.not_compared
    notes = "".join(f"<li>{escape(line)}</li>" for line in lines)
    body = key_figures(figures) + (f"<ul class=notes>{notes}</ul>" if notes else "")
    body += "".join(grid(each.title, each.names, each.rows, wide=True) for each in grids(found) if each.rows)
    return document("What changed", f"{found.before} and {found.after}", (), body)

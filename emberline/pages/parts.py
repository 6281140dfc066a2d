"""Parts of a page: the document, key figures, tables, and plots with their captions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from emberline.pages.style import STYLE
from emberline.version import __version__


def document(heading: str, title: str, links: Iterable[str], body: str, note: str = "") -> str:
    """Returns the page as text, to be written as UTF-8. links: ids of sections. body: HTML. note: at the end."""
    listed = "".join(f'<li><a href="#{escape(each)}">{escape(each)}</a></li>' for each in links)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<header><h1>{escape(heading)}</h1><p>{escape(title)}</p></header><main>"
        f"<nav><ul>{listed}</ul></nav>{body}</main>"
        f"<footer>Made by emberline {escape(__version__)}.{f' {escape(note)}' if note else ''}</footer></body></html>\n"
    )


def key_figures(entries: Iterable[tuple[str, str, str]]) -> str:
    """Returns figures side by side: what they are, their values, and notes."""
    inner = "".join(
        f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd><small>{escape(note)}</small></div>"
        for what, value, note in entries
    )
    return f'<dl class="facts">{inner}</dl>'


def figure(title: str, plot: str, caption: str, legend: str = "", *, wide: bool = False) -> str:
    """Returns a plot with its title. plot, caption, legend: HTML. wide: it has a line of the page for itself."""
    above = f'<p class="legend">{legend}</p>' if legend else ""
    return (
        f"<figure{' class=wide' if wide else ''}><h3>{escape(title)}</h3>{above}{plot}"
        f"<figcaption>{caption}</figcaption></figure>"
    )


def grid(title: str, names: Sequence[str], rows: Iterable[Sequence[str]], *, wide: bool = False) -> str:
    """Returns a table."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="grid{" wide" if wide else ""}"><h3>{escape(title)}</h3><div class="scroll"><table><thead>'
        f"<tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>"
    )

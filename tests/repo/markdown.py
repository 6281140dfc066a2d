"""Prose in Markdown files keeps to 120 columns. Tables, code and lines that cannot be broken are exempt.

python -m tests.repo.markdown           # lists the lines that are too long, ends with 1 when there are some
python -m tests.repo.markdown --wrap    # wraps their paragraphs, from the first long line on
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

COLUMNS = 120
ROOT = Path(__file__).parents[2]

_ITEM = re.compile(r"^( *(?:> ?)*)((?:[-*+]|\d+[.)]) +)?")
# Never broken: code, links, images.
_WORD = re.compile(r"(?:`+[^`]*`+|!?\[[^\]]*\]\([^)]*\)|[^\s`\[]|\[)+")
# At the beginning of a line these would begin a list, a heading, a quotation or a table.
_MARKER = re.compile(r"(?:[-+*]|\d+[.)])$|[#>|]|=+$|-+$")


def markdown_files() -> list[Path]:
    """Returns the files that git knows or would add, without those that a program writes."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "*.md"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    paths = [ROOT / name for name in names if name and (ROOT / name).is_file()]
    return [path for path in paths if not is_generated(path.read_text(encoding="utf-8"))]


def is_generated(text: str) -> bool:
    """Returns whether a program writes the file, which says so in a comment."""
    return "<!-- Written by" in text


def wrapped(text: str) -> str:
    """Returns the text with every paragraph wrapped that has a line of more than COLUMNS columns."""
    out: list[str] = []
    for paragraph, is_prose in _paragraphs(text.split("\n")):
        out += _wrap(paragraph) if is_prose else paragraph
    return "\n".join(out)


def long_lines(text: str) -> list[int]:
    """Returns the line numbers, from 1 on, at which `wrapped` would begin to wrap a paragraph."""
    numbers: list[int] = []
    line = 1
    for paragraph, is_prose in _paragraphs(text.split("\n")):
        after = _wrap(paragraph) if is_prose else paragraph
        if after != paragraph:
            numbers.append(line + next(i for i, (a, b) in enumerate(zip(after, paragraph, strict=False)) if a != b))
        line += len(paragraph)
    return numbers


def _paragraphs(lines: list[str]) -> Iterator[tuple[list[str], bool]]:
    """Splits into paragraphs and items of prose (True), and everything else, a line at a time (False)."""
    fence = ""
    comment = False
    prose: list[str] = []
    after_blank = True
    in_list = False
    for line in lines:
        text = line.strip()
        opens = re.match(r"(`{3,}|~{3,})", text)
        is_code = bool(fence or opens)
        if fence:
            fence = "" if text.startswith(fence) and not text.strip("`~") else fence
        elif opens:
            fence = opens[1]
        comment = comment or (not is_code and text.startswith("<!--"))
        indented = line.startswith("    ") and not in_list and (after_blank or not prose)
        is_item = not indented and bool(re.match(r"(?:> ?)*(?:[-*+]|\d+[.)]) +\S", text))
        if is_code or comment or indented or not text or text[0] in "#|<":
            if prose:
                yield prose, True
                prose = []
            yield [line], False
            comment = comment and "-->" not in text
        elif is_item and prose:
            yield prose, True
            prose = [line]
        else:
            prose.append(line)
        in_list = is_item or (in_list and (not text or line.startswith(" ") or not after_blank))
        after_blank = not text
    if prose:
        yield prose, True


def _wrap(paragraph: list[str]) -> list[str]:
    first = next((i for i, line in enumerate(paragraph) if len(line) > COLUMNS), None)
    if first is None or any(line.endswith(("  ", "\\")) for line in paragraph):
        return paragraph
    start = _ITEM.match(paragraph[0])
    assert start is not None
    hanging = start[1] + " " * len(start[2] or "")
    if len(paragraph) > 1 and ">" not in hanging:
        hanging = re.match(r" *", paragraph[1])[0]  # type: ignore[index]
    prefix = start[0] if first == 0 else hanging
    text = " ".join(
        line.removeprefix(start[0] if i + first == 0 else hanging).strip() for i, line in enumerate(paragraph[first:])
    )
    words = _WORD.findall(text)
    pieces: list[str] = []  # words that stay together
    for word in words:
        if pieces and _MARKER.match(word):
            pieces[-1] += " " + word
        else:
            pieces.append(word)
    lines: list[str] = []
    current = prefix + pieces[0]
    for piece in pieces[1:]:
        if len(current) + 1 + len(piece) <= COLUMNS:
            current += " " + piece
        else:
            lines.append(current)
            current = hanging + piece
    return [*paragraph[:first], *lines, current]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wrap", action="store_true", help="rewrites the files")
    wrap = parser.parse_args().wrap
    code = 0
    for path in markdown_files():
        text = path.read_text(encoding="utf-8")
        if wrap:
            path.write_text(wrapped(text), encoding="utf-8")
            continue
        for number in long_lines(text):
            print(f"{path.relative_to(ROOT)}:{number}: over {COLUMNS} columns")
            code = 1
    return code


if __name__ == "__main__":
    raise SystemExit(main())

"""Writes docs/gpu-figures.md: predictions from benchmarks/gpu_assumptions.py, measured figures from result files.

python -m benchmarks.gpu_figures               # writes the page
python -m benchmarks.gpu_figures --check       # ends with 1 where the page is not what would be written
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_assumptions import SHEETS, TOLD
from benchmarks.gpu_measured import Result, markdown, read_results
from benchmarks.gpu_prediction import lines
from benchmarks.gpu_row_prediction import row_lines

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gpu-figures.md"
TEMPLATE = Path(__file__).parent / "data" / "gpu-figures.md.in"


def page(results: Sequence[Result]) -> str:
    """The whole of it."""
    names = [sheet.name for sheet in SHEETS]
    told = [f"| {what} | {value} | {whence} |" for what, value, whence in TOLD]
    gpus = ", ".join(dict.fromkeys(result.gpu for result in results))
    return TEMPLATE.read_text(encoding="utf-8").format(
        state=f"Measured on {gpus}." if gpus else "No GPU has run this yet.",
        sessions=markdown(lines(), ["predicted"], "by", results),
        rows=markdown(row_lines(), names, f"by ({names[0]})", results),
        assumptions="\n".join(["| assumption | value | source |", "|---|---|---|", *told]),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    text = page(read_results())
    if not options.check:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE.relative_to(ROOT)} is not what its sources make: python -m benchmarks.gpu_figures")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

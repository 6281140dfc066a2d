"""Writes docs/gpu-figures.md: predictions from `prediction_assumptions`, measured figures from result files.

python -m benchmarks.gpu.figures               # writes the page
python -m benchmarks.gpu.figures --check       # ends with 1 if the page differs from what would be written
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.measured import Result, markdown, read_results
from benchmarks.gpu.prediction_assumptions import SHEETS, TOLD
from benchmarks.gpu.prediction_rows import row_lines
from benchmarks.gpu.prediction_sessions import lines

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gpu-figures.md"
TEMPLATE = Path(__file__).with_name("figures.md.in")


def page(results: Sequence[Result]) -> str:
    """Returns the whole page."""
    names = [sheet.name for sheet in SHEETS]
    told = [f"| {what} | {value} | {whence} |" for what, value, whence in TOLD]
    gpus = ", ".join(dict.fromkeys(result.gpu for result in results))
    return TEMPLATE.read_text(encoding="utf-8").format(
        state=f"Measured on {gpus}." if gpus else "Prediction, not measured: no GPU has run this yet.",
        sessions=markdown(lines(), ["predicted"], "by", results),
        rows=markdown(row_lines(), names, f"by ({names[0]})", results),
        assumptions="\n".join(["| assumption | value | source |", "|---|---|---|", *told]),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    text = page(read_results())
    if not options.check:
        PAGE.write_text(text, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE.relative_to(ROOT)} is not what its sources make: python -m benchmarks.gpu.figures")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs every benchmark of the store, one after the other, and writes one text file with the date and the machine.

    python -m benchmarks.all_store --out benchmarks/results/DATE-store.txt      # at most 35 minutes
    python -m benchmarks.all_store --out build/rough.txt --quick                # about three

Each benchmark runs in a process of its own within a time bound. One that exceeds its bound is ended as Ctrl-C would end
it, and the rows that it has measured so far count. The same rows are written as JSON beside the text file, to
FILE.json: {benchmark: its rows}. FBGEMM and TorchRec are installed under build/ first if they are not there. The exit
code is 1 when a target is missed or a benchmark did not end well.
"""

from __future__ import annotations

import argparse
import datetime
import json
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import machine_line
from benchmarks.peers import PeerMissingError, environment

ROOT = Path(__file__).parent.parent
# Time bound of each benchmark in seconds; together below 35 minutes. A benchmark begins nothing new after BEGIN_NOTHING
# of it.
BOUNDS_S = {"lookup": 820.0, "pooling": 350.0, "ssd": 330.0, "tiered": 330.0, "update": 60.0, "bulk_load": 100.0}
BEGIN_NOTHING = 0.85
QUICK_BOUND_S = 120.0
# Seconds that a benchmark gets to print what it has.
GRACE_S = 15.0


@dataclass(frozen=True)
class Ended:
    """The result of one benchmark's process."""

    name: str
    #: What it printed.
    text: str
    #: What it measured.
    rows: list[dict[str, Any]]
    #: How it ended, in a word or two.
    how: str
    seconds: float


def run_one(name: str, folder: Path, *, quick: bool, bound_s: float) -> Ended:
    """Runs one benchmark within its bound."""
    rows_file = folder / f"{name}.json"
    command = [sys.executable, "-m", "benchmarks", name, "--json", str(rows_file)]
    command += ["--quick"] if quick else ["--max-seconds", f"{bound_s * BEGIN_NOTHING:g}"]
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, text=True)
        how = "complete"
        try:
            process.wait(timeout=bound_s)
        except subprocess.TimeoutExpired:
            how = f"ended after {bound_s:g} s"
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=GRACE_S)
            except subprocess.TimeoutExpired:
                how = f"killed after {bound_s + GRACE_S:g} s"
                process.kill()
                process.wait()
        except KeyboardInterrupt:
            process.wait(timeout=GRACE_S)
            raise
        output.seek(0)
        text = output.read()
    rows = json.loads(rows_file.read_text(encoding="utf-8")) if rows_file.exists() else []
    if how == "complete" and not rows:
        how = f"failed with {process.returncode}"
    return Ended(name, text, rows, how, time.monotonic() - began)


def summary(ended: list[Ended]) -> list[str]:
    """Returns the claims that have a target, and names those that miss it."""
    judged = [(one.name, row) for one in ended for row in one.rows if row["target"] is not None]
    missed = [(name, row) for name, row in judged if not row["holds"]]
    lines = [f"{len(judged) - len(missed)} of {len(judged)} targets are reached."]
    lines += [
        f"  missed: {name}: {row['claim']} / {row['against']}: {row['ratio']:.3f}, target {row['target']:.3f}"
        for name, row in missed
    ]
    lines += [f"  {one.name}: {one.how}, {len(one.rows)} rows" for one in ended if one.how != "complete"]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the text file to write")
    parser.add_argument("--quick", action="store_true", help="rough figures, in about three minutes")
    parser.add_argument("--only", nargs="+", choices=list(BOUNDS_S), help="some of them")
    options = parser.parse_args()
    if not options.out.parent.is_dir():
        parser.error(f"--out: no folder {options.out.parent}")
    install_peers()

    ended: list[Ended] = []
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name in options.only or BOUNDS_S:
                print(f"{name} ...", flush=True)
                bound = QUICK_BOUND_S if options.quick else BOUNDS_S[name]
                ended.append(run_one(name, Path(folder), quick=options.quick, bound_s=bound))
                print(f"{name}: {ended[-1].how} in {ended[-1].seconds:.0f} s", flush=True)
    except KeyboardInterrupt:
        print("interrupted; what is complete is written", file=sys.stderr)
    write(options.out, ended, quick=options.quick, seconds=time.monotonic() - began)
    bad = any(one.how != "complete" for one in ended) or len(ended) < len(options.only or BOUNDS_S)
    missed = any(row["holds"] is False for one in ended for row in one.rows)
    print("\n".join(summary(ended)))
    if bad or (missed and not options.quick):
        raise SystemExit(1)


def install_peers() -> None:
    """Installs FBGEMM and TorchRec, if they are available."""
    try:
        environment.python()
    except PeerMissingError:
        print("installing FBGEMM and TorchRec under build/ ...", flush=True)
        try:
            environment.make()
        except PeerMissingError as missing:
            print(f"they cannot be had here: {missing}", flush=True)


def write(path: Path, ended: list[Ended], *, quick: bool, seconds: float) -> None:
    """Writes the text, and the rows as JSON beside it."""
    head = [
        f"The store beside the machine's limits and its peers, {datetime.date.today().isoformat()}",
        machine_line(),
        f"python -m benchmarks.all_store{' --quick' if quick else ''}: {seconds:.0f} s",
        *(["Quick forms: rough figures."] if quick else []),
        *summary(ended),
    ]
    parts = ["\n".join(head), *(one.text.rstrip() for one in ended)]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    rows = {one.name: one.rows for one in ended}
    path.with_suffix(path.suffix + ".json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

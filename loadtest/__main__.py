"""`python -m loadtest`: runs the locust users headless, one kind after the other, each in a process of its own."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from loadtest.command import KINDS, locust_command
from storage.data import find_files
from storage.errors import EmberlineError

EXAMPLE = """example:
  python -m loadtest --model movielens --data build/movielens/test.parquet --seconds 10 --users 4 --json loadtest.json

with locust's web page instead:
  locust -f loadtest/locustfile.py --host http://127.0.0.1:8000 --model movielens --data build/movielens/test.parquet
"""


def local_path(text: str) -> Path:
    """Parses a path of this machine. Raises argparse's error for a URL."""
    url = re.match(r"([A-Za-z][A-Za-z0-9+.-]+)://", text)
    if url is not None:
        raise argparse.ArgumentTypeError(
            f"expected a path of this machine, got {text!r}; {url[1].lower()}:// is not supported; mount the "
            "storage or copy the file, and give the local path"
        )
    return Path(text)


def run_kind(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Runs one kind of user for the given seconds and returns its figures.

    Raises RuntimeError when locust could not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder, "figures.json")
        command = locust_command(
            kind,
            url=options.url,
            grpc=options.grpc,
            model=options.model,
            data=options.data,
            figures=figures,
            seconds=options.seconds,
            users=options.users,
            items=options.items,
            seed=options.seed,
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.seconds + 120, check=False)
        if not figures.is_file():
            raise RuntimeError(f"locust ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
        content: dict[str, Any] = json.loads(figures.read_text())
        if content["requests"] == 0:
            first = done.stderr.strip().splitlines()[:1]
            raise RuntimeError(f"not one request was sent. {''.join(first)}")
        return content


def main() -> None:
    """Parses the command line, runs, prints a table. Exit code 1 when a request failed."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest",
        description="Closed-loop load on a running server: every user sends its next request when the answer is there.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, help="name of the model to ask")
    parser.add_argument(
        "--data",
        required=True,
        help="file, folder, pattern or URL of rows (Parquet, CSV, TSV, ORC, Arrow, libsvm) with the columns that the "
        "model was trained on",
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="HTTP address (default %(default)s)")
    parser.add_argument("--grpc", default="127.0.0.1:8001", help="gRPC address (default %(default)s)")
    parser.add_argument(
        "--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), help="which users (default: all)"
    )
    parser.add_argument("--users", type=int, default=4, help="users at a time (default %(default)s)")
    parser.add_argument("--items", type=int, default=32, help="rows a request (default %(default)s)")
    parser.add_argument("--seconds", type=int, default=10, help="seconds for each kind (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed sends the same requests")
    parser.add_argument("--json", type=local_path, help="write the figures here too")
    options = parser.parse_args()
    try:
        find_files(options.data)
    except EmberlineError as error:
        parser.error(f"--data: {error}")
    for name in ("users", "items", "seconds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: expected 1 or more, got {getattr(options, name)}")

    results: dict[str, dict[str, Any]] = {}
    print(f"{'users':<12} {'requests':>9} {'failed':>7} {'req/s':>9} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}")
    for kind in options.kinds:
        try:
            found = results[kind] = run_kind(kind, options)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            sys.exit(f"{kind}: {error}")
        print(
            f"{kind:<12} {found['requests']:>9,} {found['failures']:>7,} {found['requests_per_second']:>9,.0f} "
            f"{found['p50_ms']:>8.2f} {found['p99_ms']:>8.2f} {found['max_ms']:>8.2f}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    if any(found["failures"] for found in results.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()

"""Shows where the processor time of a running server goes: a flame graph, and microseconds of a request by library.

    python -m benchmarks.flame PID --url http://127.0.0.1:8000 --seconds 10 --svg build/flame.svg

`perf` (Debian's package linux-perf) samples all processes of the server, the kernel included, on the processor's clock,
while something else sends requests. PID is the server's first process, ours or Triton's. With --url, the server's
statistics say how many requests were answered meanwhile. Each graph begins with the process and the library that a
sample is in. Libraries are built without frame pointers, so that callers are missing where perf cannot find them, and
Python functions are all the interpreter's: `py-spy record --native --pid PID` names them, and stops the server for each
sample.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.flame_graph import Stack, flame_graph
from benchmarks.generators import program
from benchmarks.processes import family

HERTZ = 499
_FRAME = re.compile(r"^\s+[0-9a-f]+ (.*) \((.*)\)$")
_OFFSET = re.compile(r"\+0x[0-9a-f]+$")
_KERNEL = "[kernel"
# What a kernel function on the stack says about the work; the first that matches.
_KERNEL_WORK = (
    ("sockets", re.compile(r"^(tcp_|sock_|inet_|__sys_(send|recv)|unix_|ip_|net_rx|skb)")),
    ("futex", re.compile(r"futex")),
    ("epoll", re.compile(r"^(do_epoll|ep_|eventfd)")),
    ("page faults", re.compile(r"page_fault")),
    ("scheduler", re.compile(r"^(schedule|__schedule)")),
)
_UNKNOWN = "[unknown]"
_LEAST_SHARE = 0.005
_FUNCTIONS = 25


def record(pids: Iterable[int], seconds: float, data: Path) -> None:
    """Samples processes for some seconds into perf's file. Raises PeerMissingError without perf."""
    command = [
        *(str(program("perf", "linux-perf")), "record", "-q", "-e", "cpu-clock", "-F", str(HERTZ), "-g"),
        *("-p", ",".join(map(str, pids)), "-o", str(data), "--", "sleep", str(seconds)),
    ]
    subprocess.run(command, check=True, timeout=seconds + 60)


def stacks(data: Path) -> Iterator[tuple[int, Stack]]:
    """Yields the process and the stack of each sample, the outermost function first."""
    command = [str(program("perf", "linux-perf")), "script", "-i", str(data), "-F", "pid,ip,sym,dso"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    yield from parse(printed.splitlines())


def parse(lines: Iterable[str]) -> Iterator[tuple[int, Stack]]:
    """Yields the process and the stack of each sample of `perf script`, the outermost function first."""
    pid, frames = 0, list[tuple[str, str]]()
    for line in lines:
        found = _FRAME.match(line)
        if found is not None:
            frames.append((_OFFSET.sub("", found[1]), library(found[2])))
        elif line.strip():
            pid = int(line.split()[0])
        elif frames:
            yield pid, tuple(reversed(frames))
            frames = []
    if frames:
        yield pid, tuple(reversed(frames))


def library(path: str) -> str:
    """Returns the short name of the file that a function is in."""
    return _KERNEL if path.startswith(_KERNEL) else path.rsplit("/", 1)[-1].split(".so")[0].split(".cpython")[0]


def group(stack: Stack) -> str:
    """Returns what a sample counts for: the library that it is in, or what the kernel works on."""
    if stack[-1][1] != _KERNEL:
        return stack[-1][1]
    kernel = [name for name, of in stack if of == _KERNEL]
    work = next((word for word, pattern in _KERNEL_WORK if any(map(pattern.search, kernel))), "other")
    return f"kernel: {work}"


def answered(url: str) -> int:
    """Returns how many requests a server has answered, over all its models."""
    with urllib.request.urlopen(f"{url}/v2/models/stats", timeout=10) as answer:
        return sum(int(each["inference_stats"]["success"]["count"]) for each in json.load(answer)["model_stats"])


def table(samples: list[tuple[int, Stack]], seconds: float, requests: int | None) -> Iterator[str]:
    """Yields a line for each process and for what it works on: its share of a core, or microseconds of a request."""
    scale, unit = (1e6 / HERTZ / requests, "us") if requests else (100 / HERTZ / seconds, "% of a core")
    for pid, count in Counter(pid for pid, _ in samples).most_common():
        yield f"process {pid}: {count * scale:.1f} {unit}"
        for name, part in Counter(group(stack) for of, stack in samples if of == pid).most_common():
            if part >= _LEAST_SHARE * count:
                yield f"  {part * scale:8.1f} {unit}  {100 * part / count:5.1f} %  {name}"
    yield f"the {_FUNCTIONS} functions that take most, without what they call:"
    for (name, of), part in Counter(stack[-1] for _, stack in samples).most_common(_FUNCTIONS):
        yield f"  {part * scale:8.1f} {unit}  {of}: {name[:80]}"


def rooted(pid: int, stack: Stack) -> Stack:
    """Returns a stack that begins with its process and what it counts for, without what perf could not name."""
    return ((f"process {pid}", ""), (group(stack), group(stack)), *(each for each in stack if each[0] != _UNKNOWN))


def main() -> None:
    """Samples a server, prints the table and writes the graph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pid", type=int, help="the server's first process")
    parser.add_argument("--url", help="its HTTP address, to count requests")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--svg", type=Path, default=Path("build/flame.svg"))
    arguments = parser.parse_args()
    arguments.svg.parent.mkdir(parents=True, exist_ok=True)
    data = arguments.svg.with_suffix(".perf")
    before = answered(arguments.url) if arguments.url else 0
    record(family(arguments.pid), arguments.seconds, data)
    requests = answered(arguments.url) - before if arguments.url else None
    samples = list(stacks(data))
    data.unlink()
    if not samples:
        sys.exit("perf saw nothing: is the server asked?")
    if requests is not None:
        print(f"{requests} requests, {requests / arguments.seconds:,.0f} a second")
    print("\n".join(table(samples, arguments.seconds, requests)))
    arguments.svg.write_text(flame_graph([rooted(pid, stack) for pid, stack in samples]), encoding="utf-8")
    print(arguments.svg)


if __name__ == "__main__":
    main()

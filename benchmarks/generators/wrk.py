"""Runs wrk, a load generator in C for HTTP/1.1 (Debian's package wrk).

wrk adds samples for latencies above twice the mean interval of a connection, as if requests had been due meanwhile.
This raises p99 a little, for every server alike.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.generators import BadAnswersError, Figures, program
from loadtest.wrk_requests import wrk_requests

_DONE = """
function done(summary, latency)
  local failed = summary.errors
  io.write(string.format(
    "figures %d %d %.1f %.1f %d %d\\n", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), failed.status, failed.connect + failed.read + failed.write + failed.timeout
  ))
end
"""


def save_script(path: Path, bodies: Sequence[tuple[bytes, int]]) -> Path:
    """Writes a Lua program that sends these binary bodies in turn; returns its path.

    bodies: with the length of each one's JSON, which must be the same for all.
    """
    (_,) = {header for _, header in bodies}
    requests = wrk_requests(bodies, {"Content-Type": "application/octet-stream"}, path.with_suffix(""))
    path.write_text(requests + _DONE, encoding="utf-8")
    return path


def run_wrk(port: int, model: str, script: Path, *, connections: int, seconds: float) -> Figures:
    """Sends requests over `connections` for about `seconds`, which are rounded to whole ones.

    Raises PeerMissingError without wrk, BadAnswersError if any answer was not 2xx or did not come.
    """
    url = f"http://127.0.0.1:{port}/v2/models/{model}/infer"
    command = [
        *(str(program("wrk", "wrk")), "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s"),
        *("--timeout", "30s", "-s", str(script), url),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("figures ")), None)
    if line is None:
        raise BadAnswersError(f"wrk ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
    answers, took_us, p50_us, p99_us, bad, broken = map(float, line.split()[1:])
    if bad or broken or not answers:
        raise BadAnswersError(f"{url}: {bad:g} of {answers:g} answers were not 2xx, {broken:g} did not come")
    return Figures(int(answers), answers / took_us * 1e6, p50_us / 1000, p99_us / 1000)

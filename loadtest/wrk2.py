"""Has wrk2 send all requests in turn, over HTTP, and reads the latencies that it tells by quantiles."""

from __future__ import annotations

import math
from collections.abc import Mapping

from loadtest.counts import SecondCounts
from loadtest.program import Load, Program
from loadtest.records import PhaseRecord
from loadtest.wrk_requests import wrk_requests
from storage.errors import Unavailable

# Quantiles that are printed, from which the latencies are made again.
_QUANTILES = 1000
_BODIES = 2000
_DONE = """
function done(summary, latency)
  local failed = summary.errors
  io.write(string.format(
    "figures %d %d %d %d\\n", summary.requests, summary.duration, failed.status,
    failed.connect + failed.read + failed.write + failed.timeout
  ))
  io.write("times")
  for number = 1, {quantiles} do
    io.write(string.format(" %.1f", latency:percentile((number - 0.5) * 100 / {quantiles})))
  end
  io.write("\\n")
end
"""


class Wrk2(Program):
    """Runs wrk2."""

    package = "build it from https://github.com/giltene/wrk2 and put it into PATH under the name wrk2"
    kinds = ("http_binary", "http_json")
    # It calibrates itself for ten seconds, and forgets what it has measured until then.
    least_s = 15.0
    note = (
        f"wrk2 sent the load. It tells latencies by {_QUANTILES} quantiles, none over time, and none of its first ten "
        "seconds."
    )

    def __init__(self, load: Load) -> None:
        self._load, self._script = load, load.folder / "script.lua"
        prepared = load.prepared
        bodies = [(prepared.body(place), prepared.headers[place]) for place in range(min(prepared.count, _BODIES))]
        requests = wrk_requests(bodies, load.headers(0), load.folder / "body")
        self._script.write_text(requests + _DONE.format(quantiles=_QUANTILES), encoding="utf-8")

    def command(self, rate: float, seconds: int) -> list[str]:
        """Returns the command line."""
        load = self._load
        return [
            *("wrk2", f"-t{load.threads}", f"-c{load.connections}", f"-d{seconds}s", f"-R{rate:.6g}"),
            *("--timeout", "30s", "-s", str(self._script), f"{load.address}{load.path}"),
        ]

    def read(self, record: PhaseRecord, printed: str) -> None:
        """Reads what the script printed at the end."""
        lines: Mapping[str, list[str]] = {
            line.split()[0]: line.split()[1:]
            for line in printed.splitlines()
            if line.startswith(("figures ", "times "))
        }
        if set(lines) != {"figures", "times"}:
            raise Unavailable(f"wrk2: {printed.strip()[-500:]}")
        answers, took_us, status, lost = map(float, lines["figures"])
        counts = SecondCounts()
        times = [float(each) / 1000 for each in lines["times"]]
        good = int(answers - status)
        for number, milliseconds in enumerate(times):
            counts.latency.add(milliseconds, good * (number + 1) // len(times) - good * number // len(times))
        counts.failed, counts.answered = int(status + lost), good
        if counts.failed:
            counts.add_error(
                "wrk2: a status that is not 2xx, an error of the connection, or no answer in time", counts.failed
            )
        record.lasted = took_us / 1e6
        record.width = max(1, math.ceil(record.lasted))  # one stretch, because there are no figures over time
        record.add(0, counts)

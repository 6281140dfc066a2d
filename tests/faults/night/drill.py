"""One fault of the drill: how it is caused, which alert it fires, and what names its cause in each place."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.alerts.caused import Caused
from tests.support.alerts.causes import CAUSES
from tests.support.alerts.pages import RUNBOOK, commands, console, page, run
from tests.support.alerts.prometheus import Prometheus

# Seconds after the alert within which the places name the cause: they show means over some seconds, and an alert of the
# shortened rules fires at once, which takes minutes otherwise.
_SETTLED_S = 15.0
#: The places that are read. "console" is what a page of the console is sent, "commands" are those of the runbook.
PLACES = ("alert", "status", "snapshots", "console", "commands", "page")


@dataclass(frozen=True)
class Fault:
    """A fault, and by place a pattern of the words that name its cause there."""

    name: str
    alert: str
    named: Mapping[str, str]


FAULTS = (
    Fault(
        "disk-full",
        "EmberlineDiskFull",
        {
            "alert": r"% left on the disk of its stores",
            "status": r"No space left on device",
            "snapshots": r"No space left on device",
            "console": r'"waiting": ?"[^"]*No space left on device',
            "page": r"`No space left on device`",
        },
    ),
    Fault(
        "bad-delta",
        "EmberlineSnapshotRefused",
        {
            "alert": r"refused a snapshot of \w+: ParityError",
            "status": r"refused .* golden requests",
            "snapshots": r"golden requests",
            "console": r'"reason": ?"golden requests',
            "page": r"golden requests.*\(ParityError\): the server computes other scores than the trainer",
        },
    ),
    Fault(
        "slow-disk",
        "EmberlineDiskSlow",
        {
            "alert": r"wait \d+(\.\d+)?m?s for the disk",
            "status": r"the disk has been slow for \d+ \w+: lookups that read from it wait \d+ ms",
            "snapshots": r"the disk has been slow for \d+ \w+: lookups that read from it wait \d+ ms",
            "console": r'"disk_wait_ms": ?([5-9]\d|\d{3,})\b.*"disk_slow_since_unix_ms": ?\d{13}',
            "commands": r"emberline_ssd_read_seconds_total\{",
            "page": r"Who else uses the disk\?",
        },
    ),
    Fault(
        "stuck-client",
        "EmberlineStuckClients",
        {
            "alert": r"127\.0\.0\.1 does not send its requests or read its answers",
            "status": r"127\.0\.0\.1 does not send its requests or read its answers: 1 connection of http",
            "console": r'"client": ?"127\.0\.0\.1"',
            "commands": r'emberline_stuck_clients\{client="127\.0\.0\.1"',
            "page": r"Look at that client",
        },
    ),
    Fault(
        "gpu-lost",
        "EmberlineGpuLost",
        {
            "alert": r"does not use GPU 0",
            "status": r"GPU 0 is not used any more for version \d+: .*is lost",
            "snapshots": r"GPU 0 is not used any more for version \d+: .*is lost",
            "console": r'"gpus_given_up": ?\[\{[^]]*is lost',
            "commands": r"GPU 0 is not used any more: .*is lost",
            "page": r"\*\*is lost\*\*: the GPU has to be reset",
        },
    ),
    Fault(
        "member-late",
        "EmberlineFleetMemberLate",
        {
            "alert": r"three has not staged a snapshot",
            "status": r"three has not staged it",
            "snapshots": r"three has not staged it",
            "console": r"three has not staged it",
            "page": r"look at its way to the object store",
        },
    ),
    Fault(
        "member-cut-off",
        "EmberlineFleetMemberBehind",
        {
            "alert": r"two does not serve what the other replicas serve",
            "status": r"the object store cannot be followed: \S+/head\.json: .*503",
            "snapshots": r"the object store cannot be followed: \S+/head\.json: .*503",
            "console": r'"asked": ?"two", ?"store": ?\{[^}]*"error": ?"[^"]*503',
            "commands": r"two has not been able to read the object store for [^:]+: \S+/head\.json: .*503",
            "page": r"it does not reach the object store",
        },
    ),
)


@dataclass
class Outcome:
    """Keeps what was read after a fault, by place; for places with a pattern only what it found, "" for nothing."""

    fault: Fault
    seconds: float
    said: dict[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """The places that should name the cause, and do not."""
        return [place for place in PLACES if place in self.fault.named and not self.said.get(place)]


def drill(fault: Fault, prometheus: Prometheus) -> Outcome:
    """Causes a fault, waits for its alert, and reads. Raises Unavailable where it cannot be caused on this machine."""
    with tempfile.TemporaryDirectory(prefix="night-") as folder, CAUSES[fault.alert](Path(folder)) as caused:
        prometheus.scrape([(port, {"instance": instance}) for instance, port in caused.targets.items()])
        prometheus.wait_for(f'count(up{{job="emberline"}} == 1) == {len(caused.targets)}')
        began = time.monotonic()
        caused.begin()
        alert = prometheus.wait_alert(fault.alert, caused.labels, 90)
        outcome = Outcome(fault, time.monotonic() - began)
        said = {"alert": " ".join(alert["annotations"].values()), "page": page(fault.alert)}
        until = time.monotonic() + _SETTLED_S
        while True:
            said |= _asked(fault, caused)
            for place, pattern in fault.named.items():
                found = re.search(pattern, said[place], re.DOTALL if place == "page" else 0)
                outcome.said[place] = found[0] if found else ""
            if not outcome.missing or time.monotonic() > until:
                break
        prometheus.scrape([])
    return outcome


def _asked(fault: Fault, caused: Caused) -> dict[str, str]:
    """Returns what the commands print at each server: `emberline status`, `emberline snapshots`, and the page's."""
    lines = dict.fromkeys(("emberline status", "emberline snapshots movielens", *commands(_of(fault))))
    servers = list(zip((caused.url, *caused.others), caused.targets.values(), strict=False))
    said = {"status": "", "snapshots": "", "commands": ""}
    said["console"] = "\n".join(console(port, caused.model, caused.events) for _, port in servers)
    for line in lines:
        place = {"status": "status", "snapshots": "snapshots"}.get(line.split()[1], "commands")
        for url, port in servers:
            said[place] += " ".join(run(line, url=url, metrics_port=port, model=caused.model).split()) + "\n"
    return said


def _of(fault: Fault) -> Path:
    return RUNBOOK / f"{fault.alert}.md"

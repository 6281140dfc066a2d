"""The commands on the pages of the runbook run, on a server that is well, as they stand there."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving import Server
from tests.support.alerts.pages import RUNBOOK, commands, page, run

pytestmark = pytest.mark.slow

#: In the order of the alerts.
PAGES = (
    "EmberlineDown",
    "EmberlineNoneReady",
    "EmberlineNotReady",
    "EmberlineSnapshotOld",
    "EmberlineEventsOld",
    "EmberlineReplicasDiffer",
    "EmberlineFleetWaiting",
    "EmberlineFleetMemberLate",
    "EmberlineFleetMemberBehind",
    "EmberlineMirrorFailing",
    "EmberlineMirrorSilent",
    "EmberlineSnapshotRefused",
    "EmberlineUpdateWaiting",
    "EmberlineMergeFailing",
    "EmberlineQueueTime",
    "EmberlineErrors",
    "EmberlineUnresolvedIds",
    "EmberlineDiskFull",
    "EmberlineRepositoryDiskFull",
    "EmberlineDiskSlow",
    "EmberlineStuckClients",
    "EmberlineConnectionsFull",
    "EmberlineGpuLost",
    "EmberlineCrashing",
)


def test_every_command_of_every_page_runs(server: Server) -> None:
    assert set(PAGES) == {path.stem for path in RUNBOOK.glob("Emberline*.md")}
    found = dict.fromkeys(line for name in PAGES for line in commands(RUNBOOK / f"{name}.md"))
    assert len(found) > 15
    url = f"http://127.0.0.1:{server.http_port}"
    for command in found:
        printed = run(command, url=url, metrics_port=server.metrics_port, model="tiny")
        assert printed, command
        assert "--store" in printed or "config --url" not in command, "what it looks for is not there"


def test_every_page_has_commands_and_a_command_that_fails_is_found(server: Server, tmp_path: Path) -> None:
    for path in RUNBOOK.glob("Emberline*.md"):
        assert commands(path), path
        assert "\n" not in page(path.stem).split("## What users see")[0].split("\n\n")[1]
    url = f"http://127.0.0.1:{server.http_port}"
    with pytest.raises(AssertionError, match="none"):
        run("emberline snapshots none", url=url, metrics_port=server.metrics_port, model="tiny")

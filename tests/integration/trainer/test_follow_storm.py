"""A storm over everything between a stream and the server, with short outages; `make storm` has the long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers import PeerMissingError
from tests.faults.stream import StreamStorm

pytestmark = pytest.mark.long


@pytest.mark.slow
def test_a_storm_changes_no_weight_and_loses_no_snapshot(tmp_path: Path) -> None:
    try:
        storm = StreamStorm(tmp_path, "redis", ranks=1)
    except PeerMissingError as error:
        pytest.skip(f"no redis-server: {error}")
    storm.run(outage_s=3.0, full_s=0.0)
    if storm.disk is None:
        pytest.skip("passed all but the full disk, which this user is not allowed to mount")

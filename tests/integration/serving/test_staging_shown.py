"""A version or delta that is being taken is named while it is read, staged and judged, and not before or after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from emberline.cli.snapshots import beside
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME


def test_a_delta_is_named_while_it_is_taken(tmp_path: Path) -> None:
    seen: dict[str, tuple[Any, Any, bool]] = {}
    with Live(tmp_path) as live:

        def look(model: str, step: str) -> None:
            repository = live.repository
            staging = live.report()["staging"], repository.outline(NAME)["staging"]
            seen[step] = (*staging, repository.update_counters(NAME).staging)

        live.on_step = look
        first = live.version()
        live.start()
        live.reaches(first)
        seen.clear()
        second = live.delta(first)
        live.reaches(second)
        assert seen["staged"] == (second.name, second.name, True)
        live.until(lambda: live.report()["staging"] is None)
        assert not live.repository.update_counters(NAME).staging
        assert list(beside({**live.report(), "staging": "1.7"})) == ["taking 1.7: it is read, staged and judged"]

"""Runs Prometheus over the metrics pages of servers that come and go."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.deployment.manifests import DEPLOY
from tests.support.deployment.programs import program
from tests.support.server_process import free_ports

RULES = DEPLOY / "prometheus" / "alerts.yml"
_EVERY = {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"}


class Prometheus:
    """A Prometheus with the scrape configuration of deploy/, every 200 ms, and rules. `close` ends it.

    rules: the text of a file of rules. every: replaces intervals.
    """

    def __init__(self, folder: Path, rules: str, every: Mapping[str, str] = _EVERY) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self._targets = folder / "targets.json"
        self._targets.write_text("[]")
        (folder / "alerts.yml").write_text(rules)
        settings = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
        settings["global"] = dict(every)
        (scrape,) = settings["scrape_configs"]
        del scrape["static_configs"]
        scrape["file_sd_configs"] = [{"files": [str(self._targets)], "refresh_interval": "1s"}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
        self._log = folder / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    # By default it looks at new targets every five seconds.
                    "--scrape.discovery-reload-interval=100ms",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def close(self) -> None:
        """Ends it."""
        self.process.terminate()
        self.process.wait(20)

    def scrape(self, targets: Iterable[tuple[int, Mapping[str, str]]]) -> None:
        """Scrapes these metrics ports of this machine, with their labels, in place of those before."""
        lines = [{"targets": [f"127.0.0.1:{port}"], "labels": dict(labels)} for port, labels in targets]
        part = self._targets.with_suffix(".part")
        part.write_text(json.dumps(lines))
        part.rename(self._targets)

    def ask(self, path: str, **parameters: str) -> Any:
        """Returns the data of an answer of its API."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def result(self, query: str) -> list[Any]:
        """Returns the samples that a query finds now; none while it does not listen yet."""
        assert self.process.poll() is None, self._said()
        try:
            found: list[Any] = self.ask("query", query=query)["result"]
        except OSError:
            return []
        return found

    def wait_for(self, query: str, timeout_s: float = 60.0) -> list[Any]:
        """Returns the result of a query when it has one."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.result(query)):
            assert time.monotonic() < deadline, f"{query}: nothing after {timeout_s:g} s; {self._said()}"
            time.sleep(0.1)
        return found

    def alerts(self) -> list[dict[str, Any]]:
        """Returns the alerts that are firing, each with `labels` and `annotations`."""
        return [each for each in self.ask("alerts")["alerts"] if each["state"] == "firing"]

    def wait_alert(self, name: str, labels: Mapping[str, str], timeout_s: float = 60.0) -> dict[str, Any]:
        """Returns an alert with these labels when it fires."""
        wanted = {"alertname": name, **labels}
        deadline = time.monotonic() + timeout_s
        while True:
            assert self.process.poll() is None, self._said()
            firing = self.alerts()
            for alert in firing:
                if wanted.items() <= alert["labels"].items():
                    return alert
            known = [each["labels"] for each in firing]
            assert time.monotonic() < deadline, f"{wanted} does not fire within {timeout_s:g} s, but {known}"
            time.sleep(0.1)

    def _said(self) -> str:
        return self._log.read_text()[-2000:]

"""Runs the steps of one part: a log, a file of results that is complete after each step, a table at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steps import Step, Verdict, read_rows, run


class Series:
    """Runs steps for at most `seconds`; steps without time left are named, from the end."""

    def __init__(self, name: str, out: Path, seconds: float, facts: Mapping[str, Any]) -> None:
        self.name, self.verdicts = name, list[Verdict]()
        self.facts, self.figures = dict(facts), dict[str, list[dict[str, Any]]]()
        self._began = time.monotonic()
        self._ends = self._began + seconds
        self._log_path, self._json_path = out / f"{name}.log", out / f"{name}.json"
        out.mkdir(parents=True, exist_ok=True)
        self._log = self._log_path.open("w", encoding="utf-8")

    def run(self, step: Step) -> Verdict:
        """Runs a step; returns and reports its verdict."""
        self.say(f"-- {step.name} ...")
        verdict = run(step, self._ends - time.monotonic(), self._log, self.say)
        self.verdicts.append(verdict)
        if step.kind == "figures":
            self.figures[step.name] = read_rows(step.file)
        self.say(str(verdict))
        self._write()
        return verdict

    def say(self, line: str) -> None:
        """Prints a line and writes it into the log."""
        print(line, flush=True)
        if not self._log.closed:
            self._log.write(line + "\n")

    def end(self) -> int:
        """Prints the table; returns the exit code."""
        seconds = time.monotonic() - self._began
        bad = [each for each in self.verdicts if each.is_bad]
        self.say("")
        for verdict in self.verdicts:
            self.say(str(verdict))
        self.say(f"{self.name}: {len(self.verdicts)} steps, {len(bad)} of them bad, {seconds:.0f} s")
        self._write()
        self._log.close()
        return 1 if bad else 0

    def _write(self) -> None:
        content = {
            "name": self.name,
            **self.facts,
            "seconds": round(time.monotonic() - self._began, 1),
            "steps": [vars(verdict) for verdict in self.verdicts],
            "figures": self.figures,
        }
        part = self._json_path.with_suffix(".part")
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        part.replace(self._json_path)

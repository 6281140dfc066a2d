"""The progress bar of a run: rows a second, loss, and how well the tasks did on the last rows."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from trainer.metrics import recent_text
from trainer.task_config import TaskConfig

_WINDOW_ROWS = 32_768
_REFRESH_S = 1.0


class Display:
    """Shows a run on the terminal; with visible=False it does nothing. A context manager.

    Where standard error is no terminal, lines are printed and bars are not.
    """

    def __init__(self, *, visible: bool) -> None:
        self._visible = visible
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not (visible and sys.stderr is not None and sys.stderr.isatty()),
        )
        self._recent: deque[tuple[Tensor, Tensor]] = deque()
        self._recent_rows = 0
        self._loss = float("nan")
        self._rows = 0
        self._figures = ""
        # Returns the text behind the figures of a step; called when they are shown.
        self.note: Callable[[], str] = str
        # The tasks whose figures a step shows.
        self.tasks: Sequence[TaskConfig] = ()
        self._since = self._shown = time.monotonic()

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        if self._visible:
            self._console.print(text, highlight=False, markup=False)

    def warn(self, text: str) -> None:
        """Prints a line to standard error, also where nothing else is shown."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, description: str, total: int | None, done: int = 0) -> None:
        """Starts a new bar of `total` steps; None for as many as come."""
        for task in self._progress.task_ids:
            self._progress.remove_task(task)
        self._progress.add_task(description, total=total, completed=done, figures="")
        self._rows = 0
        self._figures = ""
        self._since = self._shown = time.monotonic()

    def step(self, loss: float, labels: Tensor, logits: Tensor) -> None:
        """Counts one training step: its loss, the labels (B, T) of the tasks, and the values (B, K) of their heads."""
        if not self._visible:
            return
        self._loss = loss if self._loss != self._loss else 0.98 * self._loss + 0.02 * loss
        self._recent.append((labels, logits.detach()))
        self._rows += len(labels)
        self._recent_rows += len(labels)
        while self._recent_rows > _WINDOW_ROWS and len(self._recent) > 1:
            self._recent_rows -= len(self._recent.popleft()[0])
        now = time.monotonic()
        if now - self._shown >= _REFRESH_S:
            self._shown = now
            recent = self._recent_text(*(torch.cat(parts).cpu().numpy() for parts in zip(*self._recent, strict=True)))
            speed = self._rows / (now - self._since)
            self._figures = f"{speed:,.0f} rows/s  loss {self._loss:.4f}{recent}{self.note()}"
        for task in self._progress.task_ids:
            self._progress.update(task, advance=1, figures=self._figures)

    def _recent_text(self, labels: np.ndarray, logits: np.ndarray) -> str:
        texts, at = [], 0
        for place, task in enumerate(self.tasks):
            text = recent_text(task, labels[:, place], logits[:, at : at + task.width])
            at += task.width
            if text:
                texts.append(f"  {task.name} {text}" if len(self.tasks) > 1 else f"  {text}")
        return "".join(texts)

    def advance(self) -> None:
        """Counts one step of something without a loss."""
        for task in self._progress.task_ids:
            self._progress.advance(task)

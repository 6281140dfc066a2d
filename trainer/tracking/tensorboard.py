"""Writes event files of TensorBoard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainer.tracking.base import imported


class TensorBoardTracker:
    """Writes one folder of event files, which is a run in TensorBoard.

    step: training steps that were made before. TensorBoard drops what earlier files of the folder have of later ones.
    """

    def __init__(self, folder: Path, step: int) -> None:
        module = imported("torch.utils.tensorboard", "tensorboard", "tensorboard")
        self._hparams = imported("torch.utils.tensorboard.summary", "tensorboard", "tensorboard").hparams
        self._new = step == 0 or not any(folder.glob("events.out.*"))
        self._writer = module.SummaryWriter(str(folder), purge_step=step + 1)
        self._parameters: Mapping[str, str] = {}

    def parameters(self, values: Mapping[str, str]) -> None:
        """Writes a table in the tab Text now, and the tab HParams with the first figures of an epoch."""
        if not self._new:
            return
        lines = ["| parameter | value |", "|---|---|"]
        lines += [f"| {name} | `{value.replace('|', '/')}` |" for name, value in values.items()]
        self._writer.add_text("parameters", "\n".join(lines), 0)
        self._parameters = dict(values)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Writes scalars."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        if self._parameters and "epoch" in values:
            # HParams lists the metrics by name, and they are known when an epoch has ended.
            shown = {name: value for name, value in values.items() if name.startswith(("epoch/", "valid/"))}
            for summary in self._hparams({name: _typed(text) for name, text in self._parameters.items()}, shown):
                self._writer.file_writer.add_summary(summary, 0)
            self._parameters = {}

    def flush(self) -> None:
        """Returns when the events are in the file."""
        self._writer.flush()

    def close(self, ended: str) -> None:
        """Closes the file."""
        self._writer.close()


def _typed(text: str) -> float | str:
    # HParams sorts and draws numbers as numbers.
    try:
        return float(text)
    except ValueError:
        return text

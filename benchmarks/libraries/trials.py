"""Trains models, publishes them, serves all of them by one server, and compares the answers with torch's."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tritonclient.utils import InferenceServerException

from benchmarks.libraries.served import TOLERANCE, largest_difference
from benchmarks.libraries.trained import Model, Trained
from storage.errors import EmberlineError
from tests.support.server_process import ServerProcess
from trainer import publish

ANSWERED, REFUSED, DIFFERENT, NOT_TRAINED = "as torch", "refused", "different", "not trained"


@dataclass
class Trial:
    """The result for one model."""

    library: str
    family: str
    name: str
    adapter_lines: int
    #: One of ANSWERED, REFUSED, DIFFERENT and NOT_TRAINED.
    state: str = ANSWERED
    #: The message of the error, for all states but ANSWERED.
    reason: str = ""
    train_s: float = 0.0
    publish_s: float = 0.0
    #: The largest difference of an answer from torch's, divided by the largest of the output if that is above 1.
    difference: float | None = None

    def failed(self, state: str, error: Exception) -> None:
        """Notes why the model is not answered as torch does."""
        kind = "" if isinstance(error, EmberlineError) else f"{type(error).__name__}: "
        self.state, self.reason = state, " ".join(f"{kind}{error}".split())


def try_models(models: Sequence[Model], work: Path, say: Callable[[Trial], None]) -> list[Trial]:
    """Tries all models; calls `say` with each when it is published, and again when it has answered.

    work: an empty folder for the model repository, the server's store and its log.
    """
    found: list[tuple[Trial, Model, Trained]] = []
    trials: list[Trial] = []
    for model in models:
        trial = Trial(model.library, model.family, model.name, model.adapter_lines)
        trials.append(trial)
        trained = _published(model, work / "models", trial)
        if trained is not None:
            found.append((trial, model, trained))
        say(trial)
    if found:
        with ServerProcess(work / "models", work / "store", work / "server.log") as server:
            for trial, model, trained in found:
                _compare(server.url, model, trained, trial)
                say(trial)
    return trials


def _published(model: Model, repository: Path, trial: Trial) -> Trained | None:
    began = time.perf_counter()
    try:
        with _silence():
            trained = model.train()
    except Exception as error:  # a library fails in its own ways
        trial.failed(NOT_TRAINED, error)
        return None
    trial.train_s = time.perf_counter() - began
    began = time.perf_counter()
    try:
        with _silence():
            publish(trained.module, trained.sample, repository, name=model.published_name)
    except Exception as error:  # one of ours, or a module's own
        trial.failed(REFUSED, error)
        return None
    trial.publish_s = time.perf_counter() - began
    return trained


def _compare(url: str, model: Model, trained: Trained, trial: Trial) -> None:
    try:
        trial.difference = largest_difference(url, model.published_name, trained)
    except (EmberlineError, InferenceServerException, RuntimeError) as error:
        trial.failed(DIFFERENT, error)
        return
    if not trial.difference <= TOLERANCE:
        trial.state = DIFFERENT
        trial.reason = f"an answer is {trial.difference:.1e} from torch's, expected at most {TOLERANCE:.0e}"


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    # The libraries print progress; what matters is in the exception.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def fixed_threads() -> None:
    """Makes torch use one thread, which is fastest for networks of this size."""
    torch.set_num_threads(1)

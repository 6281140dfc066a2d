"""Updates and trainings that are killed, at each step of publishing: they go on to the bit."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage.checkpoint import open_delta
from storage.errors import ConfigError
from tests.integration.trainer.update_runs import (
    POLICY,
    check_published,
    ctrl_c_at,
    goldens,
    pending,
    restored,
    snapshots,
    updated,
)
from trainer import TrainReport, UpdateReport, train
from trainer.checkpoint import CommitLog, checkpoints
from trainer.config import TrainConfig
from trainer.loop import TrainingLoop
from trainer.publishing import Publisher

Killed = Callable[..., None]


def dying(place: Path, data: Path, step: str, times: int, *arguments: str) -> None:
    """Continues an update, or a training when a configuration is given, and dies at one of its steps."""
    left = [times]

    def reached(name: str) -> None:
        if name == step:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def around(owner: type, method: str, before: str, after: str) -> None:
        real = getattr(owner, method)

        def wrapped(self: object, *args: object, **options: object) -> object:
            reached(before)
            result = real(self, *args, **options)
            reached(after)
            return result

        setattr(owner, method, wrapped)

    around(Publisher, "prepare", "prepare", "prepared")
    around(CommitLog, "_write", "", "saving")
    around(CommitLog, "save", "", "saved")
    around(Publisher, "write", "write", "written")
    around(TrainingLoop, "settle", "", "settled")
    if arguments and arguments[0].endswith(".yaml"):
        trained(Path(arguments[0]).parent, place, data)
    else:
        updated(place, data, resume=True, from_snapshot=arguments[0] if arguments else None)


@pytest.fixture(scope="module")
def killed() -> Killed:
    """Runs `dying` in a process of its own, which starts with everything imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch.export", "storage.checkpoint.graph"])

    def run(place: Path, data: Path, step: str, times: int, *more: str) -> None:
        child = context.Process(target=dying, args=(place, data, step, times, *more))
        child.start()
        child.join(300.0)
        assert child.exitcode == -signal.SIGKILL

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "times"),
    # Commits 2, 4, 6 and 7 of the update carry a snapshot, the last of them with the update done; 8 settles it.
    [
        ("prepare", 2),
        ("prepared", 1),
        ("prepared", 4),
        ("saving", 4),
        ("saved", 2),
        ("saved", 5),
        ("saved", 7),
        ("write", 3),
        ("written", 1),
        ("written", 4),
        ("settled", 1),
    ],
)
def test_after_a_kill_at_any_step_the_update_goes_on_to_the_bit(
    place: Path,
    newer: Path,
    whole: tuple[Path, UpdateReport],
    config: TrainConfig,
    step: str,
    times: int,
    killed: Killed,
) -> None:
    killed(place, newer, step, times)
    before = check_published(place, config)
    report = updated(place, newer, resume=True)
    after = check_published(place, config)
    assert after[: len(before)] == before
    expected, tables = restored(config, whole[1].checkpoint)
    found, content = restored(config, report.checkpoint)
    for state in (expected, found):
        assert state["update"] is not None
        state["update"] = replace(state["update"], auc_before=None, log_loss_before=None, metrics_before={})  # type: ignore[type-var]
    assert found == expected
    assert content == tables
    wanted, got = snapshots(whole[0] / "models"), snapshots(place / "models")
    assert list(got.values()) == list(wanted.values())
    assert goldens(place / "models") == goldens(whole[0] / "models")
    assert pending(place) is None


@pytest.mark.slow
def test_two_kills_in_a_row_and_a_ctrl_c_change_nothing(
    place: Path, newer: Path, whole: tuple[Path, UpdateReport], config: TrainConfig, killed: Killed
) -> None:
    killed(place, newer, "saved", 2)
    killed(place, newer, "write", 1)
    with ctrl_c_at(8):  # a delta is due at it
        updated(place, newer, resume=True)
    updated(place, newer, resume=True)
    check_published(place, config)
    assert list(snapshots(place / "models").values()) == list(snapshots(whole[0] / "models").values())
    assert goldens(place / "models") == goldens(whole[0] / "models")


@pytest.mark.slow
@pytest.mark.parametrize("step", ["saved", "prepared", "write"])
def test_going_back_survives_a_kill(
    place: Path, newer: Path, fresh_clicks: Path, config: TrainConfig, step: str, killed: Killed
) -> None:
    first = updated(place, newer)
    killed(place, fresh_clicks, step, 1, "1.1")
    report = updated(place, fresh_clicks, resume=True, from_snapshot="1.1")
    parents = [open_delta(folder).parent for folder in report.published]
    assert open_delta(first.published[0]).snapshot in parents
    check_published(place, config)


@pytest.fixture(scope="module")
def trainings(clicks: Path, config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`config.yaml`, which publishes on its way; `whole`, a training of it; `midway`, one stopped after a version."""
    folder = tmp_path_factory.mktemp("trainings")
    config = config.model_copy(update={"publish": POLICY.model_copy(update={"delta_every_steps": 8})})
    (folder / "config.yaml").write_text(config.model_dump_json())
    trained(folder, folder / "whole", clicks)
    with ctrl_c_at(9):
        trained(folder, folder / "midway", clicks)
    return folder


def trained(trainings: Path, place: Path, data: Path, *, models: bool = True) -> TrainReport:
    """Begins a training in `place`, or continues it."""
    repository = place / "models" if models else None
    resume = (place / "run").exists()
    config = trainings / "config.yaml"
    return train(config, data, output=place / "run", repository=repository, limit=3000, resume=resume, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "step", "times"),
    [("nothing", "saved", 3), ("midway", "prepared", 1), ("midway", "write", 1), ("midway", "written", 2)],
)
def test_training_that_publishes_goes_on_after_a_kill(
    trainings: Path,
    clicks: Path,
    config: TrainConfig,
    tmp_path: Path,
    killed: Killed,
    start: str,
    step: str,
    times: int,
) -> None:
    whole, place = trainings / "whole", tmp_path / "place"
    if start == "midway":
        shutil.copytree(trainings / "midway", place)
    killed(place, clicks, step, times, str(trainings / "config.yaml"))
    if step in ("saved", "write"):
        with pytest.raises(ConfigError, match="half published"):
            trained(trainings, place, clicks, models=False)
    got = trained(trainings, place, clicks)
    wanted = checkpoints(whole / "run")[-1]
    assert restored(config, got.checkpoint) == restored(config, wanted)
    check_published(place, config)
    assert list(snapshots(place / "models").values()) == list(snapshots(whole / "models").values())
    assert goldens(place / "models") == goldens(whole / "models")

"""Claims: on MovieLens by time, deltas within minutes know the users of today, which a daily update does not.

Two models that were trained on the first part of the ratings are served beside each other. The rest is replayed by the
times of the ratings: those of ten minutes are scored by the server, and then given to the one model, which follows them
(`emberline update --follow`) and publishes a delta. The other model is updated over each day's ratings when the day is
over (`emberline update`). The replay waits for both, so what is compared are ages of ten minutes and of a day, and not
the speed of this machine: a delta is served within seconds.

    python -m benchmarks.films --plot docs/films.svg                # MovieLens-100k, about ten minutes
    python -m benchmarks.films --data ml-latest/ratings.csv         # userId, movieId, rating, timestamp
    python -m benchmarks.films --data build/movielens               # what `emberline data movielens` wrote
"""

from __future__ import annotations

import http.client
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.drift import NO_GUARD, ask, emberline, log_of, refused, served
from benchmarks.line_chart import line_chart
from benchmarks.report import Report
from storage.errors import InvalidInput, Unavailable
from trainer import train
from trainer.checkpoint import checkpoints, read_state
from trainer.metrics import auc

QUICK_S = 120.0
READS_DATA = True
DAY_S, SLOT_S = 86_400.0, 600.0
#: The share of ratings that both models are trained on first, and the days that are replayed.
HISTORY, DAYS, QUICK_DAYS = 0.7, 14, 2
DELTAS, DAILY = "a delta each ten minutes", "updated once a day"
_NAMES = {DELTAS: "live", DAILY: "daily"}
_WAIT_S = 120.0
CONFIG = """
model_name: {name}
label: liked
inputs:
  - {{name: user, dtype: INT64}}
  - {{name: item, dtype: INT64}}
features:
  - {{name: user, inputs: [user], output: ids, table: users}}
  - {{name: item, inputs: [item], output: ids, table: items}}
tables:
  - {{name: users, dim: 8, init: {{scale: 0.01}}}}
  - {{name: items, dim: 8, init: {{scale: 0.01}}}}
model: {{type: deepfm, hidden: [32]}}
optimizer: {{sparse: {{lr: 0.1, initial_accumulator: 0.01}}, dense: {{lr: 0.002, weight_decay: 1.0e-4}}}}
training: {{batch_size: 64, epochs: 2, seed: 1, time_column: at}}
"""


def ratings(data: Path | None, work: Path) -> Any:
    """Returns user, item, liked and at (seconds since 1970) of all ratings by time: a pyarrow Table (N,).

    data: a folder of `emberline data movielens`, or a ratings.csv of GroupLens; None: MovieLens-100k. Raises
    InvalidInput for anything else.
    """
    if data is None:
        from trainer.datasets import write_movielens

        data = work / "movielens"
        write_movielens(data, cache=Path.home() / ".cache" / "emberline")
    try:
        if data.is_dir():
            table = pa.concat_tables([pq.read_table(data / f"{part}.parquet") for part in ("train", "valid", "test")])
        else:
            table = pa_csv.read_csv(data).rename_columns({"userId": "user", "movieId": "item"})
        found = {name: table.column(name) for name in ("user", "item", "rating", "timestamp")}
    except (OSError, KeyError, pa.ArrowException) as error:
        raise InvalidInput(
            f"--data {data}: {error}; expected a folder of `emberline data movielens`, or the ratings.csv of a "
            "MovieLens set with userId, movieId, rating and timestamp",
            field="data",
        ) from None
    table = pa.table(
        {
            "user": found["user"].cast(pa.int64()),
            "item": found["item"].cast(pa.int64()),
            "liked": pc.greater_equal(found["rating"], 4),
            "at": found["timestamp"].cast(pa.float64()),
        }
    )
    return table.sort_by([("at", "ascending"), ("user", "ascending"), ("item", "ascending")])


def measure(run: Run) -> None:
    """Replays some days over both models, and measures the AUC of what was answered."""
    from tests.support.server_process import ServerProcess

    table = ratings(run.data, run.work)
    first = int(table.num_rows * HISTORY)
    repository, stream = run.work / "models", run.work / "ratings"
    stream.mkdir()
    for name in _NAMES.values():
        (run.work / f"{name}.yaml").write_text(CONFIG.format(name=name))
        history = table.slice(0, first)
        train(run.work / f"{name}.yaml", history, output=run.work / name, repository=repository, progress=False)
        with (repository / name / "config.pbtxt").open("a") as file:
            file.write(NO_GUARD)
    with ServerProcess(repository, run.work / "store", run.work / "server.log") as server:
        following = emberline(run.work, "live", "--follow", str(stream), "--every-seconds", "0.1")
        try:
            replay = Replay(run.work, stream, server.http_port, server.url, table.slice(first))
            days = replay.days(QUICK_DAYS if run.quick else DAYS, following)
        finally:
            following.terminate()
            following.wait(60)
        shown = server.metrics()
        reasons = [reason for name in _NAMES.values() for reason in refused(server.url, name)]
    _report(run, days)
    counts = [shown.get(f'emberline_deltas_applied_total{{model="{name}"}}', 0.0) for name in _NAMES.values()]
    run.report.remark(f"the server took {counts[0]:.0f} deltas of the one and {counts[1]:.0f} of the other")
    known = set(table.slice(0, first).column("user").to_pylist())
    new = total = 0
    for day in days:
        users = day.rows.column("user").to_pylist()
        new += sum(user not in known for user in users)
        total += len(users)
        known |= set(users)
    run.report.remark(f"{new / total:.0%} of {total:,} ratings are of users who had rated nothing before their day")
    for reason in reasons:
        run.report.remark(f"refused: {reason}")


def draw(report: Report, path: Path) -> None:
    """Draws the AUC of the days."""
    days = range(1, len(report.lines[DELTAS]) + 1)
    title = "AUC of what is served, on MovieLens by time"
    path.write_text(line_chart(report.lines, title, x_name="days", y_name="AUC", marks=[*days]), encoding="utf-8")


class Day:
    """Ratings of a day, and the scores that they got before they were known, by model."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self.scores: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in _NAMES.values()}

    def auc(self, name: str) -> float:
        """Returns the AUC of a model."""
        liked = self.rows.column("liked").to_numpy(zero_copy_only=False).astype(np.float32)
        return auc(liked, np.concatenate(self.scores[name]))


class Replay:
    """Replays ratings over both models."""

    def __init__(self, work: Path, stream: Path, port: int, url: str, rows: Any) -> None:
        self._work, self._stream, self._url, self._rows = work, stream, url, rows
        self._client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._begin = rows.column("at")[0].as_py()
        self._expected = {name: self._state(name).position.rows for name in _NAMES.values()}

    def days(self, count: int, following: Any) -> list[Day]:
        """Replays so many days; returns those in which there were ratings of both kinds."""
        found = []
        numbers = np.floor((self._rows.column("at").to_numpy() - self._begin) / DAY_S)
        for number in range(count):
            at = np.flatnonzero(numbers == number)
            if len(at) == 0:
                continue
            day = Day(self._rows.slice(int(at[0]), len(at)))
            self._replay(day, number, following)
            if pc.count_distinct(day.rows.column("liked")).as_py() == 2:
                found.append(day)
        return found

    def _replay(self, day: Day, number: int, following: Any) -> None:
        slots = np.floor((day.rows.column("at").to_numpy() - self._begin) / SLOT_S)
        for slot in np.unique(slots):
            at = np.flatnonzero(slots == slot)
            rows = day.rows.slice(int(at[0]), len(at))
            for name in _NAMES.values():
                day.scores[name].append(ask(self._client, name, rows))
            hidden = self._stream / f".{int(slot):08d}.parquet"
            pq.write_table(rows, hidden)
            hidden.rename(self._stream / f"{int(slot):08d}.parquet")
            self._wait("live", len(at), following)
        data = self._work / f"day{number}.parquet"
        pq.write_table(day.rows, data)
        self._wait("daily", day.rows.num_rows, emberline(self._work, "daily", "--data", str(data)))

    def _wait(self, name: str, rows: int, process: Any) -> None:
        """Waits until a model has learned from so many rows more, and is served."""
        self._expected[name] += rows
        deadline = time.monotonic() + _WAIT_S
        while True:
            state = self._state(name)
            # The commit of a snapshot has it pending.
            lineage = state.publishing
            assert lineage is not None
            newest = lineage["pending"]["snapshot"] if lineage["pending"] else lineage["published"][-1][0]
            is_trained = state.position.published_rows == state.position.rows == self._expected[name]
            if is_trained and served(self._url, name) == newest:
                break
            if time.monotonic() > deadline or process.poll() not in (None, 0):
                raise Unavailable(
                    f"{name} does not go on: {state.position.rows:,} of {self._expected[name]:,} rows were trained on, "
                    f"{state.position.published_rows:,} published; refused: {refused(self._url, name)}; "
                    f"{log_of(self._work, name)}"
                )
            time.sleep(0.02)
        if name == "daily" and process.wait(60) != 0:
            raise Unavailable(f"the daily update failed: {log_of(self._work, name)}")

    def _state(self, name: str) -> Any:
        return read_state(checkpoints(self._work / name)[-1])


def _report(run: Run, days: list[Day]) -> None:
    """Adds the AUC of each day, of all of them, and the lines of the picture."""
    by_day = {text: [day.auc(name) for day in days] for text, name in _NAMES.items()}
    for text, values in by_day.items():
        run.report.lines[text] = [(number + 1.0, value) for number, value in enumerate(values)]
    claim = "AUC of what is served with deltas"
    run.report.pairs(f"{claim}, of each day's ratings", by_day[DELTAS], by_day[DAILY], DAILY, unit="AUC", target=1.0)
    liked = np.concatenate([day.rows.column("liked").to_numpy(zero_copy_only=False) for day in days])
    whole = {
        text: auc(liked.astype(np.float32), np.concatenate([part for day in days for part in day.scores[name]]))
        for text, name in _NAMES.items()
    }
    run.report.pairs(f"{claim}, of all ratings", [whole[DELTAS]], [whole[DAILY]], DAILY, unit="AUC", target=1.0)
    for text, values in by_day.items():
        run.report.remark(f"{text}: " + ", ".join(f"{value:.4f}" for value in values) + " by day")


if __name__ == "__main__":
    script("films")

"""Joins labels to the scores that were served, by the ids of requests, in a window of bounded time and memory."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np

from serving.engine.tap import sample_point
from serving.feedback.labelled_rows import LabelledRows, Quality, quality_of
from serving.feedback.served_batch import ServedBatch

# Bounds of what is kept beside the scores: snapshots with figures, and labels whose request has not come.
MAX_SNAPSHOTS = 8
MAX_EARLY = 10_000
#: Seconds that a label waits for its request, which may be looked at a little later, or on another server.
EARLY_S = 60.0
# Of an entry without its scores, and of what says which rows of an output have a label, without the rows; roughly.
_ENTRY_BYTES, _LABELLED_BYTES = 600, 60
#: Outcomes of labels.
OUTCOMES = ("joined", "unknown", "unsampled", "twice", "late", "misfit")


@dataclass(frozen=True, slots=True)
class Label:
    """Says what came of one row of a request."""

    id: str
    row: int
    #: The output that it is about.
    output: str
    value: float
    #: When it happened, in seconds since 1970.
    at: float


@dataclass(frozen=True)
class WindowSettings:
    """Says which scores are kept, and for how long."""

    share: float
    keep_s: float
    max_bytes: int
    #: A row without a label counts as negative after this time; None: it counts as nothing.
    negative_after_s: float | None = None


@dataclass(slots=True)
class _Scored:
    """The scores of a request."""

    served: float
    number: int
    snapshot: str
    arm: str
    #: By output: (rows,) float32.
    scores: dict[str, np.ndarray]
    size_bytes: int
    #: By output, a byte for each row: 1 for one that has a label.
    labelled: dict[str, bytearray] = field(default_factory=dict)
    is_closed: bool = False


#: A snapshot such as 1.17, an arm, and an output.
Key = tuple[str, str, str]


class ScoreWindow:
    """Keeps scores of requests until their labels have come. Thread-safe."""

    def __init__(self, settings: WindowSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        # By id, the oldest first.
        self._scored: OrderedDict[str, _Scored] = OrderedDict()
        # Those whose rows without a label do not count yet, the oldest first; some may have left.
        self._open: deque[_Scored] = deque()
        self._bytes = 0
        self._number = 0
        # Labels whose request has not come, with when the first of them came, by id.
        self._early: OrderedDict[str, tuple[float, dict[tuple[int, str], Label]]] = OrderedDict()
        self.early = 0
        self._rows: dict[Key, LabelledRows] = {}
        # When the newest request of each of these snapshots that has a label was scored.
        self._newest: dict[str, float] = {}
        # Outputs that ever got a label: only of them a row without one is negative.
        self._labelled_outputs: set[str] = set()
        #: Labels by what came of them; of those that wait, when it is known.
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        #: Requests whose id was there already, and requests that left before their time for want of memory.
        self.repeated = 0
        self.pushed_out = 0
        #: Rows that count as negative, since no label came.
        self.negatives = 0

    def __len__(self) -> int:
        return len(self._scored)

    @property
    def bytes(self) -> int:
        """Returns the memory of what is kept, roughly."""
        return self._bytes

    def add(self, batch: ServedBatch, now: float) -> None:
        """Keeps the scores of requests. now: seconds since 1970."""
        places = [
            (place, output.name)
            for place, output in enumerate(batch.signature.outputs)
            if int(np.prod(output.dims)) == 1 and output.dtype.startswith("FP")
        ]
        with self._lock:
            for request in batch.requests:
                if request.point >= self.settings.share:
                    continue
                if request.id in self._scored:
                    self.repeated += 1
                    continue
                scores = {
                    name: np.array(batch.outputs[place][request.start : request.stop], np.float32).reshape(-1)
                    for place, name in places
                }
                size = _ENTRY_BYTES + len(request.id)
                size += sum(values.nbytes + _LABELLED_BYTES + len(values) for values in scores.values())
                self._number += 1
                entry = _Scored(request.arrived_us / 1e6, self._number, batch.snapshot, batch.arm, scores, size)
                self._scored[request.id] = entry
                self._bytes += size
                if self.settings.negative_after_s is not None:
                    self._open.append(entry)
                self._take_early(request.id, entry)
            while self._bytes > self.settings.max_bytes:
                self._leave(next(iter(self._scored)))
                self.pushed_out += 1
            self._expire(now)

    def label(self, label: Label, now: float) -> str:
        """Joins a label to its score; returns what came of it: one of OUTCOMES, or early for one that waits."""
        with self._lock:
            outcome = self._label(label, now)
            if outcome != "early":
                self.outcomes[outcome] += 1
            return outcome

    def tick(self, now: float) -> None:
        """Lets go what is too old. now: seconds since 1970."""
        with self._lock:
            self._expire(now)

    def qualities(self) -> list[tuple[Key, Quality]]:
        """Returns the figures of each snapshot, arm and output that has labels, that which answered last at the end."""
        with self._lock:
            newest = self._newest.copy()
            keys = sorted(self._rows, key=lambda key: newest[key[0]])
        return [(key, self.quality(key)) for key in keys]

    def quality(self, key: Key, since: float = 0.0) -> Quality:
        """Returns the figures of the rows of one output in an arm that were scored at `since` or later."""
        with self._lock:
            rows = self._rows.get(key)
            chosen = None if rows is None else rows.chosen(since)
        # Computed without the lock: whoever sends labels does not wait for it.
        return Quality() if chosen is None else quality_of(*chosen)

    def first_served(self, key: Key) -> float | None:
        """Returns when the oldest row with a label was scored; None where there is none."""
        with self._lock:
            rows = self._rows.get(key)
            return None if rows is None else rows.first_served

    def _label(self, label: Label, now: float) -> str:
        self._labelled_outputs.add(label.output)
        entry = self._scored.get(label.id)
        if entry is not None:
            return self._join(entry, label)
        if sample_point(label.id) >= self.settings.share:
            return "unsampled"
        if self.early >= MAX_EARLY:
            return "unknown"
        _, waiting = self._early.setdefault(label.id, (now, {}))
        if (label.row, label.output) in waiting:
            return "twice"
        waiting[label.row, label.output] = label
        self.early += 1
        return "early"

    def _join(self, entry: _Scored, label: Label) -> str:
        scores = entry.scores.get(label.output)
        if scores is None or not 0 <= label.row < len(scores):
            return "misfit"
        known = entry.labelled.get(label.output)
        if known is not None and known[label.row]:
            return "twice"
        if entry.is_closed:
            return "late"
        if known is None:
            known = entry.labelled[label.output] = bytearray(len(scores))
        known[label.row] = 1
        self._count(entry, label.output, label.row, label.value)
        return "joined"

    def _count(self, entry: _Scored, output: str, row: int, value: float) -> None:
        key = (entry.snapshot, entry.arm, output)
        if entry.snapshot not in self._newest and len(self._newest) >= MAX_SNAPSHOTS:
            oldest = min(self._newest, key=lambda snapshot: self._newest[snapshot])
            if self._newest[oldest] > entry.served:
                return  # a late label of a snapshot that was older: its figures are not kept any more
            del self._newest[oldest]
            self._rows = {each: rows for each, rows in self._rows.items() if each[0] != oldest}
        self._newest[entry.snapshot] = max(entry.served, self._newest.get(entry.snapshot, 0.0))
        if key not in self._rows:
            self._rows[key] = LabelledRows()
        self._rows[key].add(float(entry.scores[output][row]), value, entry.served, entry.number)

    def _take_early(self, name: str, entry: _Scored) -> None:
        _, waiting = self._early.pop(name, (0.0, {}))
        self.early -= len(waiting)
        for label in waiting.values():
            self.outcomes[self._join(entry, label)] += 1

    def _leave(self, name: str) -> None:
        entry = self._scored.pop(name)
        self._bytes -= entry.size_bytes
        entry.is_closed = True
        while self._open and self._open[0].is_closed:
            self._open.popleft()

    def _expire(self, now: float) -> None:
        while self._early:
            name, (since, waiting) = next(iter(self._early.items()))
            if now - since < EARLY_S:
                break
            del self._early[name]
            self.early -= len(waiting)
            self.outcomes["unknown"] += len(waiting)
        after = self.settings.negative_after_s
        while after is not None and self._open and now - self._open[0].served >= after:
            self._close(self._open.popleft())
        while self._scored:
            name, entry = next(iter(self._scored.items()))
            if now - entry.served < self.settings.keep_s:
                break
            self._leave(name)

    def _close(self, entry: _Scored) -> None:
        if entry.is_closed:
            return
        entry.is_closed = True
        for output in self._labelled_outputs & entry.scores.keys():
            rows = len(entry.scores[output])
            known = entry.labelled.get(output, bytes(rows))
            for row in range(rows):
                if not known[row]:
                    self.negatives += 1
                    self._count(entry, output, row, 0.0)

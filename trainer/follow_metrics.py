"""A page of metrics about a training that follows a stream, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from storage.data.streams import JoinedSource, StreamSource
from storage.errors import ConfigError
from trainer.freshness import STAGES
from trainer.loop import TrainingLoop
from trainer.rank_times import RankReport

_PREFIX = "emberline_trainer"
_AT = ["model", "at"]
_OF_RANKS: tuple[tuple[str, str, Callable[[RankReport], float]], ...] = (
    ("steps", "Steps of this process", lambda report: report.steps),
    ("work_seconds", "Time of steps in own work, waiting for data included", lambda report: report.work_seconds),
    ("data_seconds", "Time of steps in which they waited for data", lambda report: report.data_seconds),
    ("exchange_seconds", "Time of steps in exchanges and waiting for others", lambda report: report.waited_seconds),
)
_BYTES_OF_RANKS: tuple[tuple[str, str, Callable[[RankReport], dict[str, int]]], ...] = (
    ("sent_bytes", "Bytes that went to other ranks", lambda report: report.sent),
    ("received_bytes", "Bytes that came from other ranks", lambda report: report.received),
)


class FollowMetrics(Collector):
    """Collects the figures of a loop and its stream, on the thread of the scraper."""

    def __init__(self, loop: TrainingLoop, source: StreamSource) -> None:
        self._loop = loop
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """Yields every metric with its current value."""
        loop = self._loop
        model, position, freshness = loop.config.model_name, loop.position, loop.freshness
        for name, meaning, value in (
            ("rows", "Rows that the run was trained on", position.rows),
            ("steps", "Steps of the run", position.step),
            ("drifts", "Deltas of them that were published because the loss rose", loop.drifts),
            ("snapshots_published", "Versions and deltas that this process has published", len(loop.published)),
        ):
            counter = CounterMetricFamily(f"{_PREFIX}_{name}", f"{meaning}.", labels=["model"])
            counter.add_metric([model], value)
            yield counter
        waiting, unit = self._source.waiting()
        gauge = GaugeMetricFamily(f"{_PREFIX}_stream_waiting", "Came and was not read.", labels=["model", "unit"])
        gauge.add_metric([model, unit], waiting)
        yield gauge
        meaning = "Time of the newest event that was trained on, committed, published."
        newest = GaugeMetricFamily(f"{_PREFIX}_newest_event_unix_seconds", meaning, labels=_AT)
        meaning = "From an event until it was trained on, committed, published."
        ages = HistogramMetricFamily(f"{_PREFIX}_freshness_seconds", meaning, labels=_AT)
        for at in STAGES:
            if freshness.newest_unix_ms[at]:
                newest.add_metric([model, at], freshness.newest_unix_ms[at] / 1000)
                ages.add_metric([model, at], freshness.ages[at].buckets(), freshness.ages[at].sum_s)
        yield newest
        yield ages
        yield from self._ranks(model)
        yield from self._joined(model)

    def _ranks(self, model: str) -> Iterator[Metric]:
        """Yields the figures of each rank as they were at the last commit; none in one process."""
        reports = self._loop.rank_times.reports
        if not reports:
            return
        for name, meaning, value_of in _OF_RANKS:
            counter = CounterMetricFamily(f"{_PREFIX}_rank_{name}", f"{meaning}.", labels=["model", "rank", "host"])
            for report in reports:
                counter.add_metric([model, str(report.rank), report.host], value_of(report))
            yield counter
        for name, meaning, bytes_of in _BYTES_OF_RANKS:
            labels = ["model", "rank", "host", "kind"]
            counter = CounterMetricFamily(f"{_PREFIX}_rank_{name}", f"{meaning}.", labels=labels)
            for report in reports:
                for kind, count in sorted(bytes_of(report).items()):
                    counter.add_metric([model, str(report.rank), report.host, kind], count)
            yield counter

    def _joined(self, model: str) -> Iterator[Metric]:
        if not isinstance(self._source, JoinedSource):
            return
        figures = self._source.figures
        waiting = GaugeMetricFamily(f"{_PREFIX}_join_waiting", "Events that a join holds.", labels=["model", "what"])
        for what, name in (("rows", "waiting_rows"), ("labels", "held_labels")):
            waiting.add_metric([model, what], figures.pop(name))
        yield waiting
        meaning = "Events that were joined or left out, since the stream was followed for the first time."
        events = CounterMetricFamily(f"{_PREFIX}_join_events", meaning, labels=["model", "what"])
        for what, count in figures.items():
            events.add_metric([model, what], count)
        yield events


@contextmanager
def shown_metrics(loop: TrainingLoop, source: StreamSource, host: str, port: int | None) -> Iterator[int | None]:
    """Answers scrapers for the block; yields the port, 0 takes a free one. None: on none.

    Raises ConfigError for a port that is taken.
    """
    if port is None:
        yield None
        return
    registry = CollectorRegistry()
    registry.register(FollowMetrics(loop, source))
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"metrics_port: {host}:{port}: {error}", field="metrics_port") from None
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

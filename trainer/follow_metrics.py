"""A page of metrics about a training that follows a stream, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from storage.data.streams import JoinedSource, StreamSource
from storage.errors import ConfigError
from trainer.freshness import STAGES
from trainer.loop import TrainingLoop

_PREFIX = "emberline_trainer"
_AT = ["model", "at"]


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
        yield from self._joined(model)

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

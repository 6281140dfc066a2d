"""Builds families of metrics for prometheus_client, and their page in the format that a scraper asks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from storage.checkpoint.event_times import EventAges

Labels = dict[str, str]

# Triton's counters do not end in _total, but prometheus_client writes every counter with it.
_TRITON = "nv_"
_TRITON_HEADS = re.compile(rb"^(# (?:HELP|TYPE) nv_\w+)_total ", re.MULTILINE)
# Large and whole numbers are written as digits: Triton's perf_analyzer reads no exponents.
_LARGE_OR_WHOLE = re.compile(rb"(?<= )(\d+\.0|\d(?:\.\d+)?e\+\d+)$", re.MULTILINE)
# Parts of Accept that choose how names are escaped; all of these names are plain.
_ESCAPING = re.compile(r";\s*escaping=[^;,]*", re.IGNORECASE)


def family(name: str, kind: str, meaning: str, samples: Iterable[tuple[Labels, float]]) -> Metric:
    """Builds a metric with its samples. meaning: a sentence without its full stop."""
    metric = Metric(name.removesuffix("_total") if kind == "counter" else name, f"{meaning}.", kind)
    metric.samples = [Sample(name, labels, value) for labels, value in samples]
    return metric


def event_ages(name: str, meaning: str, known: Iterable[tuple[EventAges, Labels]]) -> Metric:
    """Builds a histogram of ages in seconds, in whole events. Their labels have the same names."""
    several = list(known)
    metric = HistogramMetricFamily(name, f"{meaning}.", labels=list(several[0][1]) if several else ())
    for ages, of in several:
        metric.add_metric(list(of.values()), ages.buckets(), ages.sum_s)
    return metric


def label_value(text: str) -> str:
    """Returns a text as a label's value; replaces what is not valid Unicode, as in some file names."""
    return text.encode("utf-8", "replace").decode()


class Families(Collector):
    """Passes the families of one page to the encoder that `choose_encoder` returns."""

    def __init__(self, families: Callable[[], Iterable[Metric]], *, is_openmetrics: bool) -> None:
        self._families = families
        self._is_openmetrics = is_openmetrics

    def collect(self) -> Iterator[Metric]:
        """Yields the families. In OpenMetrics, Triton's counters get the type unknown, and bucket bounds are floats.

        OpenMetrics has no counters without _total.
        """
        for metric in self._families():
            if self._is_openmetrics and metric.type == "counter" and metric.name.startswith(_TRITON):
                metric.type = "unknown"
            elif self._is_openmetrics and metric.type == "histogram":
                metric.samples = [_with_float_end(sample) for sample in metric.samples]
            yield metric


def _with_float_end(sample: Sample) -> Sample:
    end = sample.labels.get("le")
    if end is None:
        return sample
    return sample._replace(labels={**sample.labels, "le": floatToGoString(end)})  # type: ignore[no-untyped-call]


def encode(families: Callable[[], Iterable[Metric]], accept: str) -> tuple[bytes, str]:
    """Returns the page and its content type. accept: the request's Accept header."""
    try:
        encoder, content_type = choose_encoder(_ESCAPING.sub("", accept))
    except (TypeError, ValueError):  # the header has a malformed version
        encoder, content_type = generate_latest, CONTENT_TYPE_PLAIN_0_0_4
    is_openmetrics = content_type.startswith("application/openmetrics-text")
    page = encoder(Families(families, is_openmetrics=is_openmetrics))
    if is_openmetrics:
        return page, content_type
    return _LARGE_OR_WHOLE.sub(_plain, _TRITON_HEADS.sub(rb"\1 ", page)), content_type


def _plain(found: re.Match[bytes]) -> bytes:
    value = float(found[1])
    return b"%d" % value if value.is_integer() else repr(value).encode()

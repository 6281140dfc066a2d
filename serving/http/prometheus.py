"""Families of metrics for prometheus_client, and their page in the format that a scraper asks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

Labels = dict[str, str]

# Triton's counters do not end in _total, as prometheus_client lets every counter.
_TRITON = "nv_"
_TRITON_HEADS = re.compile(rb"^(# (?:HELP|TYPE) nv_\w+)_total ", re.MULTILINE)


def family(name: str, kind: str, meaning: str, samples: Iterable[tuple[Labels, float]]) -> Metric:
    """A metric and its samples. meaning: a sentence without its full stop."""
    metric = Metric(name.removesuffix("_total") if kind == "counter" else name, f"{meaning}.", kind)
    metric.samples = [Sample(name, labels, value) for labels, value in samples]
    return metric


def label_value(text: str) -> str:
    """A label's value: what is no Unicode text, as the names of files may be, is replaced."""
    return text.encode("utf-8", "replace").decode()


class Families(Collector):
    """The families of one page, as `choose_encoder` wants them."""

    def __init__(self, families: Callable[[], Iterable[Metric]], *, is_openmetrics: bool) -> None:
        self._families = families
        self._is_openmetrics = is_openmetrics

    def collect(self) -> Iterator[Metric]:
        """OpenMetrics has no counters without _total, so that Triton's are of unknown type; and ends are floats."""
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
    """The page, and its content type. accept: the request's Accept."""
    try:
        encoder, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no version
        encoder, content_type = generate_latest, CONTENT_TYPE_PLAIN_0_0_4
    is_openmetrics = content_type.startswith("application/openmetrics-text")
    page = encoder(Families(families, is_openmetrics=is_openmetrics))
    return (page if is_openmetrics else _TRITON_HEADS.sub(rb"\1 ", page)), content_type

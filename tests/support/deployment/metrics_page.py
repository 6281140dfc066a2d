"""Reads a server's metrics page, and compares PromQL expressions with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

# Prometheus adds these to every sample, the last two on Kubernetes.
OF_TARGETS = {"job", "instance", "namespace", "pod"}
# Prometheus makes these itself.
_ITS_OWN = {"up", "ALERTS"}
# Labels of metrics that a server which is well has no samples of, and of ALERTS.
_SELDOM = {"reason", "alertname", "client", "replica"}
_SELECTOR = re.compile(r"\b([a-zA-Z_:][\w:]*)\s*\{([^}]*)\}")
_NAME = re.compile(r"\b(?:emberline|nv)_\w+")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")


@dataclass
class MetricsPage:
    """The names of metrics and of their labels."""

    #: Labels by the name of samples; None where a metric has no sample at present.
    labels: dict[str, set[str] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> MetricsPage:
        """Reads Prometheus' text format."""
        page = cls(dict.fromkeys(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)))
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                page.labels[sample.name] = (page.labels.get(sample.name) or set()) | set(sample.labels)
        return page

    def joined(self, other: MetricsPage) -> MetricsPage:
        """Returns a page with what either of the two has."""
        found = dict(self.labels)
        for name, labels in other.labels.items():
            known = found.get(name)
            found[name] = labels if known is None else known | (labels or set())
        return MetricsPage(found)

    def missing(self, expression: str) -> list[str]:
        """Returns what an expression asks for and the page has not: metrics, or METRIC{LABEL}."""
        selectors = [(name, pattern) for name, pattern in _SELECTOR.findall(expression)]
        names = {*_NAME.findall(re.sub(r"\{[^}]*\}", "", expression)), *(name for name, _ in selectors)}
        found = sorted(name for name in names - _ITS_OWN if name not in self.labels)
        for name, inside in selectors:
            known = self.labels.get(name)
            if known is not None:
                asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside))
                found += [f"{name}{{{label}}}" for label in sorted(asked - known - OF_TARGETS)]
        known_anywhere = OF_TARGETS.union(*(each for each in self.labels.values() if each)) | _SELDOM
        for group in _GROUPING.findall(expression):
            found += [label for label in re.findall(r"\w+", group) if label not in known_anywhere]
        return found


def strings(value: Any, key: str) -> Iterator[str]:
    """Yields every text under a key, at any depth of a document."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name == key and isinstance(each, str):
                yield each
            else:
                yield from strings(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each, key)

"""Writes the reference of the metrics, of the source that makes them."""

from __future__ import annotations

from pathlib import Path

from docs.site.markdown_tables import code, prose, table
from docs.site.metric_calls import Described, metrics_of

_INTRODUCTION = """\
# All metrics

`GET /metrics` of a server's metrics port (8002) has these; [metrics](../metrics.md) explains them. A metric exists
where its subject does: a GPU, a bucket, a fleet, a shadow.
"""
_SECTIONS = {
    "nv_": ("Triton's names", "A server has these for dashboards that were made for Triton."),
    "emberline_trainer": (
        "A trainer that follows a stream",
        "These are on a page of the trainer's own, with `emberline update --follow ... --metrics-port`.",
    ),
    "": ("A server", "These are the server's own."),
}


def all_metrics(root: Path) -> list[Described]:
    """Returns every metric of servers and trainers, by name. Raises SiteError for one that cannot be read."""
    found: set[Described] = set()
    for package in ("serving", "trainer"):
        for file in sorted((root / package).rglob("*.py")):
            source = file.read_text(encoding="utf-8")
            if "prometheus" in source or "GpuMetric(" in source:
                found.update(metrics_of(source, file.relative_to(root).as_posix()))
    return sorted(found)


def metrics_page(root: Path) -> str:
    """Returns the page with a table of the metrics of each kind of process."""
    left = all_metrics(root)
    parts = [_INTRODUCTION]
    texts = {}
    for prefix, (heading, said) in _SECTIONS.items():
        rows = [
            (code(exposed(each)), each.kind, ", ".join(map(code, each.labels)), prose(each.meaning))
            for each in left
            if each.name.startswith(prefix)
        ]
        left = [each for each in left if not each.name.startswith(prefix)]
        texts[prefix] = f"## {heading}\n\n{said}\n\n{table(('metric', 'kind', 'labels', 'meaning'), rows)}"
    return "\n".join([*parts, texts[""], texts["emberline_trainer"], texts["nv_"]])


def exposed(metric: Described) -> str:
    """Returns the name on the page: prometheus_client ends its own counters with _total."""
    is_bare = metric.kind == "counter" and not metric.name.startswith("nv_") and not metric.name.endswith("_total")
    return f"{metric.name}_total" if is_bare else metric.name

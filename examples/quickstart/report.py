"""Reports of the quickstart: the table at its end, report.json, and lines to try."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from examples.quickstart.judge import Comparison
from examples.quickstart.newer import NewerFindings
from examples.quickstart.stream import StreamFindings
from storage import PublishedVersion
from trainer import TrainReport

_LABELS = re.compile(r'emberline_(\w+)\{model="([^"]+)",(?:tier="([^"]+)",)?version="[^"]+"\}')


@dataclass(frozen=True)
class Findings:
    """Everything measured."""

    comparisons: list[Comparison]
    #: Largest difference to the trainer's scores, by (model, transport).
    parity: dict[tuple[str, str], float]
    load: dict[str, dict[str, float]]
    #: Hits, rows and bytes by tier, by model.
    tiers: dict[str, dict[str, dict[str, float]]]
    version: PublishedVersion
    trained: TrainReport
    seconds: dict[str, float]
    newer: NewerFindings
    followed: StreamFindings


def tiers(metrics: dict[str, float]) -> dict[str, dict[str, dict[str, float]]]:
    """Returns model -> hits, rows and bytes, each by tier; from the server's metrics page."""
    wanted = {"ids_hit_total": "hits", "tier_rows": "rows", "tier_bytes": "bytes"}
    counts = {"ids_absent_total": "absent", "ids_unresolved_total": "unresolved"}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for sample, value in metrics.items():
        match = _LABELS.fullmatch(sample)
        if match is None:
            continue
        name, model, tier = match.groups()
        entry = found.setdefault(model, {"hits": {}, "rows": {}, "bytes": {}})
        if name in wanted and tier is not None:
            entry[wanted[name]][tier] = value
        elif name in counts:
            entry["hits"][counts[name]] = value
    return found


def write_report(path: Path, findings: Findings, *, tolerance: float) -> bool:
    """Writes report.json; returns whether baselines were beaten, all transports agreed, no request failed."""
    regression, rate = findings.comparisons[0], findings.comparisons[1]
    parity = max(findings.parity.values())
    failures = sum(int(figures["failures"]) for figures in findings.load.values())
    good = all(entry.won for entry in findings.comparisons) and parity <= tolerance and failures == 0
    good = good and findings.newer.good(tolerance)
    model = next(iter(findings.parity))[0]
    content = {
        "auc": regression.auc,
        "auc_logistic": regression.auc_baseline,
        "auc_mean_rate": rate.auc_baseline,
        "parity": parity,
        "http_p99_ms": findings.load["http_binary"]["p99_ms"],
        "grpc_p99_ms": findings.load["grpc"]["p99_ms"],
        "hits": {name: entry["hits"] for name, entry in findings.tiers.items()},
        "bytes": {name: entry["bytes"] for name, entry in findings.tiers.items()},
        **findings.newer.to_json_value(),
        "click_to_served_s": findings.followed.median_s,
        "clicks_to_served_s": findings.followed.seconds,
        "all_shown": good,
        "comparisons": [entry.to_json_value() for entry in findings.comparisons],
        "parity_by_transport": {f"{name}: {transport}": value for (name, transport), value in findings.parity.items()},
        "loadtest": findings.load,
        "model": model,
        "published_bytes": sum(entry.size for entry in findings.version.manifest.files),
        "training": findings.trained.to_json_value(),
        "seconds": {**findings.seconds, "all": sum(findings.seconds.values())},
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return good


def print_table(console: Console, findings: Findings) -> None:
    """Prints the table at the end."""
    table = Table(title="\nWhat came out", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for number, entry in enumerate(findings.comparisons):
        if number % 2 == 0:
            table.add_row(f"AUC, {entry.rows_of}", f"{entry.auc:.4f} on {entry.rows:,} rows")
        verdict = "better" if entry.won else "not shown to be better"
        table.add_row(
            f"  {entry.baseline}",
            f"{entry.auc_baseline:.4f}: {entry.difference:+.4f} ({entry.low:+.4f} to {entry.high:+.4f}), {verdict}",
        )
    table.add_section()
    table.add_row("largest difference, served and trainer", f"{max(findings.parity.values()):.2g}")
    for model, tier_counts in findings.tiers.items():
        hits = ", ".join(f"{tier} {count:,.0f}" for tier, count in tier_counts["hits"].items())
        table.add_row(f"{model}: ids by where they were found", hits)
        sizes = ", ".join(
            f"{tier} {tier_counts['rows'].get(tier, 0):,.0f} rows in {size:,.0f} bytes"
            for tier, size in tier_counts["bytes"].items()
        )
        table.add_row(f"{model}: tiers", sizes)
    table.add_section()
    for kind, figures in findings.load.items():
        table.add_row(
            f"{kind}: p50, p99",
            f"{figures['p50_ms']:.2f} ms, {figures['p99_ms']:.2f} ms"
            f" at {figures['requests_per_second']:,.0f} requests/s",
        )
    table.add_section()
    newer = findings.newer
    table.add_row("AUC served, before and after the newer clicks", f"{newer.auc_before:.4f}, {newer.auc_after:.4f}")
    table.add_row(
        "delta", f"{newer.delta_rows:,} rows, {newer.delta_bytes:,} bytes, visible in {newer.visible_ms:.0f} ms"
    )
    table.add_row("requests failed meanwhile", f"{newer.load['failures']:.0f} of {newer.load['requests']:,.0f}")
    table.add_row(
        "click written to served, with a delta each second",
        f"{findings.followed.median_s:.1f} s, at most {max(findings.followed.seconds):.1f} s",
    )
    table.add_section()
    table.add_row("seconds", f"{sum(findings.seconds.values()):.0f}")
    console.print(table)

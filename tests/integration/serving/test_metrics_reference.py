"""The reference of metrics, which is read from the source, has what the page of a running server has."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from docs.site.metrics import all_metrics, exposed
from serving import Server

ROOT = Path(__file__).parents[3]


def test_every_metric_of_a_server_is_in_the_reference_with_its_labels(server: Server) -> None:
    known = {exposed(each): (each.kind, set(each.labels)) for each in all_metrics(ROOT)}
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    seen = 0
    for family in families:
        for sample in family.samples:
            name = re.sub(r"_(bucket|sum|count)$", "", sample.name) if family.type == "histogram" else sample.name
            # The parser ends Triton's counters with _total; on the page they do not.
            name = name.removesuffix("_total") if name.startswith("nv_") else name
            labels = set(sample.labels) - {"le"}
            assert name in known, name
            assert labels == known[name][1], name
            assert family.type == known[name][0], name
            seen += 1
    assert seen > 60

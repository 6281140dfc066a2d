"""Prints a model's counts and mean times from its statistics, and a counter from the metrics page."""

from __future__ import annotations

import argparse
import urllib.request

import tritonclient.http as triton


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="127.0.0.1:8000", help="the server's HTTP address, without http://")
    parser.add_argument("--metrics-url", default="http://127.0.0.1:8002/metrics", help="the metrics page")
    parser.add_argument("--model", default="tiny")
    options = parser.parse_args()

    with triton.InferenceServerClient(options.url) as client:
        entry = client.get_inference_statistics(options.model)["model_stats"][0]
    stages = entry["inference_stats"]
    print(f"requests {stages['success']['count']}, failed {stages['fail']['count']}")
    print(f"rows {entry['inference_count']}, batches {entry['execution_count']}")
    for stage in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        count = stages[stage]["count"]
        print(f"{stage}: {stages[stage]['ns'] / max(1, count) / 1000:.0f} us on average")

    with urllib.request.urlopen(options.metrics_url, timeout=5) as page:
        for line in page.read().decode().splitlines():
            if line.startswith("emberline_requests_success_total") and f'model="{options.model}"' in line:
                print(line)


if __name__ == "__main__":
    main()

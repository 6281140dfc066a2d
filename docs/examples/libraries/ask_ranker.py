"""Asks a server for the scores of films, and compares them with torch's."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import tritonclient.http as triton
from film_ranker import columns, ranker

KINDS = {torch.int64: "INT64", torch.float32: "FP32"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path, help="model.pth of the training whose scores are expected")
    parser.add_argument("data", type=Path, help="rated films")
    parser.add_argument("--url", default="127.0.0.1:8000", help="the server's HTTP address, without http://")
    parser.add_argument("--min-snapshot", default="1.0", help="wait for this snapshot, or a later one")
    given = parser.parse_args()
    rows = {name: values[:500] for name, values in columns(given.data).items() if name != "label"}
    model = ranker().eval()
    model.load_state_dict(torch.load(given.weights, weights_only=True))
    with torch.no_grad():
        expected = model(rows).numpy()
    inputs = []
    for name, values in rows.items():
        entry = triton.InferInput(name, [len(values), 1], KINDS[values.dtype])
        entry.set_data_from_numpy(values.reshape(-1, 1).numpy())
        inputs.append(entry)
    with triton.InferenceServerClient(given.url) as client:
        answer = client.infer("film_ranker", inputs, parameters={"min_snapshot": given.min_snapshot})
    difference = np.abs(answer.as_numpy("score")[:, 0] - expected).max()
    said = answer.get_response()
    snapshot = f"{said['model_version']}.{said['parameters']['sequence']}"
    print(f"snapshot {snapshot}, largest difference from torch {difference:.1e}")


if __name__ == "__main__":
    main()

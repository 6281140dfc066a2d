"""Runs as model.py in Triton's Python backend: the same DLRM in plain torch, its tables one tensor.

Its parameters: `weights`, the tensors; `root`, the folder that contains `benchmarks`; `threads` of torch.
"""

# mypy: ignore-errors
import json
import sys

import numpy as np


class TritonPythonModel:
    """Does one lookup for all 26 tables, and one forward for all requests of a batch."""

    def initialize(self, args):
        parameters = {
            name: entry["string_value"] for name, entry in json.loads(args["model_config"])["parameters"].items()
        }
        sys.path.insert(0, parameters["root"])
        import torch
        from safetensors.torch import load_file

        from benchmarks.dlrm_towers import ROWS, SPARSE, Towers

        torch.set_num_threads(int(parameters["threads"]))
        self._torch = torch
        weights = load_file(parameters["weights"])
        self._rows = weights.pop("rows")
        self._towers = Towers().eval()
        self._towers.load_state_dict(weights)
        self._offsets = torch.arange(SPARSE) * ROWS

    def execute(self, requests):
        import triton_python_backend_utils as pb_utils

        torch = self._torch
        ids, dense = (
            [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for request in requests]
            for name in ("ids", "dense")
        )
        sizes = [len(part) for part in ids]
        with torch.inference_mode():
            one = len(requests) == 1
            all_ids = torch.from_numpy(ids[0] if one else np.concatenate(ids))
            all_dense = torch.from_numpy(dense[0] if one else np.concatenate(dense))
            rows = torch.nn.functional.embedding(all_ids + self._offsets, self._rows)
            scores = self._towers(all_dense, rows).numpy()
        ends = np.cumsum(sizes)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("score", scores[end - size : end])])
            for end, size in zip(ends, sizes, strict=True)
        ]

"""Commands to try on a running server: curl, the command line, tritonclient; each with a real row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from loadtest.rows import input_table, model_inputs
from tests.support.server_process import ServerProcess

_TRITONCLIENT = """\
  {python} - <<'END'
  import numpy as np, tritonclient.http as http
  columns = {columns}
  inputs = []
  for name, (dtype, numpy_dtype, values) in columns.items():
      array = np.array([values], numpy_dtype)
      inputs.append(http.InferInput(name, list(array.shape), dtype))
      inputs[-1].set_data_from_numpy(array)
  print(http.InferenceServerClient("{address}").infer("{model}", inputs).as_numpy("score"))
END"""
_NUMPY = {"INT64": "int64", "BYTES": "object", "FP32": "float32"}
# Lists are cut so that the lines stay readable.
_LIST = 3


def what_to_try(server: ServerProcess, model: str, data: Path, python: str) -> str:
    """Returns text to paste into a shell."""
    inputs = model_inputs(server.url, model)
    row: dict[str, Any] = input_table(data, inputs, 1).to_pylist()[0]
    short = {name: value[:_LIST] if isinstance(value, list) else value for name, value in row.items()}
    body = json.dumps({"instances": [short]}).replace("'", "'\\''")
    columns = {
        entry.name: (entry.dtype, _NUMPY[entry.dtype], short[entry.name] if entry.is_list else [short[entry.name]])
        for entry in inputs
        if short[entry.name] not in (None, [])
    }
    address = server.url.removeprefix("http://")
    return "\n\n".join(
        [
            f"  curl -s {server.url}/v1/models/{model}:predict -d '{body}'",
            f"  {python} -m emberline predict {model} --url {server.url} --data {data} --rows 5",
            _TRITONCLIENT.format(python=python, columns=columns, address=address, model=model).replace("\n  ", "\n"),
        ]
    )

"""Writes what wrk and wrk2 send: bodies as files, and the Lua that sends them in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

_REQUESTS = """
local requests, at = {{}}, 0
local lengths = {{ {lengths} }}

function init()
  for index = 0, {count} - 1 do
    local file = assert(io.open("{bodies}-" .. index, "rb"))
    local headers = {{ {headers} }}
    if lengths[index + 1] > 0 then headers["Inference-Header-Content-Length"] = tostring(lengths[index + 1]) end
    requests[index] = wrk.format("POST", nil, headers, file:read("*a"))
    file:close()
  end
end

function request()
  at = at + 1
  return requests[at % {count}]
end
"""


def wrk_requests(bodies: Sequence[tuple[bytes, int]], headers: Mapping[str, str], place: Path) -> str:
    """Writes bodies beside `place`, and returns the Lua functions `init` and `request` that send them.

    bodies: with the length of each one's JSON, 0 for one that is JSON throughout. place: the files are called so, with
    a number behind.
    """
    for number, (body, _) in enumerate(bodies):
        place.with_name(f"{place.name}-{number}").write_bytes(body)
    return _REQUESTS.format(
        count=len(bodies),
        lengths=", ".join(str(header) for _, header in bodies),
        headers=", ".join(f'["{name}"] = "{value}"' for name, value in headers.items()),
        bodies=place,
    )

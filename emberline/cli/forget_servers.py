"""Waits until servers have let go of what was forgotten, and asks them for the ids."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from emberline.cli.server_call import call_server, model_path
from storage.errors import EmberlineError
from storage.forgetting import Wanted

_LOOK_S = 0.5
_IDS_AT_ONCE = 8_192


@dataclass
class ServerFindings:
    """Says what a server has of the ids."""

    url: str
    #: Why it may still have rows of them; "" when it has none.
    left: str = ""
    #: The snapshot that it serves.
    serves: str = ""
    #: Ids that it was asked for, and how many of them have a row.
    asked: int = 0
    with_row: int = 0
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        """True if it has let go of everything."""
        return not self.left and not self.with_row


def wait_for_server(url: str, model: str, version: int, wanted: Wanted, until: float) -> ServerFindings:
    """Waits until a server serves this version or a later one, and has deleted the stores and files before it.

    until: when waiting ends (`time.monotonic`). What the server has then is in the findings; a server that does not
    answer is among them.
    """
    started, found = time.monotonic(), ServerFindings(url)
    while True:
        try:
            found.left, found.serves = still_left(call_server(url, model_path(model, "snapshots"), 30.0)[0], version)
        except EmberlineError as error:
            found.left = str(error)
        found.seconds = time.monotonic() - started
        if not found.left or time.monotonic() >= until:
            break
        time.sleep(_LOOK_S)
    if not found.left:
        try:
            for table in wanted.tables:
                for ids in _pieces(wanted, table):
                    found.with_row += _with_row(url, f"{model}.{table}", ids)
                    found.asked += len(ids)
        except EmberlineError as error:
            found.left = f"it does not say which of the ids have a row: {error}"
    return found


def still_left(state: dict[str, Any], version: int) -> tuple[str, str]:
    """Returns what a server still has of before a version, and what it serves."""
    served = state.get("served")
    name = served["name"] if served else "nothing"
    if not served or served["version"] < version:
        held = {"held": "resume", "paused": "resume", "pinned": "resume"}.get(state["mode"])
        hint = f"; it is {state['mode']}: `emberline {held} {state['model']}` ends that" if held else ""
        return f"it serves {name} and has not taken version {version}{hint}", name
    older = [entry["name"] for entry in state["snapshots"] if int(entry["name"].partition(".")[0]) < version]
    if older:
        return f"it still has {', '.join(older)}", name
    if "store_unreadable" in state:
        return f"it cannot read the folder of its stores: {state['store_unreadable']}", name
    if len(state["stores"]) > 1:
        return f"it still has the stores {', '.join(state['stores'])}", name
    known = {entry["id"] for entry in state["snapshots"]} | {served["id"]}
    kept = [each for each in state["kept"] if each not in known]
    # A version stays linked while deltas of it are served.
    if len(kept) > 1:
        return f"it still keeps files of {len(kept)} snapshots that it does not serve", name
    return "", name


def _pieces(wanted: Wanted, table: str) -> Iterator[list[int]]:
    ids = wanted.tables[table].tolist()
    return (ids[start : start + _IDS_AT_ONCE] for start in range(0, len(ids), _IDS_AT_ONCE))


def _with_row(url: str, table: str, ids: list[int]) -> int:
    asked = {"name": "ids", "datatype": "INT64", "shape": [len(ids)], "data": ids}
    body = {"inputs": [asked], "outputs": [{"name": "found"}]}
    answer, _ = call_server(url, f"/v2/models/{quote(table, safe='')}/infer", 60.0, body)
    return int(sum(map(bool, answer["outputs"][0]["data"])))

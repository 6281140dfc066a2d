"""Types the blocks of `sh` of a page as a reader of it does, who has models, data and servers already.

The commands stay as they are written. A server, and a training that follows a stream, would never end: a server runs
until the next one starts or the page ends, and a training until it has published something, and both are then asked to
stop and have to end well.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.followed_page import follow
from tests.support.page_runs import NOT_RUN
from tests.support.shown_commands import blocks_of

_FUNCTIONS = """
top=$PWD server=
stop() { if [ -n "$server" ]; then kill "$server"; wait "$server"; server=; fi; }
fresh() { stop; cd "$top"; rm -rf here; cp -r base/ here; cd here; export HOME="$top/here/home"; mkdir -p "$HOME"; }
serving() {
  stop
  : > server.log
  "$@" > server.log 2>&1 &
  server=$!
  until grep --quiet 'model versions ready' server.log; do
    kill -0 "$server" || { cat server.log; exit 1; }
    sleep 0.1
  done
}
curl() { command curl --silent --show-error --fail "$@"; }
snapshots() { find model_repo -name manifest.json | wc -l; }
following() {
  before=$(snapshots)
  "$@" &
  follower=$!
  until [ "$(snapshots)" -gt "$before" ]; do kill -0 "$follower"; sleep 0.1; done
  kill "$follower"
  wait "$follower"
}
"""


@dataclass(frozen=True)
class Reader:
    """Describes what a reader has when a block is typed, and what is smaller in a test."""

    #: Shell that runs before each block.
    before: str = ""
    #: Shell that runs before the block whose first command begins so, in place of `before`.
    before_block: Mapping[str, str] = field(default_factory=dict)
    #: Parts of commands, and what a test types in their place.
    smaller: Mapping[str, str] = field(default_factory=dict)


def type_page(page: str, folder: Path, reader: Reader, timeout_s: float) -> dict[str, str]:
    """Runs the commands of a page that NOT_RUN does not name; returns what each block printed, by its first command.

    folder: has a folder `base`; `fresh` in the shell of a reader copies it to `here`, and goes there. Fails when a
    command fails.
    """
    blocks = _blocks_to_type(page)
    missing = [start for start in reader.before_block if not any(block[0].startswith(start) for block in blocks)]
    missing += [part for part in reader.smaller if not any(part in line for block in blocks for line in block)]
    assert not missing, f"{page} no longer has {missing}"
    text = f"```sh\n{_FUNCTIONS}fresh\n```\n"
    for block in blocks:
        starts = [shell for start, shell in reader.before_block.items() if block[0].startswith(start)]
        lines = [starts[0] if starts else reader.before, *(_typed(line, reader.smaller) for line in block)]
        text += "```sh\n" + "\n".join(lines) + "\n```\n"
    text += "```sh\nstop\n```\n"
    _, *printed, _ = follow(text, folder, timeout_s)
    return {block[0]: output for block, output in zip(blocks, printed, strict=True)}


def _blocks_to_type(page: str) -> list[list[str]]:
    reasons = tuple(NOT_RUN.get(page, {}))
    typed = [[line for line in block if not line.startswith(reasons)] for block in blocks_of(page)]
    return [block for block in typed if block]


def _typed(line: str, smaller: Mapping[str, str]) -> str:
    for part, less in smaller.items():
        line = line.replace(part, less)
    words = shlex.split(line, comments=True)
    if words[:2] == ["emberline", "serve"]:
        return "serving " + re.sub(r"\s*&$", "", line)
    if "--follow" in words and "--until-idle" not in words:
        return f"following {line}"
    return line

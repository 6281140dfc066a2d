"""`emberline trace`: records a timeline of a server's threads for Chrome's and Perfetto's viewers."""

from __future__ import annotations

import json
from pathlib import Path

import click

from emberline.cli.command import Command, LocalPath
from emberline.cli.server_call import URL, call_server

_PATH, _MAX_S = "/v2/trace/timeline", 60.0
# For the answer, which may have tens of megabytes.
_ANSWER_S = 60.0


@click.command(
    cls=Command,
    name="trace",
    epilog="""\b
Example:
  emberline trace --seconds 5 --output build/trace.json""",
)
@click.option("--seconds", type=click.FloatRange(0.1, _MAX_S), default=5.0, help="How long to record.")
@click.option(
    "--output",
    type=LocalPath(dir_okay=False),
    default="trace.json",
    help="The file to write, for ui.perfetto.dev or chrome://tracing.",
)
@URL
def command(seconds: float, output: Path, url: str) -> None:
    """Record what the threads of a running server do, as a timeline.

    It shows front ends, queues and sessions: when each request was read, waited, and was part of a batch, and the
    stages of each batch. Requests are answered as usual meanwhile; each costs some microseconds more.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    content, _ = call_server(url, _PATH, seconds + _ANSWER_S, {"seconds": seconds})
    output.write_text(json.dumps(content))
    told = content["otherData"]
    whole = "" if told["is_whole"] else ", the first ones: there were more than the file takes"
    click.echo(f"wrote {output}: {told['requests']:,} requests{whole}")

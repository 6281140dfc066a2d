"""`emberline health`: tells whether the server beside it is ready, for health checks of containers."""

from __future__ import annotations

import click

from emberline.cli.command import Command
from storage.errors import Unavailable


@click.command(
    cls=Command,
    name="health",
    epilog="""\b
Examples:
  emberline health
  emberline health --http-port 9000      where several servers run""",
)
@click.option(
    "--http-port",
    type=click.IntRange(1, 65535),
    help="The server's port for HTTP; default: the only server of this machine or container.",
)
@click.option("--timeout", type=click.FloatRange(0.1, 86_400), default=2.0, help="Seconds to wait for the answer.")
def command(http_port: int | None, timeout: float) -> None:
    """Exit with 0 when the server on this machine, or in this container, is ready, and with 1 when it is not.

    It asks by a local socket, so that no address, certificate or token is needed. From another machine GET
    /v2/health/ready says the same.
    """
    from serving.local_health import ask_local_health

    if not ask_local_health(http_port, timeout):
        raise Unavailable("not ready")
    click.echo("ready")

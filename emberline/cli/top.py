"""`emberline top`: watches the models of a running server in a terminal."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import click

from emberline.cli.command import Command
from emberline.cli.console import JSON, print_json, table_console
from emberline.cli.server_call import URL, read_page, timeout_option
from emberline.terminal import has_colours, is_terminal
from storage.errors import ConfigError, EmberlineError, Unavailable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from emberline.top.frame import Screen
    from emberline.top.keys import Keys
    from emberline.top.readings import Reading

_PAGE = "/metrics"
_NO_BOUND = 1_000_000


@click.command(
    cls=Command,
    name="top",
    epilog="""\b
Examples:
  emberline top
  emberline top --url http://10.0.0.7:8000 --interval 5
  emberline top --once              one frame, for a script or a ticket
  emberline top --once --json

\b
Keys: q quits, s sorts by name, requests/s, p99, queue or bytes, p pauses.""",
)
@URL
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=2.0, help="Seconds between two frames.")
@click.option("--once", is_flag=True, help="Print one frame, of one interval, and end.")
@JSON
@timeout_option(5.0)
def command(url: str, interval: float, once: bool, as_json: bool, timeout: float) -> None:
    """Watch the models of a server: requests, times, sessions, where rows are found, snapshots and updates.

    Rates and times are those of the last interval. A server that goes away is asked again until it is back. A star
    behind a snapshot says that an update waits; `emberline snapshots MODEL` says for what.
    """
    if as_json and not once:
        raise click.UsageError("--json goes with --once")
    if once:
        _print_once(url, interval, timeout, as_json)
        return
    if not is_terminal(sys.stdout):
        raise click.UsageError("standard output is no terminal; --once prints one frame")
    _watch(url, interval, timeout)


def _print_once(url: str, interval: float, timeout: float, as_json: bool) -> None:
    from emberline.top.figures import figures_of
    from emberline.top.frame import Screen
    from emberline.top.readings import Window

    before = _read(url, timeout)
    time.sleep(interval)
    figures = figures_of(Window(before, _read(url, timeout)))
    if as_json:
        print_json({"url": url, "unix_ms": time.time_ns() // 1_000_000, **figures.to_json_value()})
        return
    console = table_console()
    for line in Screen(url, figures).lines(console.width, _NO_BOUND, keys=False):
        console.print(line)


def _read(url: str, timeout: float) -> Reading:
    from emberline.top.readings import Reading

    page = read_page(url, _PAGE, timeout)
    try:
        return Reading.parse(page, time.monotonic())
    except ValueError as error:
        raise Unavailable(f"{url.rstrip('/')}{_PAGE} is no page of metrics: {error}") from None


def _watch(url: str, interval: float, timeout: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from emberline.top.frame import SORTS, Screen
    from emberline.top.keys import SUSPEND, Keys

    colours = has_colours(sys.stdout)
    console = Console(no_color=not colours, color_system="auto" if colours else None, highlight=False)
    screen, before, sorts = Screen(url), None, list(SORTS)
    with Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            if not screen.is_paused:
                before = _renew(screen, before, timeout)
            until = time.monotonic() + interval
            while True:
                _draw(live, screen, console)
                key = keys.wait(max(0.0, until - time.monotonic()))
                if key == "q":
                    return
                if key == SUSPEND:
                    _suspend(keys, live)
                if key == "s":
                    screen.sort = sorts[(sorts.index(screen.sort) + 1) % len(sorts)]
                elif key in ("p", " "):
                    screen.is_paused = not screen.is_paused
                if time.monotonic() >= until:
                    break


def _renew(screen: Screen, before: Reading | None, timeout: float) -> Reading | None:
    """Reads new figures, or says why there are none. Returns the reading for the next call.

    Raises ConfigError for what waiting does not mend, such as an address that is none.
    """
    from emberline.top.figures import figures_of
    from emberline.top.readings import Window

    try:
        now = _read(screen.url, timeout)
    except ConfigError:
        raise
    except EmberlineError as error:
        screen.trouble = str(error)
        return None  # rates over the time without a server would say nothing
    screen.figures, screen.trouble, screen.read_unix = figures_of(Window(before, now)), "", time.time()
    return now


def _suspend(keys: Keys, live: Live) -> None:
    """Stops as Ctrl-Z asks for, with the terminal in order for the shell; returns when the shell goes on with it."""
    live.stop()
    keys.close()
    os.kill(0, signal.SIGTSTP)
    keys.open()
    live.start()


def _draw(live: Live, screen: Screen, console: Console) -> None:
    from rich.text import Text

    live.update(Text("\n").join(screen.lines(*console.size)), refresh=True)

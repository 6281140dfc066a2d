"""The command's frame: subcommands that load when they are called, errors in one line, Ctrl-C without a traceback.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted; docs/cli.md has all of them.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from typing import NoReturn

import click
from click.shell_completion import shell_complete

from emberline.cli.command import LazyGroup
from emberline.cli.ending import end_process, is_reader_gone
from emberline.cli.rank_errors import say_error
from emberline.cli.shells import COMPLETE_VARIABLE, prepare_completion
from emberline.guard import HiddenPackageError, check_packages
from emberline.version import __version__
from storage.errors import EmberlineError
from trainer.rank_place import is_first_rank, is_rank

INTERRUPTED = 130

# Maps a subcommand to its module (or module:name where it holds several) and one line for `emberline --help`. Nothing
# of torch is imported to print help.
COMMANDS = {
    "data": ("emberline.cli.data", "Write a data set as Parquet: your own files, or a public one."),
    "init": ("emberline.cli.init", "Look at data and write a configuration that trains on it."),
    "train": ("emberline.cli.train", "Train a model from a YAML config and files of rows."),
    "update": ("emberline.cli.update", "Train a run on over newer rows, and publish what changes."),
    "sweep": ("emberline.cli.sweep", "Train a model with many settings, and find the best."),
    "compare": ("emberline.cli.compare", "Compare trainings: figures, curves and parameters."),
    "publish": ("emberline.cli.publish", "Publish a run or a torch module, or what changed in it."),
    "import": ("emberline.cli.importing", "Publish a model or tables that another system made."),
    "prove": ("emberline.cli.prove", "Compare an old server with a published model, and explain."),
    "mirror": ("emberline.cli.mirror", "Keep a folder equal to a repository in an object store."),
    "forget": ("emberline.cli.forget", "Erase the rows of ids everywhere, and prove it."),
    "serve": ("emberline.cli.serve", "Serve a model repository over HTTP and gRPC."),
    "predict": ("emberline.cli.predict", "Send rows to a running server and print the scores."),
    "loadtest": ("emberline.cli.loadtest", "Send load to a running server, or find how much it takes."),
    "score": ("emberline.cli.score:score", "Score files of rows as of a snapshot, without a server."),
    "load": ("emberline.cli.live:load", "Load a model into a running server."),
    "unload": ("emberline.cli.live:unload", "Unload a model from a running server."),
    "sessions": ("emberline.cli.sessions", "Show or change how many sessions of a model answer requests."),
    "budget": ("emberline.cli.budget", "Show or change the memory for the rows of a served model."),
    "token": ("emberline.cli.tokens", "Make, list and remove the tokens of a server's access file."),
    "top": ("emberline.cli.top", "Watch the models of a server: rates, times, rows and updates."),
    "config": ("emberline.cli.config", "Show which options are in force, and where each comes from."),
    "status": ("emberline.cli.status", "Show what a server serves, since when, and what is wrong."),
    "health": ("emberline.cli.health", "Say whether the server on this machine is ready, as exit code."),
    "trace": ("emberline.cli.trace", "Record what a server's threads do, as a timeline."),
    "doctor": ("emberline.cli.doctor", "Show what this machine gives the store, and what to change."),
    "snapshots": ("emberline.cli.snapshots", "Show what a server serves of a model, and what it refused."),
    "fleet": ("emberline.cli.fleet", "Show what the servers of a fleet serve, stage and refuse."),
    "shadow": ("emberline.cli.shadow:command", "Compare a snapshot on copies of live requests."),
    "canary": ("emberline.cli.live:canary", "Serve a new snapshot to a part of the requests."),
    "rollback": ("emberline.cli.live:rollback", "Serve an earlier snapshot, and stay there."),
    "pin": ("emberline.cli.live:pin", "Serve one snapshot and nothing else until `emberline resume`."),
    "pause": ("emberline.cli.live:pause", "Take no updates until `emberline resume`."),
    "resume": ("emberline.cli.live:resume", "Follow what is published, after rollback, pause or pin."),
    "allow": ("emberline.cli.live:allow", "Let in a version whose inputs were removed or renamed."),
    "inspect": ("emberline.cli.inspect", "Show what a run, a version, its tables or a file holds."),
    "diff": ("emberline.cli.diff", "Show how two snapshots differ: rows, weights and scores."),
    "explain": ("emberline.cli.explain", "Explain a score: what each feature adds, where its rows lie."),
    "plan": ("emberline.cli.plan", "Say what hit rate and lookup time other budgets would give."),
    "export": ("emberline.cli.score:export", "Write the rows of a table as of a snapshot as Parquet."),
    "export-items": ("emberline.cli.export_items", "Write the item embeddings of two towers, for an index."),
    "store": ("emberline.cli.store", "Look into a server's stores on disk; check and mend them."),
    "completion": ("emberline.cli.completion", "Print a script that completes commands in a shell."),
}
# Headings of the list, each above the command that it is for.
HEADINGS = {
    "data": "Train",
    "publish": "Publish",
    "serve": "Serve",
    "snapshots": "Choose what is served",
    "inspect": "Look into models and tables",
}

EPILOG = """\b
The steps:
  emberline data movielens build/movielens
  emberline train trainer/configs/movielens.yaml --data build/movielens/train.parquet \\
      --output build/run --repository build/models
  emberline serve --model-repository build/models
  emberline predict movielens --data build/movielens/test.parquet --rows 5
  emberline update build/run --data build/movielens/valid.parquet --repository build/models
  emberline snapshots movielens
"""


@click.group(
    cls=LazyGroup,
    modules=COMMANDS,
    headings=HEADINGS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 110},
)
@click.version_option(__version__, prog_name="emberline")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def command(debug: bool) -> None:
    """Train, publish and serve recommendation models whose embedding tables are larger than memory."""


def fail(message: str, code: int, error: BaseException | None = None) -> NoReturn:
    """Ends the process with one line on standard error; ranks that fail alike have one together."""
    say_error(message, error)
    sys.exit(code)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command, and ends with its exit code: the whole process at once where it was started for the command.

    arguments: for a caller within another program; None for those of the process.
    """
    if arguments is not None:
        run_command(command, arguments, "emberline")
        return
    # Temporary files go, and terminals are put back in order, before the process ends. The first process of a container
    # gets no SIGTERM that it has no handler for.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    code = 0
    try:
        run_command(command, sys.argv[1:], "emberline")
    except SystemExit as ended:
        code = int(ended.code or 0)
    try:
        end_process(code)
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    sys.exit(code)


def run_command(what: click.Command, arguments: list[str], name: str) -> None:
    """Runs a command that was called `name` and ends the process with its exit code."""
    debug = "--debug" in arguments
    if COMPLETE_VARIABLE in os.environ:
        prepare_completion()
        sys.exit(shell_complete(what, {}, name, COMPLETE_VARIABLE, os.environ[COMPLETE_VARIABLE]))
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # ranks start with it blocked
        check_packages()
        # Not by click's `main`, which has exit codes and lines of its own for what is handled here.
        with what.make_context(name, list(arguments)) as context:
            what.invoke(context)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        say_error(shown.getvalue().rstrip("\n"), head="")
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort) as stop:
        text = str(stop)
        if not is_first_rank():
            sys.exit(INTERRUPTED)  # the first one says it
        fail(text or "interrupted", INTERRUPTED, stop)
    except HiddenPackageError as error:
        fail(str(error), 1)
    except EmberlineError as error:
        if debug:
            raise
        fail(str(error), 1, error)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and is_reader_gone():
            sys.exit(0)  # `emberline inspect ... | head`
        if debug:
            raise
        fail(f"{error.filename or ''}: {error.strerror or error}".lstrip(": "), 1)
    except Exception:
        if not is_rank():
            raise
        say_error(traceback.format_exc().rstrip("\n"), head="")
        sys.exit(1)

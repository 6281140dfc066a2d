"""`emberline import`: the kinds of files that it reads, and the options that all of them share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from emberline.cli.command import LazyGroup, Repository
from emberline.cli.row_types import IMPORT_HELP
from emberline.cli.target import QUIET

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

# Maps a kind to its module (or module:name) and one line of help; see emberline/cli/frame.py:COMMANDS.
KINDS: dict[str, tuple[str, str]] = {
    "parquet": ("emberline.cli.import_tables:parquet", "Tables of Parquet files: a column of ids, one of rows."),
    "safetensors": ("emberline.cli.import_tables:safetensors", "Tables of safetensors files: ids and rows."),
    "numpy": ("emberline.cli.import_tables:numpy", "Tables of .npz and .npy files: ids and rows."),
    "onnx": ("emberline.cli.import_dense:onnx", "A ranker in an ONNX file, with its tables."),
    "torchscript": ("emberline.cli.import_dense:torchscript", "A ranker in a TorchScript file, with its tables."),
    "pt2": ("emberline.cli.import_dense:pt2", "A ranker in a file of torch.export.save, with its tables."),
    "hps": ("emberline.cli.import_tables:hps", "Tables of HPS and HugeCTR: key, emb_vector, ps.json."),
    "state-dict": ("emberline.cli.import_tables:state_dict", "Tables of a torch state_dict: .pt, .safetensors."),
    "dcp": ("emberline.cli.import_tables:dcp", "Tables of torch.distributed.checkpoint, as of TorchRec."),
    "dynamicemb": ("emberline.cli.import_tables:dynamicemb", "Tables that NVIDIA dynamicemb dumped."),
    "torcheasyrec": ("emberline.cli.import_tables:torcheasyrec", "Tables of TorchEasyRec: exports and deltas."),
    "tf-checkpoint": ("emberline.cli.import_tables:tf_checkpoint", "Tables of TensorFlow, DeepRec and Keras."),
    "tfra": ("emberline.cli.import_tables:tfra", "Tables of TensorFlow Recommenders-Addons."),
}


@click.group(cls=LazyGroup, modules=KINDS, name="import")
def command() -> None:
    """Publish a model, or tables, that another system made.

    What is imported becomes a version in a model repository, with golden requests whose scores are those of the model
    that was read, and is served as any other.
    """


def import_options(command: Decorated) -> Decorated:
    """Adds the options of every kind: repository, name, version, row_types, max_batch_size, check and quiet.

    `check` says to read, convert and compare everything, and to publish nothing.
    """
    options = [
        click.option(
            "--repository",
            type=Repository(),
            help="Model repository to publish into, a folder or a URL such as s3://bucket/models.",
        ),
        click.option("--name", help="Name of the model in the repository."),
        click.option("--version", type=click.IntRange(1), help="Number of the version; default: the next one."),
        click.option("--row-type", "row_types", metavar="TYPE", multiple=True, help=IMPORT_HELP),
        click.option(
            "--max-batch-size", type=click.IntRange(1), default=1024, help="Most rows that a server computes at once."
        ),
        click.option("--check", is_flag=True, help="Read, convert and compare everything, but publish nothing."),
        QUIET,
    ]
    for option in reversed(options):
        command = option(command)
    return command


def check_destination(repository: object, name: str | None, check: bool) -> None:
    """Raises click.UsageError where neither --check nor both of --repository and --name are given."""
    if not check and (repository is None or not name):
        missing = [option for option, value in (("--repository", repository), ("--name", name)) if not value]
        raise click.UsageError(f"{' and '.join(missing)} missing: say where to publish, or give --check to publish not")

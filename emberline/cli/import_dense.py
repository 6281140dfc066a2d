"""`emberline import onnx`, `torchscript` and `pt2`: files that hold a network with its tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emberline.cli.command import Command, LocalPath
from emberline.cli.importing import check_destination, import_options
from emberline.cli.prove_option import check_prove, prove_options, prove_published
from emberline.cli.row_types import asked_row_types, print_published
from storage.errors import InvalidInput

if TYPE_CHECKING:
    from trainer.converting import Converted

_FILE = click.argument("file", metavar="FILE", type=LocalPath(exists=True, dir_okay=False))
_SAMPLE_HELP = "Inputs of the model: .npz, .safetensors or .parquet, a column each, or .jsonl of KServe v2 bodies."
_OUTPUT = click.option(
    "--output", "outputs", metavar="NAME", multiple=True, help="Name of an output, once for each, in their order."
)


def _prove(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(prove_options()):
        command = option(command)
    return command


def _sample(required: bool) -> Callable[[Any], Any]:
    text = _SAMPLE_HELP if required else f"{_SAMPLE_HELP} Default: made from the inputs that the file declares."
    return click.option("--sample", type=LocalPath(exists=True, dir_okay=False), required=required, help=text)


@click.command(
    cls=Command,
    name="onnx",
    epilog="""\b
Examples:
  emberline import onnx ranker.onnx --repository build/models --name ranker
  emberline import onnx ranker.onnx --sample requests.npz --check""",
)
@_FILE
@_sample(required=False)
@_OUTPUT
@_prove
@import_options
def onnx(file: Path, sample: Path | None, **options: Any) -> None:
    """Publish a ranker in the ONNX file FILE, with its tables.

    A Gather of a constant by ids of an input becomes a table. Weights in files beside FILE are read there. Scores are
    compared with onnxruntime's before anything is published.
    """
    check_destination(options["repository"], options["name"], options["check"])
    from trainer.converting.onnx_module import convert_onnx

    _import(file, lambda _: convert_onnx(file), sample, **options)


@click.command(
    cls=Command,
    name="torchscript",
    epilog="""\b
Examples:
  emberline import torchscript model.pt --sample requests.npz --repository build/models --name ranker
  emberline import torchscript model.pt --sample requests.npz --output ctr --output cvr --check""",
)
@_FILE
@_sample(required=True)
@_OUTPUT
@_prove
@import_options
def torchscript(file: Path, sample: Path, **options: Any) -> None:
    """Publish a ranker in the TorchScript file FILE, with its tables.

    TorchScript declares no shapes, so a sample is needed. Its columns have the names of forward()'s arguments, or end
    in their numbers, as in INPUT__0. Scores are compared with those of the file.
    """
    check_destination(options["repository"], options["name"], options["check"])
    from trainer.converting.publication import tensors_of
    from trainer.converting.script_module import convert_torchscript

    def convert(given: Any) -> Converted:
        return convert_torchscript(file, tensors_of(given))

    _import(file, convert, sample, **options)


@click.command(
    cls=Command,
    name="pt2",
    epilog="""\b
Examples:
  emberline import pt2 ranker.pt2 --repository build/models --name ranker
  emberline import pt2 ranker.pt2 --sample requests.parquet --output ctr --check""",
)
@_FILE
@_sample(required=False)
@_OUTPUT
@_prove
@import_options
def pt2(file: Path, sample: Path | None, **options: Any) -> None:
    """Publish a ranker that torch.export.save wrote to FILE, with its tables.

    The file is read without torch's own loader, and no pickle in it is.
    """
    check_destination(options["repository"], options["name"], options["check"])
    from trainer.converting.pt2_module import convert_pt2

    _import(file, lambda _: convert_pt2(file), sample, **options)


def _import(
    file: Path,
    convert: Callable[[Any], Converted],
    sample: Path | None,
    *,
    repository: Path | str | None,
    name: str | None,
    version: int | None,
    row_types: tuple[str, ...],
    max_batch_size: int,
    outputs: tuple[str, ...],
    check: bool,
    quiet: bool,
    old: str | None,
    old_name: str | None,
) -> None:
    check_prove(old, check)
    for given_path in (file, sample):
        if given_path is not None and not given_path.is_file():
            raise InvalidInput(f"{given_path}: is no file", field=str(given_path))  # a pipe may have no end
    from emberline.proving.batches import read_batch
    from trainer.converting.publication import largest_difference, publish_converted, sample_for
    from trainer.publishing.target import shown

    given = None if sample is None else read_batch(sample)
    converted = convert(given)
    batch = sample_for(converted, given)
    difference = largest_difference(converted, batch)
    rows = len(next(iter(batch.values())))
    if difference is None:
        click.echo(f"not compared with the original: {converted.uncompared}")
    else:
        click.echo(f"compared with the original on {rows} rows: the largest difference is {difference:.2g}")
    folder = publish_converted(
        converted,
        batch,
        None if check else repository,
        outputs=outputs,
        name=name or file.stem,
        version=None if check else version,
        max_batch_size=max_batch_size,
        row_types=asked_row_types(row_types, {}),
        metadata={"imported_from": file.name},
        progress=not quiet,
    )
    if check or repository is None:
        click.echo("it can be published; nothing was")
        return
    print_tables(folder)
    print_published(folder)
    click.echo(f"published {shown(repository, folder)}")
    if old is not None:
        prove_published(old, folder, old_name, [{key: values.numpy() for key, values in batch.items()}])


def print_tables(folder: Path) -> None:
    """Prints each table of a version with the features that read it."""
    from storage import open_version

    version = open_version(folder, verify=False)
    for table in version.tables:
        features = ", ".join(entry.name for entry in version.spec.ids_features if entry.table == table.name)
        click.echo(f"table {table.name}: {table.rows:,} rows of {table.dim}, read by {features}")

"""`emberline prove`: compares the server that is replaced with a published model, and explains what differs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from emberline.cli.command import Command, LocalPath
from emberline.cli.console import json_file
from emberline.cli.data_options import named
from emberline.cli.objects import ModelPath, copy_of
from emberline.cli.server_call import IDENTITY, access_to, timeout_option
from emberline.cli.target import check_folder

if TYPE_CHECKING:
    from emberline.proving.batches import Batch
    from emberline.proving.prover import Proof

TOLERANCE = 1e-5
#: The exit code where all is equal that was compared.
NOT_ALL_COMPARED = 3


@click.command(
    cls=Command,
    name="prove",
    epilog="""\b
Examples:
  emberline prove localhost:8000 build/models/ranker
  emberline prove grpc://triton:8001 build/models/ranker --model ranker_v3 --requests requests.jsonl
  emberline prove triton:8000 build/models/ranker --input user=INPUT__0 --input item=INPUT__1 --output ctr=OUTPUT__0

\b
Exit code 0 says that all answers are equal within the tolerance, or differ by rounding alone. Rows of --requests that
the old server refuses make it 1. It is 3 if all that was compared is equal, and golden requests were refused, or an
output of one side has none to compare with.""",
)
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW", type=ModelPath())
@click.option("--model", metavar="NAME", help="Name of the model on the old server; default: that of NEW.")
@click.option(
    "--as-of", metavar="SNAPSHOT", default="latest", help="The snapshot of NEW, as `emberline score` takes it."
)
@click.option(
    "--requests",
    type=LocalPath(exists=True, dir_okay=False),
    help="What to ask: .jsonl of KServe v2 bodies, or .npz, .safetensors or .parquet, a column for each input. "
    "Default: the golden requests of NEW.",
)
@click.option("--rows", type=click.IntRange(2, 100_000), default=512, help="Rows to compare at most.")
@click.option(
    "--tolerance",
    type=click.FloatRange(0, min_open=True),
    default=TOLERANCE,
    help="Differences up to this are none; times the value where that is above 1.",
)
@click.option("--input", "inputs", metavar="OURS=THEIRS", multiple=True, help="The old server's name of an input.")
@click.option("--output", "outputs", metavar="OURS=THEIRS", multiple=True, help="The old server's name of an output.")
@click.option("--batch-rows", type=click.IntRange(1), default=64, help="Rows of a request to the old server, at most.")
@timeout_option(30.0)
@IDENTITY
@click.option("--report", type=LocalPath(dir_okay=False), help="Write what was found as JSON, too.")
def command(
    old: str,
    new: Path | str,
    model: str | None,
    as_of: str,
    requests: Path | None,
    rows: int,
    tolerance: float,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    batch_rows: int,
    timeout: float,
    report: Path | None,
) -> None:
    """Send the same requests to the server OLD and the model NEW, and explain every difference.

    OLD is HOST:PORT or http://HOST:PORT for KServe v2 over HTTP, grpc://HOST:PORT for gRPC, https:// or grpcs:// over
    TLS: Triton, KServe, TorchServe, or a server of ours. NEW is the model's folder in a repository, or its URL; no
    server of it has to run. Shifted ids, swapped tables, another default vector, other pooling, missing and stale rows
    and rounding are recognised.
    """
    check_folder("--report", report)
    proof = prove_model(
        old,
        copy_of(new),
        model=model,
        as_of=as_of,
        requests=requests,
        rows=rows,
        tolerance=tolerance,
        inputs=named(inputs, "--input"),
        outputs=named(outputs, "--output"),
        batch_rows=batch_rows,
        timeout_s=timeout,
    )
    if report is not None:
        from emberline.proving.proof_text import document

        report.write_text(json_file(document(proof)), encoding="utf-8")
    end_by(proof, is_given=requests is not None)


def end_by(proof: Proof, *, is_given: bool) -> None:
    """Ends with exit code 1 where answers differ, and 3 where some are not compared. is_given: the requests are real
    ones, of which the old server has to answer all.
    """
    if not proof.is_equal or (is_given and proof.refused):
        sys.exit(1)
    if not proof.is_whole:
        sys.exit(NOT_ALL_COMPARED)


def prove_model(
    old: str,
    folder: Path,
    *,
    model: str | None = None,
    as_of: str = "latest",
    requests: Path | None = None,
    batches: Sequence[Batch] | None = None,
    rows: int = 512,
    tolerance: float = TOLERANCE,
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    batch_rows: int = 64,
    timeout_s: float = 30.0,
) -> Proof:
    """Compares and prints the report. What is asked are the batches, or the requests of a file, or the golden ones."""
    from emberline.proving.batches import cut, golden_batches, joined, read_requests, rows_of
    from emberline.proving.local_model import LocalModel
    from emberline.proving.old_server import Names, OldServer, read_address
    from emberline.proving.proof_text import lines
    from emberline.proving.prover import Prover
    from storage.checkpoint.as_of import find_as_of
    from storage.errors import InvalidInput

    found = find_as_of(folder, as_of)
    new = LocalModel(found)
    new.check_golden()
    new.check_names(inputs or (), outputs or ())
    url, access = access_to(read_address(old)[0])
    names = Names(inputs or {}, outputs or {})
    server = OldServer(
        url, model or folder.name, names=names, batch_rows=batch_rows, timeout_s=timeout_s, access=access
    )
    asked, unsent = batches, 0
    if asked is None and requests is not None:
        asked = read_requests(requests)
    elif asked is None:
        golden = found.version.golden()
        asked = golden_batches(golden)
        unsent = golden.batch - sum(map(rows_of, asked))
    left_out = max(0, sum(map(rows_of, asked)) - rows)
    kept, refused, reason = [], 0, ""
    for batch in cut(joined(asked), rows, rows):
        mask, words = server.accepted(batch)
        refused, reason = refused + int((~mask).sum()), reason or words
        if mask.any():
            kept.append({name: values[mask] for name, values in batch.items()})
    if not kept:
        raise InvalidInput(f"the old server refuses every request: {reason[:500]}")
    click.echo(f"comparing {server.model} at {server.address} with snapshot {found}")
    proof = Prover(new, server.score, kept, tolerance).prove()
    proof = replace(proof, refused=refused, refusal=reason, unsent=unsent, left_out=left_out)
    for line in lines(proof):
        click.echo(line)
    return proof

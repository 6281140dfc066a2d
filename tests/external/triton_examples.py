"""Runs Triton's own example clients against this server, and reports which of them pass, which do not, and why.

    git clone https://github.com/triton-inference-server/client
    python -m tests.external.triton_examples --examples client/src/python/examples

This repository holds none of them. An example reports by its exit code whether it passed. Exit code 1 when one
failed that is not listed here with a reason.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from serving import Server, ServerConfig
from tests.external.triton_models import NOT_HERE, write_repository

TIMEOUT_S = 60


@dataclass(frozen=True)
class Example:
    """A script and its arguments."""

    script: str
    #: The protocol whose port `-u` names.
    port: str = "http"
    arguments: tuple[str, ...] = ()
    #: Why the script is known to fail here; empty when it should pass.
    differs: str = ""
    #: Why the script is not run; empty when it is.
    skipped: str = ""
    #: The part of the script to run, see example_parts.py; empty runs all of it.
    part: str = ""

    @property
    def name(self) -> str:
        return " ".join([self.script, *self.arguments, *([f"({self.part})"] if self.part else [])])


NAME = "wants the server to be called 'triton'"
CONTROL = "counts the models of Triton's repository, and loads with a configuration of its own, which is refused"
SEQUENCE = NOT_HERE["simple_sequence"]
CUDA = "needs a GPU and CUDA shared memory"
IMAGE = NOT_HERE["densenet_onnx"]
STRINGS = NOT_HERE["simple_string"]

EXAMPLES = (
    Example("simple_http_infer_client"),
    Example(
        "simple_http_infer_client",
        arguments=("--request-compression-algorithm=gzip", "--response-compression-algorithm=deflate"),
    ),
    Example("simple_http_async_infer_client"),
    Example("simple_http_aio_infer_client"),
    Example("simple_http_health_metadata", differs=NAME),
    Example("simple_http_shm_client"),
    Example("simple_http_string_infer_client", differs=f"simple_string {STRINGS}"),
    Example("simple_http_shm_string_client", differs=f"simple_string {STRINGS}"),
    Example("simple_grpc_infer_client", "grpc"),
    Example("simple_grpc_infer_client", "grpc", ("--grpc-compression-algorithm=gzip", "--client-timeout=10")),
    Example("simple_grpc_async_infer_client", "grpc"),
    Example("simple_grpc_aio_infer_client", "grpc"),
    Example("simple_grpc_health_metadata", "grpc", differs=NAME),
    Example("simple_grpc_keepalive_client", "grpc"),
    Example("simple_grpc_custom_args_client", "grpc"),
    Example("simple_grpc_shm_client", "grpc"),
    Example("simple_grpc_string_infer_client", "grpc", differs=f"simple_string {STRINGS}"),
    Example("simple_grpc_shm_string_client", "grpc", differs=f"simple_string {STRINGS}"),
    Example("grpc_explicit_int_content_client", "grpc"),
    Example("grpc_explicit_byte_content_client", "grpc", differs=f"simple_string {STRINGS}"),
    Example("grpc_explicit_int8_content_client", "grpc", differs=NOT_HERE["simple_int8"]),
    Example("reuse_infer_objects_client", arguments=("-i", "HTTP")),
    Example("reuse_infer_objects_client", "grpc", ("-i", "gRPC")),
    Example("memory_growth_test", part="elsewhere"),
    Example("simple_http_health_metadata", part="named-triton"),
    Example("simple_grpc_health_metadata", "grpc", part="named-triton"),
    Example("simple_http_string_infer_client", part="identity"),
    Example("simple_grpc_string_infer_client", "grpc", part="identity"),
    Example("simple_http_sequence_sync_infer_client", skipped=SEQUENCE),
    Example("simple_grpc_sequence_sync_infer_client", "grpc", skipped=SEQUENCE),
    Example("simple_grpc_sequence_stream_infer_client", "grpc", skipped=SEQUENCE),
    Example("simple_grpc_aio_sequence_stream_infer_client", "grpc", skipped=SEQUENCE),
    Example("simple_grpc_custom_repeat", "grpc", skipped=NOT_HERE["repeat_int32"]),
    Example("simple_http_cudashm_client", skipped=CUDA),
    Example("simple_grpc_cudashm_client", "grpc", skipped=CUDA),
    Example("grpc_client", "grpc", skipped=IMAGE),
    Example("image_client", skipped=IMAGE),
    Example("grpc_image_client", "grpc", skipped=IMAGE),
    Example("ensemble_image_client", skipped=IMAGE),
    # These are last because they unload `simple`.
    Example("simple_http_model_control", differs=CONTROL),
    Example("simple_grpc_model_control", "grpc", differs=CONTROL),
)


@dataclass(frozen=True)
class Outcome:
    """Outcome of one example."""

    example: Example
    #: One of passed, failed, in part (the part that was run passed), differs (failed as expected), surprise (passed,
    #: though listed as differing) and skipped.
    result: str
    reason: str = ""


def run_all(examples: Path, server: Server) -> list[Outcome]:
    """Runs every listed example, one after the other, and lists as skipped what is in the folder but not listed."""
    ports = {"http": server.http_port, "grpc": server.grpc_port}
    outcomes = [run_one(examples, example, ports[example.port]) for example in EXAMPLES]
    listed = {example.script for example in EXAMPLES}
    outcomes += [
        Outcome(Example(path.stem), "skipped", "not listed in this harness")
        for path in sorted(examples.glob("*.py"))
        if path.stem not in listed
    ]
    return outcomes


def run_one(examples: Path, example: Example, port: int) -> Outcome:
    """Runs a script of the folder."""
    script = examples / f"{example.script}.py"
    if example.skipped or not script.is_file():
        return Outcome(example, "skipped", example.skipped or "not in this checkout")
    url = f"127.0.0.1:{port}"
    command = [sys.executable, str(script), "-u", url, *example.arguments]
    if example.part:
        command = [sys.executable, str(Path(__file__).with_name("example_parts.py")), example.part, str(script), url]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=examples, check=False)
    except subprocess.TimeoutExpired:
        return Outcome(example, "failed", f"did not end within {TIMEOUT_S} s")
    if done.returncode == 0:
        good = "in part" if example.part else "passed"
        return Outcome(example, "surprise" if example.differs else good, example.differs)
    why = _last_words(done.stdout + done.stderr) or f"exit code {done.returncode}, without a word"
    if example.differs:
        return Outcome(example, "differs", f"{example.differs}: {why}")
    return Outcome(example, "failed", why)


def _last_words(said: str) -> str:
    """Returns the most informative line of a failure."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"FAILED|Exception:|Error:|details = |^error", line)]
    return ([*lines, *telling] or [""])[-1][:200]


def table(outcomes: list[Outcome]) -> str:
    """Formats the outcomes as text, with the number of each."""
    width = max(len(outcome.example.name) for outcome in outcomes)
    lines = [f"{o.example.name:<{width}}  {o.result:<8}  {o.reason}".rstrip() for o in outcomes]
    counts = {result: sum(o.result == result for o in outcomes) for result in dict.fromkeys(o.result for o in outcomes)}
    return "\n".join([*lines, "", ", ".join(f"{count} {result}" for result, count in counts.items())])


def main() -> None:
    """Parses the command line, serves, runs, prints."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.external.triton_examples",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--examples", type=Path, required=True, help="src/python/examples of a checkout")
    examples = parser.parse_args().examples.resolve()
    if not examples.is_dir():
        parser.error(f"--examples: {examples} is not a folder")
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "repository")
        write_repository(repository)
        config = ServerConfig(
            model_repository=repository,
            store=Path(folder, "store"),
            http_port=0,
            grpc_port=0,
            metrics_port=0,
            open_admin=True,
            shared_memory=("input", "output"),
        )
        with Server(config) as server:
            outcomes = run_all(examples, server)
    print(table(outcomes))
    sys.exit(any(outcome.result in ("failed", "surprise") for outcome in outcomes))


if __name__ == "__main__":
    main()

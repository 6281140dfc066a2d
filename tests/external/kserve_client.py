"""KServe's own Python client against this server: health, v2 as JSON and as bytes, v1, and gRPC.

    python -m tests.external.kserve_client

The client comes from PyPI into an environment of its own, since it asks for other versions of much that we use. Exit
code 0 when every call was answered rightly, 1 when not, 2 when the client could not be installed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from serving import Server, ServerConfig
from tests.external.triton_models import write_repository

CLIENT = "kserve==0.21.0"
INSTALL_S, CALLS_S = 600, 120


def install(folder: Path) -> Path:
    """Returns the Python of a new environment that has the client. Raises subprocess.CalledProcessError."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", CLIENT]
    subprocess.run(command, check=True, timeout=INSTALL_S)
    return python


def main() -> int:
    """Parses the command line, installs, serves, calls."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.external.kserve_client",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--python", type=Path, help=f"of an environment that has {CLIENT}, instead of a new one")
    given = parser.parse_args().python
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        try:
            python = given or install(root / "venv")
        except (subprocess.SubprocessError, OSError) as error:
            print(f"skipped: {CLIENT} could not be installed: {error}", file=sys.stderr)
            return 2
        write_repository(root / "models")
        config = ServerConfig(
            model_repository=root / "models", store=root / "store", http_port=0, grpc_port=0, metrics_port=0
        )
        with Server(config) as server:
            calls = Path(__file__).with_name("kserve_calls.py")
            ports = [str(server.http_port), str(server.grpc_port)]
            return int(subprocess.run([str(python), str(calls), *ports], timeout=CALLS_S, check=False).returncode != 0)


if __name__ == "__main__":
    sys.exit(main())

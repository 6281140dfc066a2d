"""The guides of docs/guides are worked through: every command runs, beside a server where the page starts one."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from emberline.cli.frame import command
from serving.config import ServerConfig
from serving.server import Server
from tests.support.importing import written

NAMES = ("hps", "torchrec", "deeprec", "torcheasyrec", "tfra")
GUIDES = [Path(__file__).parents[3] / "docs" / "guides" / f"from-{name}.md" for name in NAMES]
# Everything but the lines of a curl's JSON ends a command.
COMMANDS = re.compile(r"```sh\n(.*?)```", re.DOTALL)
CODE = re.compile(r"`(\w+\.py)`:\n\n```python\n(.*?)```", re.DOTALL)


def commands(text: str) -> list[str]:
    """Returns the commands of a page; one goes on behind a backslash, and inside of quotes."""
    found: list[str] = []
    for block in COMMANDS.findall(text):
        open_ = False
        for line in block.replace("\\\n", " ").splitlines():
            if open_:
                found[-1] += "\n" + line
            else:
                found.append(line)
            open_ ^= line.count("'") % 2 == 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES, ids=lambda page: page.stem)
def test_a_guide_can_be_followed(guide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = guide.read_text()
    getattr(written, f"write_guide_{guide.stem.replace('-', '_')}")(tmp_path)
    for name, code in CODE.findall(text):
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        server: Server | None = None
        for line in commands(text):
            program, *arguments = shlex.split(line)
            if line.startswith("emberline serve "):
                found = command.get_command(None, "serve")  # type: ignore[arg-type]
                assert found is not None
                found.make_context("serve", arguments[1:])
                config = {"model_repository": arguments[2], "store": tmp_path / "store"}
                ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
                server = stack.enter_context(Server(ServerConfig.model_validate({**config, **ports})))
            elif program == "curl":
                assert server is not None
                asked = [each.replace("localhost:8000", f"127.0.0.1:{server.http_port}") for each in arguments]
                done = subprocess.run(
                    ["curl", *asked], capture_output=True, text=True, check=True, env={**os.environ, "no_proxy": "*"}
                )
                answer = json.loads(done.stdout)
                assert answer["outputs"], answer
            else:
                assert program == "emberline"
                result = CliRunner().invoke(command, [*arguments, "--quiet"], catch_exceptions=False)
                assert result.exit_code == 0, (line, result.output)


def test_guides_have_both_tables_and_are_followed_by_a_test() -> None:
    for guide in GUIDES:
        text = guide.read_text()
        assert "without a counterpart" in text
        assert hasattr(written, f"write_guide_{guide.stem.replace('-', '_')}"), guide.name
        assert any(" --delta " in line for line in commands(text)), guide.name

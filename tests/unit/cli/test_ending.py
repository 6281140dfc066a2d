"""The process of a command ends at once, and nothing that it had to do or say is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Python frees `kept` when it ends; a thread and a function that was registered have work to do before.
_PROGRAM = """
import atexit, sys, threading, time
from emberline.cli.ending import end_process

class Kept:
    def __del__(self):
        print("freed", flush=True)

kept = Kept()
kept.itself = kept
atexit.register(print, "registered")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
print("printed")
end_process(3)
sys.exit(4)
"""


def run(*options: str, output: int = subprocess.PIPE) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, *options],
        stdout=output,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    return done.returncode, (done.stdout or "").splitlines()


def test_threads_and_what_is_registered_come_first_and_the_heap_is_left() -> None:
    assert run("-c", _PROGRAM) == (3, ["printed", "thread", "registered"])


@pytest.mark.parametrize("tool", ["sys.setprofile(lambda *_: None)", "sys.settrace(lambda *_: None)"])
def test_python_ends_a_process_that_is_watched(tool: str) -> None:
    program = _PROGRAM.replace("end_process(3)", f"{tool}\nend_process(3)\nsys.setprofile(None), sys.settrace(None)")
    code, lines = run("-c", program)
    assert code == 4
    assert lines[-1] == "freed"


def test_a_profiler_of_a_command_writes_its_figures() -> None:
    code, lines = run("-m", "cProfile", "-m", "emberline", "--version")
    assert code == 0
    assert any("function calls" in line for line in lines)


def test_output_that_cannot_be_written_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        code, _ = run("-c", _PROGRAM, output=full.fileno())
    assert code == 120


_WAITING = """
import tempfile, time, click
from emberline.cli import frame

@click.command()
def command():
    with tempfile.TemporaryDirectory() as folder:
        print(folder, flush=True)
        time.sleep(60)

frame.command = command
frame.main()
"""


def test_a_command_that_is_ended_by_sigterm_removes_its_files() -> None:
    process = subprocess.Popen([sys.executable, "-c", _WAITING], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.is_dir()
        process.terminate()
        assert process.wait(30) == 143
    finally:
        process.kill()
        process.communicate()
    assert not folder.exists()

"""Fuzzes the decoders in this process: guided by coverage where atheris is installed, by mutation of good inputs alone
where it is not, or with --plain.

python -m tests.fuzz.decoders --seconds 600
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import FunctionType

from tests.fuzz.campaign import FOLDER, Campaign, read_options

# Modules that begin so are watched for coverage.
_WATCHED = (
    *("serving.protocol.", "storage.checkpoint."),
    *("storage.features.feature", "storage.features.spec", "storage.features.strict_model"),
    *("serving.model_config.", "serving.security."),
)
_MAX_INPUT = 1 << 16
_SLOW_S = 10
_SEED_INPUTS = 40


def run_plain(campaign: Campaign, only: str = "") -> None:
    """Sends mutated inputs to every decoder in turn."""
    from tests.fuzz.entries import Entry, entries, run_guarded

    chosen: list[Entry] = [entry for entry in entries() if only in ("", entry.name)]
    while not campaign.is_over():
        rng = campaign.rng()
        entry = chosen[campaign.done % len(chosen)]
        data = entry.make(rng)
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 6))):
            data = entry.mutate(rng, data)
        began = time.monotonic()
        try:
            answer = run_guarded(entry, data)
        except Exception:
            campaign.find(f"{entry.name}: {traceback.format_exc(limit=-6)}", data, entry.name)
            answer = "FINDING"
        if time.monotonic() - began > _SLOW_S:
            campaign.find(f"{entry.name}: took {time.monotonic() - began:.1f} s", data, entry.name)
        campaign.note(f"{entry.name} {answer}")


def run_guided(campaign: Campaign, only: str = "") -> None:
    """Runs each decoder in a process of its own under libFuzzer, which ends at its first finding."""
    from tests.fuzz.entries import entries

    names = [entry.name for entry in entries() if only in ("", entry.name)]
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names:
        order = [sys.executable, "-m", "tests.fuzz.decoders", "--guided-entry", name, "--seed", str(campaign.seed)]
        order += ["--seconds", str(max(1.0, campaign.seconds / len(names)))]
        order += ["--inputs", str(campaign.inputs // len(names))]
        found = subprocess.run(order, capture_output=True, text=True, errors="replace", check=False)
        text = found.stdout + found.stderr
        done = re.findall(r"Done (\d+) runs", text) or re.findall(r"^#(\d+)\t", text, re.MULTILINE) or ["0"]
        covered = re.findall(r"ft: (\d+)", text) or ["0"]
        campaign.note(f"{name} (features {covered[-1]})", int(done[-1]))
        if found.returncode:
            text = text[max(0, text.find(" === Uncaught Python exception")) :]
            saved = re.findall(r"Test unit written to (\S+)", text)
            campaign.findings.append(
                f"{name}: {text[:3000]}\n  again: python -m tests.fuzz.decoders --replay {' '.join(saved)}"
            )


def run_one_guided(name: str, seconds: float, inputs: int, seed: int) -> None:
    """Runs libFuzzer on one decoder. Never returns: libFuzzer ends the process."""
    import atheris

    from tests.fuzz.entries import entries, run_guarded

    # By function, not by its import hook: that one does not see through an editable installation's.
    for function in _watched_functions():
        atheris.instrument_func(function)
    entry = next(entry for entry in entries() if entry.name == name)

    def mutate(data: bytes, max_size: int, number: int) -> bytes:
        rng = Random(number)
        if rng.random() < 0.3:
            return bytes(atheris.Mutate(data, max_size))
        for _ in range(rng.choice((1, 1, 2, 4))):
            data = entry.mutate(rng, data)
        return data[:max_size]

    corpus = tempfile.mkdtemp(prefix="fuzz-corpus-")
    rng = Random(seed)
    for number in range(_SEED_INPUTS):
        Path(corpus, str(number)).write_bytes(entry.make(rng))
    order = [
        sys.argv[0],
        corpus,
        f"-artifact_prefix={os.path.relpath(FOLDER)}/decoders-{name}-",
        f"-seed={seed % 2**31 + 1}",
    ]
    order += [f"-max_len={_MAX_INPUT}", f"-timeout={_SLOW_S}", "-rss_limit_mb=4096", "-print_final_stats=1"]
    order += [f"-runs={inputs}"] if inputs else [f"-max_total_time={max(1, round(seconds))}"]
    atheris.Setup(order, lambda data: run_guarded(entry, data) and None, custom_mutator=mutate)
    atheris.Fuzz()


def _watched_functions() -> Iterator[FunctionType]:
    for name, module in list(sys.modules.items()):
        if not name.startswith(_WATCHED):
            continue
        for value in list(vars(module).values()):
            for found in (value, *(vars(value).values() if isinstance(value, type) else ())):
                function = getattr(found, "__func__", getattr(found, "fget", found))
                if isinstance(function, FunctionType) and function.__module__ == name:
                    yield function


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entry", default="", help="this decoder only")
    parser.add_argument("--plain", action="store_true", help="without coverage, also where atheris is installed")
    parser.add_argument("--guided-entry", default="", help=argparse.SUPPRESS)
    options = read_options(parser)
    rest = options.rest
    if options.replay is not None:
        from tests.fuzz.entries import entries, run_guarded

        known = {entry.name: entry for entry in entries()}
        entry = known[rest.entry or options.replay.name.split("-")[1]]
        print(run_guarded(entry, options.replay.read_bytes()))
        return 0
    if rest.guided_entry:
        run_one_guided(rest.guided_entry, options.seconds, options.inputs, options.seed)
    campaign = Campaign("decoders", options.seconds, options.inputs, options.seed)
    is_guided = importlib.util.find_spec("atheris") is not None and not rest.plain
    (run_guided if is_guided else run_plain)(campaign, rest.entry)
    return campaign.finish()


if __name__ == "__main__":
    sys.exit(main())

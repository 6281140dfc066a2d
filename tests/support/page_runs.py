"""Says which test runs the commands of which page, and why some are run by none.

A command in a block of `sh` is run by the test of its page, or is listed in NOT_RUN with the reason. Commands of
emberline are always checked for their names and options (tests/test_documents.py).
"""

from __future__ import annotations

from pathlib import Path

_IMPORTING = "tests/integration/importing"
_PARSED = "its options are parsed; what it does is run by"

#: A page, and the test that reads its blocks of `sh` and runs them.
RUN_BY = {
    "README.md": "tests/e2e/test_readme_twice.py",
    "docs/any-module.md": "tests/e2e/test_any_module_docs.py",
    "docs/clients.md": "tests/integration/clients/guide.py",
    "docs/forget.md": "tests/e2e/test_forget_served.py",
    "docs/guides/from-deeprec.md": f"{_IMPORTING}/test_guides.py",
    "docs/guides/from-hps.md": f"{_IMPORTING}/test_guides.py",
    "docs/guides/from-tfra.md": f"{_IMPORTING}/test_guides.py",
    "docs/guides/from-torcheasyrec.md": f"{_IMPORTING}/test_guides.py",
    "docs/guides/from-torchrec.md": f"{_IMPORTING}/test_guides.py",
    "docs/guides/from-triton.md": f"{_IMPORTING}/test_network_docs.py",
    "docs/importing-networks.md": f"{_IMPORTING}/test_network_docs.py",
    "docs/importing.md": f"{_IMPORTING}/test_importing_docs.py",
    "docs/live.md": "tests/e2e/test_live_docs.py",
    "docs/logging.md": "tests/e2e/test_observing_docs.py",
    "docs/newcomer.md": "tests/e2e/test_newcomer.py",
    "docs/proving.md": f"{_IMPORTING}/test_network_docs.py",
    "docs/security.md": "tests/integration/serving/test_security_tls.py",
    "docs/torch-libraries.md": "tests/e2e/test_published_models.py",
    "docs/tracing.md": "tests/e2e/test_observing_docs.py",
    "docs/tutorial.md": "tests/e2e/test_tutorial.py",
}

#: The pages of the runbook, one for each alert.
RUN_BY |= {
    f"docs/runbook/{path.name}": "tests/integration/deploy/test_runbook_commands.py"
    for path in sorted((Path(__file__).parents[2] / "docs" / "runbook").glob("Emberline*.md"))
}

#: By page: beginnings of commands that no test runs as they stand, with the reason.
NOT_RUN = {
    "CONTRIBUTING.md": {
        "make ": "CI runs these targets",
        ". .venv/bin/activate": "tests run in the environment already",
        "pip install pre-commit": "a tool that the project does not need",
        "python -m pytest ": "it would run the tests within a test",
        "python -m tests.repo.markdown": "tests/test_repo_rules.py calls what it calls, without writing",
        "python -m tests.repo.flaky": "tests/repo/test_flaky.py runs it on tests of its own",
    },
    "README.md": {
        "make quickstart": "minutes long and with a download; it is run before each release (docs/releasing.md)",
        "make test": "it would run the tests within a test",
        ". .venv/bin/activate": "tests run in the environment already",
    },
    "docs/benchmarks.md": {
        "python -m benchmarks": "minutes to hours long; tests/e2e/test_bench_command.py checks modules and options",
    },
    "docs/console.md": {
        "emberline serve --model-repository build/models": "every test of the console starts a server like this",
        "python -m tests.external.console_pictures": "tests/e2e/test_console_pictures.py calls it for another folder",
    },
    "docs/explain.md": {
        "emberline diff": f"{_PARSED} tests/integration/trainer/test_diff.py",
        "emberline explain": f"{_PARSED} tests/integration/serving/test_explain.py",
    },
    "docs/fleet.md": {
        "emberline ": f"it needs a bucket; {_PARSED} tests/integration/serving/test_fleet.py on an S3 server",
    },
    "docs/gpu-figures.md": {
        "make ": "it needs a GPU; `make rehearse-gpu` runs the same at toy sizes",
    },
    "docs/live.md": {
        "emberline allow": f"{_PARSED} tests/integration/serving/test_live_surfaces.py",
        "emberline canary": f"{_PARSED} tests/integration/serving/test_live_surfaces.py",
        "emberline load": f"{_PARSED} tests/integration/serving/test_live_surfaces.py",
        "emberline unload": f"{_PARSED} tests/integration/serving/test_live_surfaces.py",
        "emberline pause": f"{_PARSED} tests/integration/serving/test_live_surfaces.py",
        "emberline pin": f"{_PARSED} tests/integration/serving/test_live_surfaces.py",
        "emberline publish": f"{_PARSED} tests/e2e/test_commands.py",
        "emberline shadow": f"{_PARSED} tests/integration/serving/test_shadow_surfaces.py",
        "emberline rollback movielens --steps": f"{_PARSED} tests/integration/serving/test_updates.py",
        "emberline rollback movielens --to 1.16": "the walkthrough above it runs the same with 1.0",
        "emberline update build/run --data newer.parquet": "tests/integration/trainer run --at",
    },
    "docs/monitoring.md": {
        "emberline ": f"{_PARSED} tests/integration/serving/test_status_command.py",
        "python -m tests.faults.night": "minutes long; tests/integration/deploy/test_night.py runs one of its faults",
    },
    "docs/object-stores.md": {
        "export AWS_": "keys of one's own",
        "emberline ": "it needs a bucket; tests/integration/test_object_commands.py runs the same on an S3 server",
    },
    "docs/releasing.md": {
        "pip wheel": "CI builds the wheels, and runs tests/wheel/smoke.py from each",
        "python3 -m venv": "CI does this for each wheel",
        "build/smoke/bin/": "CI does this for each wheel",
    },
    "docs/security.md": {
        "curl -X POST": "tests/integration/serving/test_security.py sends the same with the server's own token",
    },
}

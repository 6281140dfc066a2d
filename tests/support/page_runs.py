"""Says which test runs the commands of which page, and why some are run by none.

A command in a block of `sh` is run by the test of its page, or is listed in NOT_RUN with the reason. Commands of
emberline are always checked for their names and options (tests/test_documents.py).
"""

from __future__ import annotations

from pathlib import Path

_IMPORTING = "tests/integration/importing"
_SERVING = "tests/integration/serving"
_PARSED = "its options are parsed; what it does is run by"
_INSTALLED = "it is installed where tests run"
_PLANNED = "tests/e2e/test_commands.py plans for a time"
_MINUTES = "minutes to hours long, or wants other libraries;"
_TYPED = "tests/e2e/test_training_pages.py"
_SERVED = "tests/e2e/test_serving_pages.py"

#: A page, and the test that reads its blocks of `sh` and runs them.
RUN_BY = {
    "README.md": "tests/e2e/test_readme_twice.py",
    "docs/any-module.md": "tests/e2e/test_any_module_docs.py",
    "docs/cli.md": _SERVED,
    "docs/clients.md": "tests/integration/clients/guide.py",
    "docs/data.md": _TYPED,
    "docs/deployment.md": "tests/unit/deploy/test_deploy_docs.py",
    "docs/forget.md": "tests/e2e/test_forget_served.py",
    "docs/format.md": _SERVED,
    "docs/gpu.md": _SERVED,
    "docs/guides/from-deeprec.md": f"{_IMPORTING}/test_guides.py",
    "docs/guides/from-hps.md": f"{_IMPORTING}/test_guides.py",
    "docs/guides/from-tfra.md": f"{_IMPORTING}/test_guides.py",
    "docs/guides/from-torcheasyrec.md": f"{_IMPORTING}/test_guides.py",
    "docs/guides/from-torchrec.md": f"{_IMPORTING}/test_guides.py",
    "docs/guides/from-triton.md": f"{_IMPORTING}/test_network_docs.py",
    "docs/importing-networks.md": f"{_IMPORTING}/test_network_docs.py",
    "docs/importing.md": f"{_IMPORTING}/test_importing_docs.py",
    "docs/inspecting-tables.md": _SERVED,
    "docs/live.md": "tests/e2e/test_live_docs.py",
    "docs/loadtest.md": "tests/integration/loads/test_load_docs.py",
    "docs/logging.md": "tests/e2e/test_observing_docs.py",
    "docs/models.md": _SERVED,
    "docs/newcomer.md": "tests/e2e/test_newcomer.py",
    "docs/proving.md": f"{_IMPORTING}/test_network_docs.py",
    "docs/ranks.md": _TYPED,
    "docs/scaling.md": _SERVED,
    "docs/security.md": _SERVED,
    "docs/serving.md": _SERVED,
    "docs/store-repair.md": _SERVED,
    "docs/store.md": _SERVED,
    "docs/streams.md": _TYPED,
    "docs/torch-libraries.md": "tests/e2e/test_published_models.py",
    "docs/tracing.md": "tests/e2e/test_observing_docs.py",
    "docs/training.md": _TYPED,
    "docs/tuning-runs.md": _TYPED,
    "docs/tutorial.md": "tests/e2e/test_tutorial.py",
    "model_repo/README.md": _SERVED,
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
    "docs/balancing.md": {
        "emberline serve --model-repository s3://": f"it needs a bucket; {_PARSED} {_SERVING}/test_balancer.py",
        "curl localhost:8000/v1/models/movielens": f"{_SERVING}/test_balancer.py sends the same header",
        "python -m tests.faults.fleet": "minutes long; `make storm` runs faults of a fleet each night",
        "python -m benchmarks fleet": f"{_MINUTES} tests/e2e/test_bench_command.py runs the same command with others",
    },
    "docs/benchmarks.md": {
        "python -m benchmarks": "minutes to hours long; tests/e2e/test_bench_command.py checks modules and options",
    },
    "docs/cli.md": {
        "emberline top  ": "it goes on until it is stopped; tests/integration/serving/test_top_command.py runs it",
        "emberline top --url": "it goes on until it is stopped; tests/integration/serving/test_top_command.py runs it",
    },
    "docs/console.md": {
        "emberline serve --model-repository build/models": "every test of the console starts a server like this",
        "python -m tests.external.console_pictures": "tests/e2e/test_console_pictures.py calls it for another folder",
    },
    "docs/data.md": {
        "emberline train shop.yaml --data 'clicks/2026-11-*.csv' --data s3://": "it needs a bucket; "
        "tests/integration/trainer/test_remote_data.py trains on an S3 server's files",
        "emberline data movielens": "it needs a network; tests/unit/quickstart/test_movielens.py reads a wheel like it",
    },
    "docs/deployment.md": {
        "docker ": "tests/integration/deploy/test_deploy_image.py follows the Dockerfile without Docker",
        "docker compose": "tests/unit/deploy/test_deploy_compose.py checks the file",
        "useradd": "it changes the machine",
        "python3 -m venv": "CI installs each wheel into such an environment: tests/wheel/smoke.py",
        "install ": "it changes the machine",
        "systemctl": "it changes the machine",
        "curl localhost:8000/v2/models/tiny": "it asks containers; tests/integration/test_model_repo.py asks a server",
        "kubectl kustomize deploy/kubernetes/overlays/example     #": "the section about checks has the same again",
        "kubectl apply": "it needs a cluster; tests/unit/deploy/test_deploy_kubernetes.py checks what it applies",
        "kubectl exec": "it needs a cluster; tests/integration/serving/test_live_surfaces.py runs these commands",
        "systemd-analyze": "it reads /opt/emberline; tests/unit/deploy/test_deploy_systemd.py checks the unit",
        "haproxy": "tests/integration/serving/test_balancer.py runs it with this file",
        "python -m pytest": "it would run the tests within a test",
    },
    "docs/explain.md": {
        "emberline diff": f"{_PARSED} tests/integration/trainer/test_diff.py",
        "emberline explain": f"{_PARSED} tests/integration/serving/test_explain.py",
    },
    "docs/feedback.md": {
        "emberline serve": f"its folders are a service's own; {_PARSED} tests/e2e/test_feedback_served.py",
        "emberline update": f"its folders are a service's own; {_PARSED} tests/e2e/test_feedback_served.py",
        "emberline forget": f"its folders are a service's own; {_PARSED} tests/unit/storage/test_served_logs.py",
    },
    "docs/fleet.md": {
        "emberline ": f"it needs a bucket; {_PARSED} tests/integration/serving/test_fleet.py on an S3 server",
    },
    "docs/fuzzing.md": {
        "make fuzz": "CI runs it each night",
        "python -m tests.fuzz": "minutes long; tests/fuzz/test_fuzz.py runs each of them for less",
    },
    "docs/gpu-figures.md": {
        "make ": "it needs a GPU; `make rehearse-gpu` runs the same at toy sizes",
    },
    "docs/gpu-training.md": {
        "emberline train": "it needs a GPU; tests/gpu/test_training_on_gpu.py trains on one",
    },
    "docs/gpu.md": {
        "pip install": _INSTALLED,
        "python3 tests/gpu/hour.py": "it needs a GPU; `make rehearse-gpu` runs the same at toy sizes",
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
    "docs/published-models.md": {
        "python -m benchmarks.libraries": f"{_MINUTES} tests/e2e/test_published_models.py runs it for some models",
    },
    "docs/ranks.md": {
        "torchrun --nnodes 2": "it needs two machines; tests/integration/trainer/test_ranks.py runs ranks on one",
    },
    "docs/releasing.md": {
        "pip wheel": "CI builds the wheels, and runs tests/wheel/smoke.py from each",
        "python3 -m venv": "CI does this for each wheel",
        "build/smoke/bin/": "CI does this for each wheel",
        "git ": "it makes a release",
        "gh ": "it makes a release",
        "twine ": "it makes a release",
        "docker ": "tests/integration/deploy/test_deploy_image.py follows the Dockerfile without Docker",
        "make docs": "CI runs it",
        "python -m http.server": "it goes on until it is stopped, and is Python's own",
    },
    "docs/security.md": {
        "openssl": f"{_SERVING}/test_security_tls.py runs these blocks, as the test of the page does first",
        "printf": f"{_SERVING}/test_security_tls.py runs these blocks, as the test of the page does first",
        "emberline snapshots movielens --url https://models.example": "the name of a service of one's own",
    },
    "docs/store.md": {
        "emberline plan movielens --url http://127.0.0.1:8000 --target-ms": f"it wants much traffic; {_PLANNED}",
        "emberline plan build/models/movielens/1": f"it wants a quiet machine; {_PLANNED}",
    },
    "docs/streams.md": {
        "pip install": _INSTALLED,
        "emberline update runs/shop --follow kafka:": f"{_PARSED} tests/integration/trainer/test_follow_kafka.py",
        "emberline update runs/shop --follow 'kafka:": f"{_PARSED} tests/integration/trainer/test_follow_joined.py",
        "emberline update runs/shop-2 --follow kafka:": f"{_PARSED} tests/integration/trainer/test_takeover.py",
        "python -m benchmarks drift": f"{_MINUTES} tests/unit/benchmarks/test_line_chart.py draws its picture's kind",
        "python -m benchmarks films": f"{_MINUTES} tests/unit/benchmarks/test_films.py has parts of it",
    },
    "docs/table-kinds.md": {
        "python -m benchmarks.table_kinds": f"{_MINUTES} tests/e2e/test_table_kinds_served.py trains each kind",
    },
    "docs/training.md": {
        "python -m benchmarks": f"{_MINUTES} tests/unit/benchmarks/test_train.py has parts of it",
        "pip install": _INSTALLED,
        "tensorboard": "it goes on until it is stopped; tests/integration/trainer/test_tracking.py reads the files",
    },
    "docs/tuning-runs.md": {
        "pip install": _INSTALLED,
    },
    "docs/tuning.md": {
        "python -m benchmarks": f"{_MINUTES} tests/unit/benchmarks/test_zoo.py has parts of it",
    },
}

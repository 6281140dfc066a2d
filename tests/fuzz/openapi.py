"""Asks a real server what its OpenAPI document allows, and what it does not, by schemathesis; every answer must be one
that the document describes.

python -m tests.fuzz.openapi --seconds 600        needs the extra `fuzz`
"""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.fuzz.campaign import Campaign, read_options
from tests.fuzz.served import ECHO, MODEL, SPARE, Sampler, Served, run_served

_CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
_FINE = frozenset({501, 503, 504})
# Of a path that was changed so that it is another one, or none.
_OTHER_PATH = frozenset({404, 405})
_TIMEOUT_S = 20.0
# These change the model that they name: never the one that has to give right answers, and never so that it costs much.
_CONTROL = "/v2/repository/models/{name}/"
_UNTOUCHED = frozenset({_CONTROL + verb for verb in ("unload", "load", "sessions")})
_EXAMPLES = 20


def run(campaign: Campaign, served: Served) -> None:
    """Goes through all operations again and again until the campaign is over."""
    base = f"http://127.0.0.1:{served.http_port}"
    with urllib.request.urlopen(f"{base}/openapi.json", timeout=_TIMEOUT_S) as answer:
        document = json.load(answer)
    # Of PredictRequest's two forms and the like, all are tried; a schema that calls itself is cut off by schemathesis.
    schema = schemathesis.openapi.from_dict(document)
    operations = [found.ok() for found in schema.get_all_operations()]
    with Sampler(served), requests.Session() as session:
        turn = 0
        while not campaign.is_over():
            for operation in operations:
                for mode in schemathesis.GenerationMode:
                    if campaign.is_over():
                        break
                    _ask(campaign, _strategy(operation, mode), base, session, turn)
                turn += 1
            campaign.complain(served.troubles())


def _strategy(operation: Any, mode: Any) -> st.SearchStrategy[Any]:
    try:
        strategy: st.SearchStrategy[Any] = operation.as_strategy(generation_mode=mode)
    except schemathesis.errors.SchemathesisError:
        return st.nothing()  # there is nothing that the document forbids here
    return strategy


def _ask(campaign: Campaign, strategy: st.SearchStrategy[Any], base: str, session: Any, turn: int) -> None:
    if strategy.is_empty:
        return

    @seed(campaign.seed * 1_000_003 + turn)
    @settings(
        max_examples=_EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy, st.sampled_from((MODEL, MODEL, ECHO, SPARE, f"{MODEL}.item", "")))
    def ask(case: Any, name: str) -> None:
        _one(campaign, case, name, base, session)

    try:
        ask()
    except Exception as error:
        # schemathesis cannot make an input of every kind for every operation.
        if type(error).__module__.split(".")[0] not in ("hypothesis", "schemathesis"):
            raise
        campaign.answers[f"not made: {type(error).__name__}"] += 1


def _one(campaign: Campaign, case: Any, name: str, base: str, session: Any) -> None:
    path = case.operation.path
    parameters = dict(case.path_parameters or {})
    if "name" in parameters and name:
        parameters["name"] = name
    if case.operation.method.upper() == "POST" and path.startswith(_CONTROL):
        parameters["name"] = SPARE if path not in _UNTOUCHED else "nope"
    if "version" in parameters and name:
        parameters["version"] = "1"
    case.path_parameters = parameters
    try:
        response = case.call(base_url=base, session=session, timeout=_TIMEOUT_S)
    except (ValueError, UnicodeError, requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL):
        campaign.answers["not to be sent"] += 1
        return
    except requests.exceptions.RequestException as error:
        campaign.find(f"{case.operation.method} {path}: {error!r}", _saved(case))
        campaign.note("no answer")
        return
    status = response.status_code
    campaign.note(str(status))
    if status >= 500 and status not in _FINE:
        campaign.find(f"{case.operation.method} {path}: status {status}: {response.content[:500]!r}", _saved(case))
        return
    if status in _OTHER_PATH and str(status) not in case.operation.responses.status_codes:
        return
    if status == 404 and "Not Found" in response.text:
        return
    try:
        case.validate_response(response, checks=_CHECKS)
    except (FailureGroup, Failure) as error:
        campaign.find(f"{case.operation.method} {path}: {str(error)[:1500]}", _saved(case))


def _saved(case: Any) -> bytes:
    return str(case.as_curl_command()).encode("utf-8", "replace")


def replay(data: bytes, ask: Callable[[str], object] = print) -> None:
    """Prints a saved input, which is the command that sends it to a server of your own."""
    ask(data.decode())


def main() -> int:
    """Runs the command line."""
    options = read_options()
    campaign = Campaign("openapi", options.seconds, options.inputs, options.seed)
    if options.replay is not None:
        replay(options.replay.read_bytes())
        return 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, Served(Path(folder)) as served:
        run_served(campaign, served, run)
    return campaign.finish()


if __name__ == "__main__":
    sys.exit(main())

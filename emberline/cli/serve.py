"""`emberline serve`."""

from __future__ import annotations

import os
from typing import Any

import click
from click.core import ParameterSource
from pydantic import ValidationError

from emberline.cli.command import Command, LocalPath, Repository
from emberline.cli.names import complete_in_repository
from serving.config import ServerConfig
from storage.errors import ConfigError, InvalidInput

# Flags that are not named like their field.
_FLAGS = {
    "models": "--model",
    "allowed_hosts": "--allowed-host",
    "max_body_bytes": "--max-body",
    "drain_delay_s": "--drain-delay",
    "drain_timeout_s": "--drain-timeout",
    "poll_s": "--poll",
    "mirror_bytes_per_s": "--mirror-rate",
}
_DEFAULTS = {name: field.default for name, field in ServerConfig.model_fields.items()}


@click.command(
    cls=Command, name="serve", epilog="\b\nExample:\n  emberline serve --model-repository build/models --http-port 8000"
)
@click.option(
    "--model-repository",
    type=Repository(),
    envvar="EMBERLINE_MODEL_REPOSITORY",
    required=True,
    help="Folder of models, NAME/config.pbtxt and NAME/VERSION/, or the URL of one in an object store, such as "
    "s3://bucket/models.",
)
@click.option(
    "--mirror-dir",
    type=LocalPath(file_okay=False),
    help="Where the models of a URL are copied to; default: the user's cache folder.",
)
@click.option(
    "--mirror-rate",
    "mirror_bytes_per_s",
    metavar="BYTES",
    help="Bytes a second that may come from the object store, such as 200MiB. Default: no bound.",
)
@click.option(
    "--fleet",
    is_flag=True,
    envvar="EMBERLINE_FLEET",
    help="Serve one snapshot with the other servers of this repository: all of them switch together, and rollbacks and "
    "the like hold for all. The repository lies in an object store then.",
)
@click.option(
    "--replica-id",
    envvar="EMBERLINE_REPLICA_ID",
    help="Name of this server in its fleet. Default: the host's name and the HTTP port.",
)
@click.option(
    "--replica-url",
    envvar="EMBERLINE_REPLICA_URL",
    help="Where the others ask whether it is ready, such as http://10.0.0.7:8000. Default: this machine's address.",
)
@click.option(
    "--max-unavailable",
    type=int,
    envvar="EMBERLINE_MAX_UNAVAILABLE",
    default=_DEFAULTS["max_unavailable"],
    help="Servers of the fleet that may be left behind, not ready, where they cannot take a snapshot.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    help="Serve this model only; may be given several times.",
    shell_complete=complete_in_repository("model_repository"),
)
@click.option(
    "--store",
    type=LocalPath(),
    envvar="EMBERLINE_STORE",
    help="Where rows are kept on SSD; default: the user's cache folder.",
)
@click.option(
    "--host",
    envvar="EMBERLINE_HOST",
    default=_DEFAULTS["host"],
    help="Address to listen on. 0.0.0.0 opens the server to the network.",
)
@click.option("--http-port", type=int, default=_DEFAULTS["http_port"], help="KServe over HTTP; 0 takes a free port.")
@click.option("--grpc-port", type=int, default=_DEFAULTS["grpc_port"], help="KServe over gRPC; 0 takes a free port.")
@click.option(
    "--metrics-port", type=int, default=_DEFAULTS["metrics_port"], help="Prometheus metrics; 0 takes a free port."
)
@click.option(
    "--access-file",
    type=LocalPath(),
    help="File of access rules (YAML; `emberline token new` makes one). Without it everybody may predict and read, and "
    "control needs the token that the server writes under ~/.cache/emberline/tokens.",
)
@click.option("--open-admin", is_flag=True, help="Let everybody load, unload and roll back without a token, as Triton.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Name by which browsers may call the console, and control the server, without a token, such as the name of a "
    "proxy; may be given several times. Addresses and names within a network need none.",
)
@click.option("--tls-certificate", type=LocalPath(), help="Certificate (PEM): https, and TLS for gRPC and metrics.")
@click.option("--tls-key", type=LocalPath(), help="Its key (PEM), where it is not in the same file.")
@click.option(
    "--tls-client-ca",
    type=LocalPath(),
    help="Certificate (PEM) of who signs the clients' own, which they have to show then.",
)
@click.option("--max-requests-per-second", type=float, help="Of one client: a name in the access file, or an address.")
@click.option(
    "--max-connections",
    type=int,
    default=_DEFAULTS["max_connections"],
    help="Of each port. Past it idle ones are closed; where none is idle a new one gets 503.",
)
@click.option(
    "--max-connections-per-address",
    type=int,
    help="Of each HTTP port, those of one address. Default: half of --max-connections, at least 64.",
)
@click.option("--audit-log", type=LocalPath(), help="File for a line of JSON a control call; it is logged anyway.")
@click.option(
    "--feature-log",
    type=LocalPath(file_okay=False),
    help="Folder for logged requests and labels of models whose config.pbtxt has feature_log_share. Default: no log.",
)
@click.option(
    "--feature-log-key",
    type=LocalPath(dir_okay=False),
    help="File with the key of the digests that are logged for inputs in feature_log_hash.",
)
@click.option("--max-body", "max_body_bytes", default="64MiB", help="Largest request, as bytes or 64MiB.")
@click.option(
    "--shared-memory",
    multiple=True,
    metavar="PREFIX",
    help="Let clients on this machine pass tensors in segments of /dev/shm whose names begin with PREFIX; may be given "
    "several times. Default: none may.",
)
@click.option(
    "--drain-delay",
    "drain_delay_s",
    type=float,
    help="Seconds of not being ready on stop, before the ports close: time for load balancers to notice. Default: 5 "
    "where somebody keeps asking whether the server is ready, else 0.",
)
@click.option(
    "--drain-timeout",
    "drain_timeout_s",
    type=float,
    default=_DEFAULTS["drain_timeout_s"],
    help="Seconds for in-flight requests on stop.",
)
@click.option(
    "--poll",
    "poll_s",
    type=float,
    default=_DEFAULTS["poll_s"],
    help="Seconds between looks into the repository, for file systems that do not report changes.",
)
@click.option(
    "--log-level",
    "log_levels",
    multiple=True,
    metavar="[NAME=]LEVEL",
    help="What is logged to standard error: debug, info, warning, error or critical. NAME=LEVEL sets one logger, such "
    "as emberline.storage=debug; may be given several times. Default: info.",
)
@click.option(
    "--log-format",
    type=click.Choice(["console", "json"]),
    envvar="EMBERLINE_LOG_FORMAT",
    default=_DEFAULTS["log_format"],
    help="Lines of text, or a JSON object a line; also for the access log.",
)
@click.option("--access-log", type=LocalPath(), help="File for a line a request, - for standard output. Default: none.")
@click.option(
    "--slow-request-ms",
    type=float,
    help="Log a request that takes longer with the times of its stages. Default: none is.",
)
@click.option(
    "--trace-otlp",
    metavar="URL",
    envvar="EMBERLINE_TRACE_OTLP",
    help="Send spans of requests by OTLP: http://HOST:4318, or grpc://HOST:4317. Default: no request is traced.",
)
@click.option(
    "--trace-sampling",
    type=float,
    default=_DEFAULTS["trace_sampling"],
    help="Share of the requests that are traced, where their callers do not decide it (traceparent).",
)
def command(log_levels: tuple[str, ...], **options: Any) -> None:
    """Serve every model of a repository over HTTP (8000), gRPC (8001) and metrics (8002).

    A version is served when its digests hold and its golden requests give the trainer's scores; the log says why one
    is refused. New versions and deltas are taken as they appear in the repository; `emberline snapshots` shows them,
    `emberline rollback` goes back.
    The server runs in a child process; if that crashes, another one takes its place. Ctrl-C or SIGTERM drains and
    stops. Options of a model (sessions, batching, DRAM budget) stand in its config.pbtxt.
    """
    from serving.interpreter import wait_without_spinning
    from serving.observing.logs import levels_of, set_up_logs

    wait_without_spinning(os.environ)
    from serving.supervisor import supervise

    try:
        levels = levels_of(log_levels)
    except InvalidInput as error:
        raise ConfigError(str(error).replace("log_level", "--log-level", 1), field="log_level") from None
    config = server_config(click.get_current_context(), options)
    set_up_logs(levels, options["log_format"])
    try:
        supervise(config)
    except ConfigError as error:
        if error.field not in ServerConfig.model_fields:
            raise
        text = str(error).removeprefix(f"{error.field}: ")
        raise ConfigError(f"{flag_of(error.field)}: {text}", field=error.field) from None


def server_config(context: click.Context, options: dict[str, Any]) -> ServerConfig:
    """Returns the configuration of a command line, with where its options come from. Raises ConfigError."""
    try:
        return ServerConfig(**options, origins=_origins(context))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        text = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{flag_of(field)}: {text}, got {str(first['input'])!r}", field=field) from None


def _origins(context: click.Context) -> dict[str, str]:
    """Returns the flag or the environment variable of each option that was given."""
    found = {}
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in ServerConfig.model_fields and source is ParameterSource.COMMANDLINE:
            found[option.name] = option.opts[0]
        elif option.name in ServerConfig.model_fields and source is ParameterSource.ENVIRONMENT:
            found[option.name] = str(option.envvar)
    return found


def flag_of(field: str) -> str:
    """Returns the flag of a field of ServerConfig."""
    return _FLAGS.get(field, "--" + field.replace("_", "-"))

"""Runs a server in the foreground."""

from __future__ import annotations

from serving.config import ServerConfig


def serve(config: ServerConfig) -> None:
    """Runs a server until SIGINT or SIGTERM, then drains. A second signal ends it at once.

    Raises NotFound when the repository is not there, ConfigError when a port is taken, Unsupported when front ends in
    processes of their own are asked for where the system has no memory to share.
    """
    if config.frontends:
        from serving.frontends.supervisor import supervise

        supervise(config)
        return
    # torch is loaded here: a supervisor does not use it.
    from serving.server import serve_in_process

    serve_in_process(config)

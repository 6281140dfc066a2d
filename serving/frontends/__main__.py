"""Entry point of a server's child processes; its supervisor starts it: python -m serving.frontends ORDERS."""

from __future__ import annotations

import sys

from serving.frontends.child import CONFIG_ERROR, Orders, set_up_process
from storage.errors import EmberlineError


def main() -> int:
    """Runs the role that the orders name. Returns the exit status."""
    orders = Orders.decode(sys.argv[1])
    set_up_process(orders)
    try:
        if orders.role == "engine":
            from serving.frontends.engine import run_engine

            run_engine(orders)
        else:
            # This import leaves out torch: a front end has no use for it.
            from serving.frontends.worker import run_worker

            run_worker(orders)
    except EmberlineError as error:
        print(f"emberline: {error}", file=sys.stderr, flush=True)
        return CONFIG_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())

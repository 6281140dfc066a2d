"""The calls of operators on one model, carried out on all replicas where the server is one of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import JsonValue

from serving.feedback.model_feedback import ModelFeedback
from serving.fleet.fleet import Fleet
from serving.updates import commands, explaining, outline, report, sampling, shadow_commands
from serving.updates.change import Change, carry_out
from serving.updates.counters import UpdateCounters
from serving.updates.explaining import Decode
from serving.updates.live_model import LiveModel
from serving.updates.model_updater import ModelUpdater
from serving.updates.shadowing import ShadowReport
from storage.errors import Conflict, StoreError, Unavailable, Unsupported


class OperatorCalls:
    """Is the part of a repository that operators call. Thread-safe."""

    #: This server's part in what replicas agree on; None without replicas.
    fleet: Fleet | None

    def _updater(self, name: str) -> ModelUpdater:
        raise NotImplementedError

    def rollback(self, name: str, *, to: str = "", steps: int = 1) -> dict[str, JsonValue]:
        """Serves a retained snapshot again, and holds what came after it. Returns `snapshots(name)`.

        to: an id or "V.S"; without one, `steps` back. Raises NotFound naming what is there, Conflict during a canary.
        """
        return self._tell(name, lambda model: commands.rollback(model, to=to, steps=steps))

    def resume(self, name: str) -> dict[str, JsonValue]:
        """Ends every hold, pause and pin: the newest good snapshot is served, and the folder is followed."""
        return self._tell(name, commands.resume)

    def pause(self, name: str) -> dict[str, JsonValue]:
        """Takes nothing new until `resume`."""
        return self._tell(name, commands.pause)

    def pin(self, name: str, to: str = "") -> dict[str, JsonValue]:
        """Serves a retained snapshot, the present one without `to`, until `resume`."""
        return self._tell(name, lambda model: commands.pin(model, to))

    def canary(self, name: str, *, fraction: float, to: str = "") -> dict[str, JsonValue]:
        """Answers a fraction of the requests from a held or retained snapshot, or from the next good arrival."""
        return self._tell(name, lambda model: commands.canary(model, fraction=fraction, to=to))

    def promote(self, name: str) -> dict[str, JsonValue]:
        """Serves the canary to everybody. Raises Conflict when there is none."""
        return self._tell(name, commands.promote)

    def stop_canary(self, name: str) -> dict[str, JsonValue]:
        """Ends the canary and holds its snapshot. Raises Conflict when there is none."""
        return self._tell(name, commands.stop_canary)

    def shadow(self, name: str, *, to: str, share: float, top_k: int, for_s: float = 0.0) -> dict[str, JsonValue]:
        """Scores a share of the requests on a snapshot or version too, which answers nobody; on this replica alone.

        for_s: 0 for no end. Raises NotFound naming what is there, Conflict naming the inputs that do not fit.
        """
        return self._do(
            name, lambda model: shadow_commands.start_shadow(model, to=to, share=share, top_k=top_k, for_s=for_s)
        )

    def promote_shadow(self, name: str) -> dict[str, JsonValue]:
        """Serves the shadow to everybody. Raises Conflict with the reason where that is not possible."""
        if self.fleet is not None and self.fleet.member(name) is not None:
            raise Conflict(
                f"model {name!r}: a shadow is of one replica, and the replicas of a fleet serve one snapshot; let the "
                "update in for all of them, with `emberline resume` or as a canary"
            )
        return self._do(name, shadow_commands.promote_shadow)

    def stop_shadow(self, name: str) -> dict[str, JsonValue]:
        """Ends the shadow. Raises Conflict when there is none."""

        def stop(model: LiveModel) -> None:
            with model.lock:
                carry_out(model, shadow_commands.stop_shadow(model))

        return self._do(name, stop)

    def shadow_report(self, name: str) -> ShadowReport | None:
        """Returns how the shadow of a model does; None without one."""
        return report.shadow(self._updater(name).model)

    def feedback(self, name: str) -> ModelFeedback:
        """Returns what looks at the requests of a model."""
        return self._updater(name).model.feedback

    def allow(self, name: str, version: str, inputs: Sequence[str]) -> dict[str, JsonValue]:
        """Allows a version although these inputs or outputs are gone or of another type."""
        return self._tell(name, lambda model: commands.allow(model, version, inputs))

    def snapshots(self, name: str) -> dict[str, JsonValue]:
        """Returns what is served, retained, held, quarantined and waited for; docs/live.md describes it."""
        return report.snapshots(self._updater(name).model)

    def outline(self, name: str) -> dict[str, JsonValue]:
        """Returns a short form of `snapshots(name)`, without a look at the disk."""
        return outline.outline(self._updater(name).model)

    def memory(self, name: str) -> dict[str, JsonValue]:
        """Returns `budget(name)` and the hottest ids; what would take long is left out, with the reason."""
        updater = self._updater(name)
        try:
            return outline.memory(updater.model)
        except StoreError as error:  # a store that is being closed
            raise Unavailable(f"model {name!r}: {error}") from error

    def sample(self, name: str) -> dict[str, JsonValue]:
        """Returns some golden requests of the served version, as the body of a v1 request."""
        return sampling.sample(self._updater(name).model)

    def explain(self, name: str, decode: Decode, row: int, min_snapshot: str = "") -> dict[str, JsonValue]:
        """Explains the score of a row of a request; docs/explain.md describes it."""
        try:
            return explaining.explain(self._updater(name).model, decode, row, min_snapshot)
        except StoreError as error:  # a store that is being closed, or cannot be read
            raise Unavailable(f"model {name!r}: {error}") from error

    def budget(self, name: str) -> dict[str, JsonValue]:
        """Returns the DRAM budget, its use, and what other budgets would give; docs/store.md describes it."""
        updater = self._updater(name)
        try:
            return report.budget(updater.model)
        except StoreError as error:  # a store that is being closed
            raise Unavailable(f"model {name!r}: {error}") from error

    def set_budget(self, name: str, dram_bytes: int | None) -> dict[str, JsonValue]:
        """Changes the DRAM budget while requests run; None: that of config.pbtxt. Returns `budget(name)`."""
        self._do(name, lambda model: commands.set_budget(model, dram_bytes))
        return self.budget(name)

    def settings(self, name: str) -> dict[str, JsonValue]:
        """Returns the options of a model that are in force, and where each comes from; docs/cli.md describes it."""
        return report.settings(self._updater(name).model)

    def sessions(self, name: str) -> dict[str, JsonValue]:
        """Returns the sessions of a model and what each has done; docs/serving.md describes it."""
        return report.sessions(self._updater(name).model)

    def set_sessions(self, name: str, count: int | None) -> dict[str, JsonValue]:
        """Changes how many sessions a model has while it serves; None: as in config.pbtxt. Returns `sessions`."""
        self._do(name, lambda model: commands.set_sessions(model, count))
        return self.sessions(name)

    def fleet_view(self, name: str) -> dict[str, JsonValue]:
        """Returns what all replicas serve, and what each has staged or refused; docs/fleet.md describes it.

        Raises Unavailable where the object store has not answered since this server was started.
        """
        self._updater(name)
        if self.fleet is None:
            raise Unsupported("this server has no fleet; start it with --fleet")
        return self.fleet.view(name)

    def update_counters(self, name: str) -> UpdateCounters:
        """Returns the counts of what the updates of a model did so far."""
        return report.counters(self._updater(name).model)

    def _tell(self, name: str, command: Callable[[LiveModel], Change]) -> dict[str, JsonValue]:
        """Carries out a command, on all replicas where there are more."""
        member = None if self.fleet is None else self.fleet.member(name)
        if member is not None:
            return self._do(name, lambda _: member.order(command))

        def run(model: LiveModel) -> None:
            with model.lock:
                carry_out(model, command(model))

        return self._do(name, run)

    def _do(self, name: str, command: Callable[[LiveModel], None]) -> dict[str, JsonValue]:
        updater = self._updater(name)
        try:
            command(updater.model)
        except StoreError as error:
            raise Unavailable(f"model {name!r}: nothing was changed, it could not be recorded: {error}") from error
        updater.wake()
        return report.snapshots(updater.model)

"""Loads a model and takes its new versions and deltas on one thread. Nothing in the folder can end that thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from serving.config import ServerConfig
from serving.engine.core_shares import CoreShares
from serving.gpu.driver import Gpus
from serving.model_config.pbtxt import ModelConfig, read_model_config
from serving.model_folders import CONFIG
from serving.updates import refusals
from serving.updates.agreement import Outdated
from serving.updates.applying import agree, collect_kept, take_delta
from serving.updates.auc_trials import AucTrials
from serving.updates.catalog import Catalog, Found, ModelFolder
from serving.updates.faults import is_machine_fault
from serving.updates.lineage import Decision, Refuse, Take, Wait, decide, next_delta
from serving.updates.live_model import LiveModel, Stopped
from serving.updates.loading import DRAIN_S, observe_as_configured, unmount
from serving.updates.made_anew import facts_for_folder
from serving.updates.mending import Mending
from serving.updates.merging import merge_loop
from serving.updates.mount import MountedStore
from serving.updates.rechecking import recheck
from serving.updates.replacing import remove_stores, retire, take_version
from serving.updates.report import note_disk_waits
from serving.updates.restoring import give_up_lost, restore_mount, without_lost_canary
from serving.updates.routes import Awaiting
from serving.updates.sharing import take_on_store
from serving.updates.situation import situation, stopped
from serving.updates.stamps import stamp_of
from serving.updates.steps import OnStep
from serving.updates.store_lock import StoreLock
from serving.updates.taking_shadows import is_shadow, next_of_shadow, restore_shadow, take_shadow
from serving.updates.version_diff import TooDifferent
from storage.errors import CheckpointError, ConfigError, EmberlineError, NotFound, SignatureError, StoreError

logger = logging.getLogger("emberline.serving")

_RETRY_FIRST_S = 1.0
_RETRY_LAST_S = 60.0
# Seconds between checks of a wait whether it is to stop.
_LOOK_S = 0.1


class ModelUpdater:
    """Loads a model and follows its folder until `stop`."""

    def __init__(
        self,
        name: str,
        config: ServerConfig,
        cores: CoreShares | None = None,
        on_step: OnStep | None = None,
        before: ModelUpdater | None = None,
        gpus: Gpus | None = None,
    ) -> None:
        """Makes the updater. cores, gpus: shared with the other models of the process; None: no GPUs.

        before: the model's updater that is being stopped; its stores are not touched until it has closed them.
        """
        self.model = LiveModel(name, config, cores, on_step, gpus)
        self.closed = threading.Event()
        self._before = before
        self._unclosed: list[MountedStore] = []
        self._poll_s = config.poll_s
        self._folder = ModelFolder(self.model.folder)
        self._store_lock = StoreLock(self.model.store_root)
        self._mending = Mending(self.model)
        self._trials = AucTrials(self.model)
        self.model.on_damage = self.look
        self._config_mark: tuple[int, ...] = ()
        self._wake, self._turn = threading.Event(), threading.Lock()
        self._restored = self._following = False
        self._threads: dict[str, threading.Thread] = {}
        self._retry_s = self._not_before = 0.0

    def load(self) -> None:
        """Serves what was served before, or the newest good version, and takes every delta that is there.

        The index reports a version or delta that cannot be loaded; nothing is raised.
        """
        self.advance()

    def follow(self) -> None:
        """Starts the threads that follow the folder, unless they run already."""
        with self.model.lock:
            if self.model.stopping.is_set():
                return
            merge = partial(merge_loop, self.model, self.wake)
            for target, label in ((self._follow, "follow"), (merge, "merge")):
                if label not in self._threads and not self._run(target, label):
                    return

    def wake(self) -> None:
        """Looks at the folder now, after a change or a command; what failed before is tried again at once."""
        self._not_before = 0.0
        self._wake.set()

    def look(self) -> None:
        """Looks at the folder now; what failed before is tried again when its delay has passed."""
        self._wake.set()

    def advance(self) -> None:
        """Takes what is there, one after the other, until there is nothing to take."""
        with self._turn:
            # One that was stopped has released its store, and must not lock it again: nobody would release it.
            if self.model.stopping.is_set():
                return
            if not self._restored and not (self._is_alone() and self._has_store() and self._guarded(self._restore)):
                return
            while not self.model.stopping.is_set() and self._guarded(self._advance_once):
                pass

    def give_up(self) -> None:
        """Takes nothing more; a load that is under way ends soon. What is served stays served.

        Requests that wait for a newer snapshot are refused at once: none will come.
        """
        self.model.stopping.set()
        self.model.each_loaded(lambda loaded: loaded.history.end())
        self.model.attempts.stop()
        self._wake.set()
        self.model.merge_wake.set()

    def stop(self, timeout_s: float) -> bool:
        """Gives up what is under way, drains and closes everything; False when a session or a load still runs.

        Then it can be called again; `closed` is set once nothing runs.
        """
        model = self.model
        deadline = time.monotonic() + timeout_s
        self.give_up()
        with model.lock:
            threads = (*self._threads.values(), *model.retiring)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if not self._turn.acquire(timeout=max(0.01, deadline - time.monotonic())):
            return False
        try:
            with model.lock:
                self._unclosed += model.mounts
                model.default = None
                model.replace_mounts(())
            # Every mount, also after one that could not be closed.
            self._unclosed = [
                mount for mount in self._unclosed if not unmount(model, mount, max(0.0, deadline - time.monotonic()))
            ]
            if self._unclosed or any(thread.is_alive() for thread in threads):
                return False
            # The next updater waits only for this one, so this one waits for all before it.
            if self._before is not None and not self._before.closed.wait(max(0.0, deadline - time.monotonic())):
                return False
            model.feedback.close()
            self._store_lock.release()
            self.closed.set()
            return True
        finally:
            self._turn.release()

    def _run(self, target: Callable[[], None], label: str) -> bool:
        """Starts a thread; False when no thread is left on the machine, which is logged."""
        thread = threading.Thread(target=target, name=f"emberline-{label}-{self.model.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            logger.error("%s: the thread %r cannot be started so far: %s", self.model.name, label, error)
            return False
        self._threads[label] = thread
        return True

    def _follow(self) -> None:
        model = self.model
        self._following = True
        if model.attempts.any:
            self.advance()
        while not model.stopping.is_set():
            self._wake.wait(self._poll_s)
            self._wake.clear()
            if model.stopping.is_set():
                return
            with self._turn:
                self._mending.mend()
                self._trials.tick_alone()
                note_disk_waits(model)
            if time.monotonic() >= self._not_before and (model.config is None or model.config.options.updates):
                self.advance()

    def _is_alone(self) -> bool:
        """Waits until the updater before has closed its stores; False when this one is to stop too."""
        model = self.model
        while self._before is not None:
            model.trouble = "what was loaded before is still being unloaded"
            if self._before.closed.wait(_LOOK_S):
                self._before, model.trouble = None, ""
            elif model.stopping.is_set():
                return False
        return True

    def _has_store(self) -> bool:
        """Locks the model's stores; False when that fails: it is tried again at every look into the folder."""
        try:
            self._store_lock.acquire()
        except StoreError as error:
            self._note_trouble(error)
            return False
        return True

    def _guarded(self, work: Callable[[], bool]) -> bool:
        """Does the work; returns whether there may be more. A failure here is no input's fault: see `_attempt`."""
        model = self.model
        try:
            again = work()
        except Stopped:
            return False
        except Outdated:
            return True
        except Exception as error:
            self._retry_s = min(_RETRY_LAST_S, max(_RETRY_FIRST_S, self._retry_s * 2))
            self._not_before = time.monotonic() + self._retry_s
            self._note_trouble(error)
            return False
        if not again:
            model.trouble = ""
            self._retry_s = 0.0
        return again

    def _note_trouble(self, error: Exception) -> None:
        model = self.model
        text = str(error) or type(error).__name__
        if text != model.trouble:
            known = isinstance(error, EmberlineError | OSError)
            logger.error("%s: %s", model.name, text, exc_info=None if known else error)
        model.trouble = text

    def _restore(self) -> bool:
        """Opens the mounts of the state file. One that is gone for good is left out if no operator wants it to stay."""
        model = self.model
        catalog = self._folder.scan()
        with model.lock:
            model.knows_facts = False
            model.facts = facts_for_folder(model, model.file.read(), catalog)
            model.knows_facts = True
        model.attempts.read()
        config = self._read_config()
        mounts: list[MountedStore] = []
        default: MountedStore | None = None
        lost: dict[str, Exception] = {}
        try:
            for state in model.facts.lines:
                try:
                    mount = restore_mount(model, config, state)
                except (CheckpointError, ConfigError, NotFound) as error:
                    # A store that is open elsewhere, or a failing disk, is another matter: that may pass.
                    if is_machine_fault(error) or isinstance(error, ConfigError):
                        raise
                    lost[state.folder] = error
                    continue
                mounts.append(mount)
                if state.folder == model.facts.default:
                    default = mount
            give_up_lost(model, lost)
        except BaseException:
            for mount in mounts:
                unmount(model, mount, DRAIN_S)
            raise
        for mount in mounts:
            model.budget.serve(mount.store)
        with model.lock:
            model.mounts, model.default = tuple(mounts), default
            if model.canary_entry() is None:
                model.facts = without_lost_canary(model.name, model.facts)
            restore_shadow(model)
            model.show()
        self._restored = True
        model.merge_wake.set()
        if default is not None:
            logger.info("%s: serves %s again", model.name, default.view.current.snapshot)
            remove_stores(model)
            self._run(partial(recheck, model), "recheck")
        return True

    def _read_config(self) -> ModelConfig:
        model = self.model
        mark: tuple[int, ...] = (0,)
        with suppress(FileNotFoundError):
            status = (model.folder / CONFIG).stat()
            mark = (status.st_ino, status.st_size, status.st_mtime_ns)
        if model.config is None or mark != self._config_mark:
            config = read_model_config(model.folder).placed(model.gpus)
            if model.config is not None:
                logger.info("%s: %s changed", model.name, CONFIG)
                refusals.forget(model, lambda refusal: refusal.kind == "ConfigError")
                observe_as_configured(model, config)
            model.config, self._config_mark = config, mark
        configured = model.config.options.dram_bytes
        model.budget.follow(lambda: model.facts.dram_bytes(configured))
        return model.config

    def _advance_once(self) -> bool:
        model = self.model
        config = self._read_config()
        with model.lock:
            newer = {
                mount.view.current.snapshot.version: mount.view.current.snapshot.sequence for mount in model.mounts
            }
        catalog = self._folder.scan(newer)
        refusals.forget_gone(model, catalog)
        if model.default is None and not catalog.versions:
            raise NotFound(f"{model.folder} has no version: no folder with a number for a name; publish one")
        with model.lock:
            decision = decide(catalog, situation(model, catalog, config, model.default, self._is_refused))
            kept_back = any(not model.agreement.allows(each.snapshot) for each in catalog.versions.values())
            if kept_back and model.default is not None:  # other replicas have no say in the versions beside it
                alone = decide(catalog, situation(model, catalog, config, model.default, self._is_put_off))
                decision = replace(decision, side=alone.side)
            self._note(decision)
        if isinstance(decision.action, Refuse):
            found = decision.action.found
            refusals.refuse(self.model, found, decision.action.error, stamp_of(found))
            return True
        if isinstance(decision.action, Take):
            take = decision.action
            return self._attempt(take.found, lambda: self._take(config, take, decision))
        return self._sides(catalog, config, decision)

    def _is_refused(self, found: Found) -> bool:
        return (
            not self.model.agreement.allows(found.snapshot) or is_shadow(self.model, found) or self._is_put_off(found)
        )

    def _is_put_off(self, found: Found) -> bool:
        """Returns whether it is quarantined or comes last, because the last process died of it."""
        model = self.model
        put_off = not self._following and model.default is not None and model.attempts.is_suspect(found)
        return put_off or refusals.is_refused(model, found)

    def _note(self, decision: Decision) -> None:
        """Records what the decision found out. Call it under the lock."""
        model, facts = self.model, self.model.facts
        model.waiting = decision.action.reason if isinstance(decision.action, Wait) else ""
        if model.default is None and decision.action == Wait() and facts.held:
            model.waiting = (
                "what lies in the folder was rolled back, or was made from what was; publish a version that was not, "
                f"or end the hold with `emberline resume {model.name}`"
            )
        held, abandoned = set(facts.held), set(facts.abandoned)
        if decision.held != held or decision.abandoned != abandoned:
            fresh = decision.held - held
            facts = facts.model_copy(
                update={
                    "held": (*(h for h in facts.held if h in decision.held), *sorted(fresh)),
                    "abandoned": (
                        *(a for a in facts.abandoned if a in decision.abandoned),
                        *sorted(decision.abandoned - abandoned),
                    ),
                }
            )
            model.keep_facts(facts)
            model.refuse_waiters(fresh, "it is held: it was made from a snapshot that was rolled back")

    def _take(self, config: ModelConfig, take: Take, decision: Decision) -> None:
        model, mount = self.model, self.model.default
        found = take.found
        if found.is_delta:
            assert mount is not None
            take_delta(model, mount, take)
            return
        try:
            with model.taking(found.snapshot):
                self._take_version(config, decision, take)
        except BaseException:
            collect_kept(model)  # what was linked of a version that is not taken
            raise

    def _take_version(self, config: ModelConfig, decision: Decision, take: Take) -> None:
        model, mount = self.model, self.model.default
        found = take.found
        with model.lock:
            # The policy goes back to a version that is there already.
            there = [each for each in model.mounts if each.view.current.loaded.published.snapshot == found.snapshot]
        if there and not model.anew:
            current = there[0].view.current
            agreed = agree(model, None, "" if mount is None else mount.view.current.id, current.snapshot, take)
            with model.lock:
                if there[0] not in model.mounts or there[0].view.current is not current:
                    raise Outdated
                model.budget.serve(there[0].store)  # it may have been opened for a shadow
                facts = agreed.install(model.facts)
                is_trial = facts.canary is not None and facts.canary.snapshot == current.id
                model.commit(facts=facts, default=None if is_trial else there[0], at=agreed.at)
                agreed.done()
                return
        if model.anew:
            mount = None
        if mount is not None and mount.store.ssd.damage.found:
            mount = None  # nothing more is built on a damaged store
        if mount is not None and found.erased_unix_ms > mount.content.published_unix_ms:
            mount = None  # its files hold rows of ids that were forgotten
        # A store has one version of a number: another one of that number, or one that is about to leave, is in its way.
        own = mount is None or found.version in mount.loaded_versions
        if mount is not None and not own and found.equals == mount.view.current.id and not decision.side:
            take_on_store(model, config, mount, take)
            return
        if mount is not None and not own and not decision.side and config.options.version_reuse_share > 0:
            try:
                take_on_store(model, config, mount, take)
                return
            except (TooDifferent, NotFound) as reason:
                logger.info("%s/%d: gets a store of its own: %s", model.name, found.version, str(reason))
        take_version(model, config, take)
        model.anew = False
        if model.canary_entry() is None:
            self._retire(decision)

    def _sides(self, catalog: Catalog, config: ModelConfig, decision: Decision) -> bool:
        """Serves the other versions that the policy wants, each with its own deltas; closes those that it does not."""
        model = self.model
        if model.canary_entry() is not None or model.agreement.way():
            return False
        self._retire(decision)
        if take_shadow(model, config, catalog) or self._follow_shadow(catalog, config, decision):
            return True
        with model.lock:
            default = model.default
            there = {mount.view.current.snapshot.version: mount for mount in model.mounts}
        for number in decision.side:
            mount = there.get(number)
            found = catalog.versions.get(number)
            if found is not None and (
                mount is None
                or (found.error is None and mount.view.current.loaded.published.snapshot != found.snapshot)
            ):
                if self._attempt(found, partial(take_version, model, config, Take(found), side=True)):
                    return True
            elif mount is not None and mount is not default:
                with model.lock:
                    action = next_delta(catalog, situation(model, catalog, config, mount, self._is_put_off))
                if isinstance(action, Refuse):
                    refusals.refuse(self.model, action.found, action.error, stamp_of(action.found))
                    return True
                if isinstance(action, Take) and not stopped(model, mount):
                    return self._attempt(action.found, partial(take_delta, model, mount, Take(action.found)))
        return False

    def _follow_shadow(self, catalog: Catalog, config: ModelConfig, decision: Decision) -> bool:
        """Takes the next delta of a version that is the shadow, if the policy does not want that version anyway."""
        found = next_of_shadow(self.model, catalog, config, decision.side, self._is_put_off)
        if found is None:
            return False
        mount, action = found
        if isinstance(action, Refuse):
            refusals.refuse(self.model, action.found, action.error, stamp_of(action.found))
            return True
        return self._attempt(action.found, partial(take_delta, self.model, mount, action))

    def _retire(self, decision: Decision) -> None:
        model = self.model
        with model.lock:
            # Of two mounts with one number the later one has what lies in the folder now.
            newest = {mount.view.current.snapshot.version: mount for mount in model.mounts}
            kept = {model.default, *(newest.get(number) for number in decision.side)}
            if (running := model.shadow_entry()) is not None:
                kept.add(running[0])
            gone = [mount for mount in model.mounts if mount not in kept]
        if gone:
            retire(model, gone)

    def _attempt(self, found: Found, work: Callable[[], None]) -> bool:
        """Does the work. On failure it quarantines what is at fault, or raises a fault of the machine."""
        model = self.model
        stamp = stamp_of(found)
        try:
            with model.attempts.noted(found):
                model.check_stop()
                model.staging = found.name
                work()
        except (Stopped, Outdated):
            if not found.path.exists():
                return True  # the repository has dropped it meanwhile
            raise
        except SignatureError as error:
            model.awaiting[found.version] = Awaiting(found.key, str(error))
            refusals.count(model, error)
            logger.error("%s: %s", model.name, error)
        except Exception as error:
            if found.path.exists():
                if is_machine_fault(error):
                    raise
                refusals.refuse(self.model, found, error, stamp)
        finally:
            model.staging = ""
        return True

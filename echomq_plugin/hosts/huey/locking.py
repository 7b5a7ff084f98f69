"""lock_tasks: what each step of a task's life in Huey means for its lock."""

from __future__ import annotations

import copy
import datetime
import inspect
import logging
from typing import Any

import pluggy
from huey import signals
from huey.storage import MemoryStorage, RedisStorage

from echomq_plugin.attach import attach, hookimpl_for
from echomq_plugin.errors import AttachError, HostSetupError, LockHeldError, RedisCallError
from echomq_plugin.events import StalledJob
from echomq_plugin.hook_namespace import HookNamespace
from echomq_plugin.hosts.huey.recovery import TaskRecovery
from echomq_plugin.hosts.huey.runs import Run, RunLost
from echomq_plugin.hosts.huey.storage import ReliableRedisStorage
from echomq_plugin.hosts.huey.taken import NO_ANSWER, TakenTasks
from echomq_plugin.keys import percent_encoded
from echomq_plugin.log import log_event
from echomq_plugin.native import pause
from echomq_plugin.options import LockOptions
from echomq_plugin.plugin import LockPlugin
from echomq_plugin.server_settings import read_settings

_NAME = "_echomq_tasks"
_RUN = "_echomq_run"


def lock_tasks(
    huey: Any,
    connection: object | None = None,
    *,
    options: LockOptions | None = None,
    pm: pluggy.PluginManager | None = None,
) -> LockPlugin:
    """
    Run each task of a Huey instance under a lock; again: no effect. No I/O.

    Call it where the instance is made, so that producers and consumers share it. In immediate mode tasks run without
    locks, as they do without Redis.

    Args:
        huey: the instance.
        connection: where locks are kept, see ``LockManager``; None: in the Redis of the instance's storage.
        options: durations and limits; None: read from ``ECHOMQ_*``.
        pm: the plugin manager whose hooks are called; None: one of its own.

    Raises:
        HostSetupError: the storage is not Redis and there is no ``connection``; or the storage was given an option that
            this version of Huey, or of redis-py, does not know; or it is a reliable one with priorities; or this is no
            Huey.
        OptionError: an option cannot work.

    """
    tasks: LockedTasks | None = getattr(huey, _NAME, None)
    if tasks is None:
        tasks = LockedTasks(huey, connection, options or LockOptions.from_env(), pm or pluggy.PluginManager("echomq"))
        tasks.install()
    return tasks.plugin


class LockedTasks:
    """The locks of one Huey instance; see ``lock_tasks``."""

    def __init__(self, huey: Any, connection: object | None, options: LockOptions, pm: pluggy.PluginManager) -> None:
        execute = getattr(huey, "_execute", None)
        if execute is None or list(inspect.signature(execute).parameters) != ["task", "timestamp"]:
            raise HostSetupError(huey, "pass the Huey instance, of Huey 2.5 or 3")
        self._huey = huey
        self._options = options
        self._pm = pm
        self._execute_task = execute
        storage = _storage_of(huey)
        if connection is None:
            if not isinstance(storage, RedisStorage):
                raise HostSetupError(
                    storage,
                    "locks are kept in Redis: use a Redis storage, or write lock_tasks(huey, 'redis://…') "
                    "to keep the locks of another storage's tasks there",
                )
            connection = storage.conn
        elif isinstance(storage, ReliableRedisStorage) and read_settings(connection) != read_settings(storage.conn):
            raise HostSetupError(
                storage, "its tasks and their locks must be in one Redis: leave out the connection of lock_tasks"
            )
        self.queue = percent_encoded(f"huey.{storage.name}")
        self.plugin = attach(pm, connection, self.queue, options)
        self._recovery = TaskRecovery(huey, options.call_limit)
        self._taken = TakenTasks(huey, self.plugin, self.queue)

    def install(self) -> None:
        """Put the locks between Huey and its tasks."""
        huey = self._huey
        setattr(huey, _NAME, self)
        # On the instance, and not by Huey's own hooks: those run before Huey has enqueued a retry, and all that they
        # raise either lets the task run or counts as its end.
        huey._execute = self._execute
        huey.signal(signals.SIGNAL_RETRYING)(self._on_retrying)
        huey.on_startup(name="echomq")(self._boot)
        self._pm.register(self._hooks(), f"echomq-huey:{self.queue}")
        huey.execute = self._taken.execute
        self._taken.watch()

    # -- life of a task ----------------------------------------------------------------------------------------------

    def _execute(self, task: Any, timestamp: Any) -> Any:
        """Run a task under its lock, in the place of Huey's own method. Switches greenlets."""
        if self._huey.immediate:
            return self._execute_task(task, timestamp)
        run = self._start(task)
        if run is None:
            return None
        setattr(task, _RUN, run)
        function = task.execute
        task.execute = lambda: run.execute(function)
        try:
            value = self._execute_task(task, timestamp)
        except RunLost:
            # What Redis says of this job is another run's now, or the sweep's: our entry, if it is there, stays.
            self._taken.leave()
            run.finish("interrupted")
            return None
        except NO_ANSWER:
            # Huey could not write what became of the task: its entry brings it back.
            self._taken.leave()
            run.finish("interrupted")
            raise
        except Exception:
            run.finish("failed")
            raise
        except BaseException:
            self._put_back_interrupted(run)
            raise
        finally:
            del task.execute
        if run.interrupted:
            self._put_back_interrupted(run)
            # Huey 2.5 lets a greenlet go on until its consumer has left: it would begin the same task again.
            raise KeyboardInterrupt
        run.finish(run.outcome())
        return value

    def _start(self, task: Any) -> Run | None:
        """Take the lock; None: the task does not run now, and has been put back. Switches greenlets."""
        payload = self._taken.payload(task)
        try:
            try:
                # A retry that Huey enqueues looks like the delivery that it came from, byte by byte, and keeps its id:
                # no delivery can be told from another, so none is ever dropped.
                lock = self._pm.hook.echomq_job_start(
                    queue=self.queue, job_id=task.id, delivery=None, payload=payload, token=None
                )
                if lock is None:
                    raise AttachError("the library is detached from its plugin manager: no task can be locked")
            except Exception as error:
                self._hold_back(task, error)
                return None
        except BaseException:  # the worker is told to end, perhaps while it holds a task back
            self._taken.put_back(payload)
            raise
        return Run(self.plugin, lock, task, payload)

    def _hold_back(self, task: Any, error: Exception) -> None:
        """Schedule a task that cannot run now; tries until Huey has taken it. Switches greenlets."""
        pause_ms = error.retry_in_ms if isinstance(error, LockHeldError) else self._options.denied_pause_ms
        if not isinstance(error, LockHeldError):
            log_event(logging.WARNING, "start failed", job_id=task.id, error=error)
        later = copy.copy(task)
        while True:
            later.eta = self._huey._get_timestamp() + datetime.timedelta(milliseconds=pause_ms)
            try:
                self._huey.add_schedule(later)
            except Exception as trouble:
                log_event(logging.WARNING, "not put back", job_id=task.id, error=trouble)
            else:
                return
            pause(pause_ms / 1000)

    def _put_back_interrupted(self, run: Run) -> None:
        """Put a task back whose worker was told to end. Switches greenlets."""
        if run.lock.believed and self._taken.put_back(run.payload):
            run.finish("requeued")
        # Else its entry stays, and brings it back once the lock has run out; of a lost run, if it is there.

    def _on_retrying(self, signal: str, task: Any, *_: Any) -> None:
        run = getattr(task, _RUN, None)
        if run is not None:
            run.retrying = True

    def _boot(self) -> None:
        """Begin to renew, and to bring dead workers' tasks back; Huey calls it in each worker."""
        if self._huey.immediate:
            return
        self._taken.watch()  # a new one, where the instance was in immediate mode before
        try:
            self.plugin.start()
        except RedisCallError as error:
            # Huey waits for its Redis too; the first task tries again.
            log_event(logging.WARNING, "not started yet", error=error)

    # -- the library's hooks -----------------------------------------------------------------------------------------

    def _hooks(self) -> HookNamespace:
        def echomq_job_stalled(job: StalledJob) -> bool | None:
            payload = self._payload_of(job)
            if payload is None:
                return None
            self._recovery.put_back(payload)
            return True

        def echomq_job_abandoned(job: StalledJob) -> None:
            payload = self._payload_of(job)
            if payload is not None:
                self._recovery.fail(payload, job)

        marker = hookimpl_for(self._pm)
        return HookNamespace(
            echomq_job_stalled=marker(echomq_job_stalled), echomq_job_abandoned=marker(echomq_job_abandoned)
        )

    def _payload_of(self, job: StalledJob) -> bytes | None:
        return job.payload if job.queue == self.queue and isinstance(job.payload, bytes) else None


def _storage_of(huey: Any) -> Any:
    """Return the storage that the instance has outside of immediate mode, checked. No I/O."""
    storage = huey.storage
    if huey.immediate and isinstance(storage, MemoryStorage) and huey.storage_class is not None:
        storage = huey.get_storage(**huey.storage_kwargs)
    if isinstance(storage, RedisStorage):
        try:
            storage.pool.connection_class(**storage.pool.connection_kwargs)
        except TypeError as error:
            # Huey takes an option that it does not know for one of redis-py, and would fail at the first task.
            raise HostSetupError(
                storage, f"neither this version of Huey nor redis-py knows an option of this storage ({error})"
            ) from error
    if isinstance(storage, ReliableRedisStorage) and storage.priority:
        raise HostSetupError(
            storage,
            "ReliableRedisStorage moves tasks from list to list, and a queue with priorities is none: "
            "take Huey's own priority storage alone",
        )
    return storage

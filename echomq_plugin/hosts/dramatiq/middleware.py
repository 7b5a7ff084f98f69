"""LockMiddleware: Dramatiq's hooks, and what each of them means for a lock."""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any, NoReturn

import pluggy
from dramatiq.middleware import Interrupt, Middleware, SkipMessage

from echomq_plugin.attach import attach, hookimpl_for
from echomq_plugin.entries import EntryData
from echomq_plugin.errors import AttachError, EchoMQError, HostSetupError, LockHeldError, RedisCallError
from echomq_plugin.events import StalledJob
from echomq_plugin.hook_namespace import HookNamespace
from echomq_plugin.hosts.dramatiq.deliveries import Deliveries, SetupRefusedError, deliveries_of, lock_queue
from echomq_plugin.hosts.dramatiq.runs import Run
from echomq_plugin.keys import QueueKeys
from echomq_plugin.log import log_event
from echomq_plugin.native import pause
from echomq_plugin.options import LockOptions, checked_options
from echomq_plugin.plugin import LockPlugin

_POLL_S = 0.05
_STOP_LIMIT_MS = 2_000


class LockMiddleware(Middleware):
    """
    Takes a lock for each message before its actor runs, and gives it back once the broker has let go of the message.

    Add it after all other middleware: ``broker.add_middleware(LockMiddleware())``.

    Args:
        connection: where locks are kept, see ``LockManager``; None: in the Redis of the broker.
        options: durations and limits; None: read from ``ECHOMQ_*``.
        pm: the plugin manager whose hooks are called; None: one of its own. Hooks come from entry points and
            ``ECHOMQ_PLUGINS`` in either case.

    Attributes:
        plugin: the library; None until the broker declares its first queue.

    Raises:
        HostSetupError: when the first actor is declared: the broker is neither Redis nor RabbitMQ, or it is RabbitMQ
            and there is no ``connection``.
        OptionError: an option cannot work.

    """

    def __init__(
        self,
        connection: object | None = None,
        *,
        options: LockOptions | None = None,
        pm: pluggy.PluginManager | None = None,
    ) -> None:
        self._connection = connection
        self._options = LockOptions.from_env() if options is None else checked_options(options)
        self.pm = pm or pluggy.PluginManager("echomq")
        self.plugin: LockPlugin | None = None
        self._deliveries: Deliveries | None = None
        self._runs: dict[int, Run] = {}
        self._workers = 0
        self._stopping = False
        self._watch_ends: threading.Event | None = None

    # -- set-up ------------------------------------------------------------------------------------------------------

    def before_declare_queue(self, broker: Any, queue_name: str) -> None:
        """Refuse a broker that cannot be used, and serve the queue. No I/O."""
        self._serve(broker, queue_name)

    # The same for queues that were declared before this middleware was added.
    after_declare_queue = before_declare_queue

    def after_declare_actor(self, broker: Any, actor: Any) -> None:
        """Wrap the actor's function: it is the one place from which a lost run can end as a skipped one."""
        if isinstance(actor, str):
            actor = broker.get_actor(actor)  # Dramatiq 1 gives the names of actors that were there before
        function = actor.fn

        @functools.wraps(function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            run = self._runs.get(threading.get_ident())
            if run is None or run.entered:
                return function(*args, **kwargs)  # called by hand, not by a worker
            return run.call(lambda: function(*args, **kwargs))

        actor.fn = locked

    def before_worker_boot(self, broker: Any, worker: Any) -> None:
        """Begin to renew, and to bring dead workers' messages back."""
        self._workers += 1
        self._stopping = False
        try:
            for queue_name in sorted(broker.get_declared_queues()):
                self._serve(broker, queue_name)
            if self.plugin is not None:
                self.plugin.start()
        except RedisCallError as error:
            # The broker waits for its Redis too; the first message tries again.
            log_event(logging.WARNING, "not started yet", error=error)
        except EchoMQError as error:
            raise SetupRefusedError(error) from error
        if self._deliveries is not None and self._watch_ends is None:
            self._watch_ends = threading.Event()
            threading.Thread(target=self._deliveries.watch, args=(self._watch_ends,), daemon=True).start()

    def before_worker_shutdown(self, broker: Any, worker: Any) -> None:
        """Hold no message back any longer."""
        self._stopping = True

    def after_worker_shutdown(self, broker: Any, worker: Any) -> None:
        """Stop once the process' last worker has ended; the locks of messages that still run are left to run out."""
        self._workers -= 1
        if self._workers <= 0 and self.plugin is not None:
            if self._watch_ends is not None:
                self._watch_ends.set()
                self._watch_ends = None
            self.plugin.stop(_STOP_LIMIT_MS)

    # -- life of a message -------------------------------------------------------------------------------------------

    def before_process_message(self, broker: Any, message: Any) -> None:
        """
        Take the lock, or see to it that the message does not run now and is not lost. Switches greenlets.

        Raises:
            SkipMessage: do not run it now.
            SetupRefusedError: there are no locks here, see ``LockMiddleware``; Dramatiq counts the message as failed.
                Nothing else is raised: Dramatiq would run the message.

        """
        self._end_last_run("interrupted")
        plugin = self._serve(broker, message.queue_name)
        try:
            deliveries = self._known_deliveries()
            lock = self.pm.hook.echomq_job_start(
                queue=self._lock_queue(message.queue_name),
                job_id=message.message_id,
                delivery=deliveries.name(message),
                payload=deliveries.payload(message),
                token=None,
            )
            if lock is None:
                raise AttachError("the library is detached from its plugin manager: no message can be locked")
        except LockHeldError as held:
            self._hold_back(message, held)
        except (Exception, Interrupt) as error:  # an Interrupt is the time limit of a run that has not begun
            log_event(logging.WARNING, "start failed", job_id=message.message_id, error=error)
            self._hold_back(message, error)
        self._runs[threading.get_ident()] = Run(plugin, lock, message, self._lost)

    def after_process_message(
        self, broker: Any, message: Any, *, result: Any = None, exception: BaseException | None = None
    ) -> None:
        """Note how the run ended."""
        run = self._run_of(message)
        if run is not None and exception is not None:
            run.failed = True

    def before_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
        """Note that the run's own retry is on its way."""
        self._note_retry(message, lost=True)

    def after_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
        """Note that it has arrived."""
        self._note_retry(message, lost=False)

    def _note_retry(self, message: Any, *, lost: bool) -> None:
        run = self._runs.get(threading.get_ident())
        if run is not None and run.lock.job_id == message.message_id:
            run.retry_lost = lost

    def before_ack(self, broker: Any, message: Any) -> None:
        """Leave a message whose retry was not enqueued: its entry brings it back. Dramatiq would let it go."""
        run = self._run_of(message)
        if run is not None and run.retry_lost and self._known_deliveries().leave(message):
            self._end_last_run("interrupted")

    def after_ack(self, broker: Any, message: Any) -> None:
        """Give the lock back: the broker has forgotten the message, and its retry is enqueued."""
        run = self._run_of(message)
        if run is not None:
            self._end_last_run("retry" if run.failed else "completed")

    def after_nack(self, broker: Any, message: Any) -> None:
        """Give the lock back: the message is among the dead letters."""
        if self._run_of(message) is not None:
            self._end_last_run("failed")

    def before_worker_thread_shutdown(self, broker: Any, thread: Any) -> None:
        """Leave nothing behind."""
        self._end_last_run("interrupted")

    def _run_of(self, message: Any) -> Run | None:
        run = self._runs.get(threading.get_ident())
        return run if run is not None and run.message is message else None

    def _end_last_run(self, outcome: Any) -> None:
        # "interrupted" means that Dramatiq could not acknowledge a message: its entry brings it back.
        run = self._runs.pop(threading.get_ident(), None)
        if run is not None:
            run.finish(outcome)

    def _lost(self, run: Run) -> None:
        deliveries = self._known_deliveries()
        run.message.options["store_results"] = False  # a skipped message would get the result None
        try:
            deliveries.give_back(run.message)
        except (Exception, Interrupt) as error:
            # It stays among this worker's unacknowledged messages, and its entry brings it back from there.
            log_event(logging.WARNING, "not given back", job_id=run.lock.job_id, error=error)
            # Now, and not by the acknowledgement that follows: it is of no message, and would end the job.
            run.finish("interrupted")
        else:
            run.finish("requeued")

    def _hold_back(self, message: Any, error: BaseException) -> NoReturn:
        """See to it that a message does not run now. Tries until the broker has taken it, or the worker stops."""
        deliveries = self._known_deliveries()
        pause_ms = error.retry_in_ms if isinstance(error, LockHeldError) else self._options.denied_pause_ms
        while True:
            try:
                if isinstance(error, LockHeldError) and error.same_delivery:
                    deliveries.keep_copy(message)
                else:
                    deliveries.put_back(message, pause_ms)
                break
            except (Exception, Interrupt) as trouble:
                log_event(logging.WARNING, "not put back", job_id=message.message_id, error=trouble)
            if self._wait(pause_ms) and deliveries.leave(message):
                break
        message.options["store_results"] = False  # a skipped message would get the result None
        raise SkipMessage(f"message {message.message_id!r} does not run now: {error}")

    def _wait(self, ms: int) -> bool:
        """Wait; True when the worker is stopping."""
        waited = 0.0
        while waited < ms / 1000 and not self._stopping:
            try:
                pause(_POLL_S)
            except Interrupt:
                pass  # the time limit of a run that has not begun
            waited += _POLL_S
        return self._stopping

    # -- the library's hooks -----------------------------------------------------------------------------------------

    def _serve(self, broker: Any, queue_name: str) -> LockPlugin:
        try:
            return self._attach(broker, queue_name)
        except Exception as error:  # any other error than ours Dramatiq would ignore, and run messages without locks
            raise SetupRefusedError(error) from error

    def _attach(self, broker: Any, queue_name: str) -> LockPlugin:
        if any(isinstance(other, LockMiddleware) and other is not self for other in broker.middleware):
            raise HostSetupError(broker, "it has two LockMiddleware, and each would drop the other's messages: add one")
        if self._deliveries is None:
            deliveries = deliveries_of(broker, self._connection, self._options, self._held)
            self._source = self._connection if self._connection is not None else broker.client
            self._namespace = deliveries.namespace
            self.pm.register(self._hooks(deliveries), f"echomq-dramatiq:{id(broker)}")
            self._deliveries = deliveries
        queue = self._lock_queue(queue_name)
        if self.plugin is None:
            self.plugin = attach(self.pm, self._source, queue, self._options)
        else:
            self.plugin.add_queue(queue)
        return self.plugin

    def _known_deliveries(self) -> Deliveries:
        if self._deliveries is None:
            raise AttachError("the middleware has not met its broker yet")
        return self._deliveries

    def _lock_queue(self, queue_name: str) -> str:
        return lock_queue(self._namespace, queue_name)

    def _held(self, queue_name: str, message_ids: list[str]) -> list[str | None]:
        """Return the delivery of each message that has an entry. Switches greenlets."""
        if self.plugin is None or not message_ids:
            return [None] * len(message_ids)
        keys = QueueKeys(self._options.prefix, self._lock_queue(queue_name))
        found = self.plugin.connections.call("read entries", lambda client: client.hmget(keys.held_data, message_ids))
        return [EntryData.unpack(data).delivery if data else None for data in found]

    def _hooks(self, deliveries: Deliveries) -> HookNamespace:
        def echomq_job_stalled(job: StalledJob) -> bool | None:
            return deliveries.recover(job)

        def echomq_job_abandoned(job: StalledJob) -> None:
            deliveries.abandon(job)

        marker = hookimpl_for(self.pm)
        return HookNamespace(
            echomq_job_stalled=marker(echomq_job_stalled), echomq_job_abandoned=marker(echomq_job_abandoned)
        )

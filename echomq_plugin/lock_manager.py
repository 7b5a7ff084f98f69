"""LockManager: the one renewal greenlet of a worker. It decides when; what is due and what a reply means lies below."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from echomq_plugin.callbacks import Callbacks
from echomq_plugin.clocks import Clock, SystemClock
from echomq_plugin.connections import Connections
from echomq_plugin.errors import OptionError
from echomq_plugin.events import LocksLost, LostLock, Report
from echomq_plugin.keys import DEFAULT_PREFIX, key_part, text_id
from echomq_plugin.native import pause
from echomq_plugin.options import LockOptions, checked_options
from echomq_plugin.process_state import ProcessState, TaskBody
from echomq_plugin.renewal_loop import RenewalLoop
from echomq_plugin.scripts import Scripts
from echomq_plugin.table import LockTable, PendingRelease
from echomq_plugin.tracking import TrackedLocks

_POLL_S = 0.02


class LockManager:
    """
    Keeps the locks of a worker's running jobs alive: one greenlet, one call per tick and queue.

    Locks are taken and given back elsewhere (by the plugin, or by an EchoMQ or BullMQ worker); here they are kept.
    All methods may be called from any greenlet and any native thread.

    Args:
        connection: a ``redis.Redis``, a ``RedisCluster``, a URL, or a callable that returns one of them. Only its
            settings are read: the manager has connections of its own.
        queue: the queue of jobs for which no other is named.
        prefix: the first part of every key.
        lock_duration: life of a lock after a renewal, in ms.
        lock_renew_time: the worst gap between two renewals, in ms; None: half the lock duration. Ticks come at half
            of it.
        on_lock_renewal_failed: called with the list of job ids whose lock is lost, each once.
        on_locks_renewed: called with the list of job ids of each renewed batch.
        on_renewal_error: called with the error of a failed call: ownership is unknown, nothing is lost yet.
        clock: ``now_ms()`` and ``wait(ms)``. A clock of your own runs in the caller's hub, never in the dedicated one.
        dedicated_hub: run on a hub of its own in a native thread, so that a busy app does not starve renewal.
        options: everything at once, instead of single durations.

    Callbacks run on the caller's hub while that turns, else in a native thread, one at a time, with a time limit.

    Raises:
        OptionError, InvalidNameError, ConnectionKindError: an argument cannot work. Nothing is connected yet.

    """

    def __init__(
        self,
        connection: object,
        queue: str,
        prefix: str = DEFAULT_PREFIX,
        *,
        lock_duration: int = 30_000,
        lock_renew_time: int | None = None,
        on_lock_renewal_failed: Callable[[list[str]], object] | None = None,
        on_locks_renewed: Callable[[list[str]], object] | None = None,
        on_renewal_error: Callable[[BaseException], object] | None = None,
        clock: Clock | None = None,
        dedicated_hub: bool = True,
        options: LockOptions | None = None,
        outbox: Callable[[Report], None] | None = None,
        companions: Sequence[TaskBody] = (),
    ) -> None:
        _check_arguments(
            clock,
            options,
            on_lock_renewal_failed=on_lock_renewal_failed,
            on_locks_renewed=on_locks_renewed,
            on_renewal_error=on_renewal_error,
        )
        self.queue = key_part("queue", queue)
        self.options = options or LockOptions(
            prefix=prefix, lock_duration=lock_duration, lock_renew_time=lock_renew_time, dedicated_hub=dedicated_hub
        )
        self.connections = (
            connection
            if isinstance(connection, Connections)
            else Connections(connection, call_limit_ms=self.options.call_limit)
        )
        self.scripts = Scripts(self.connections)
        self._own_clock = clock
        self._clock: Clock = clock or SystemClock()
        self._callbacks = Callbacks(
            on_lock_renewal_failed, on_locks_renewed, on_renewal_error, self.options.hook_limit_ms
        )
        self._outbox = outbox or self._callbacks.post
        self._companions = companions
        self._started = False
        # A child leaves its parent's state here, untouched: closing it would reach into the parent's event loop.
        self._states: dict[int, ProcessState] = {}

    # -- the protocol's surface --------------------------------------------------------------------------------------

    def start(self) -> None:
        """
        Start the renewal greenlet of this process; again: no effect. No I/O.

        A child of a process that had started begins by itself with its first tracked job.
        """
        self._started = True
        state = self._state()
        self.connections.load()
        state.start(
            self._companions,
            self.connections,
            clock_wait=None if self._own_clock is None else self._own_clock.wait,
            dedicated=self.options.dedicated_hub and self._own_clock is None,
            before=self._callbacks.open if self._outbox == self._callbacks.post else None,
        )

    def track_job(self, job_id: object, token: object, queue: str | None = None) -> None:
        """
        Begin to keep the lock of a job alive. The same token again: no effect; another token: the lock is replaced.

        Args:
            job_id: text, an int or ASCII bytes.
            token: likewise.
            queue: another queue than the manager's.

        Raises:
            IdTypeError, InvalidIdError, InvalidNameError: nothing is tracked.

        """
        self.track(self._queue(queue), text_id("job_id", job_id), text_id("token", token))

    def untrack_job(self, job_id: object, queue: str | None = None) -> None:
        """Stop keeping the lock of a job alive; not tracked: no effect. The lock itself is left as it is."""
        name, job = self._queue(queue), text_id("job_id", job_id)
        table = self._state().table
        with table.lock:
            table.tracked.untrack(name, job)

    def get_active_job_count(self) -> int:
        """Return how many jobs are tracked, over all queues."""
        return len(self._state().table.active())

    def get_tracked_job_ids(self) -> list[str]:
        """Return the ids of all tracked jobs, over all queues, oldest first."""
        return self._state().table.active()

    def is_tracked(self, job_id: object, queue: str | None = None) -> bool:
        """Tell whether a job is tracked."""
        name, job = self._queue(queue), text_id("job_id", job_id)
        table = self._state().table
        with table.lock:
            lock = table.tracked.get(name, job)
            return lock is not None and not lock.ended

    def stop(self, timeout_ms: int = 0) -> bool:
        """
        Stop renewing. Locks that are still tracked are left as they are, and run out by themselves.

        Args:
            timeout_ms: how long to go on renewing while jobs are tracked, in ms.

        Returns:
            whether every job had ended and every release was answered.

        """
        idle = self.wait_until_idle(timeout_ms)
        self._started = False
        self._state().stop()  # switches greenlets
        self._callbacks.close()
        return idle

    # -- for the plugin ----------------------------------------------------------------------------------------------

    def track(
        self,
        queue: str,
        job_id: str,
        token: str,
        *,
        renewed_at: int | None = None,
        renew_now: bool = False,
        entry: bytes | None = None,
        just_taken: bool = False,
    ) -> None:
        """
        Track a lock of which more is known; see ``TrackedLocks.track``. The arguments are checked already.

        With ``just_taken`` the server has this moment given us the lock: an older one of the same job, which another
        run in this process still believes to hold, is lost and reported.
        """
        state = self._state()
        if self._started and state.hub is None:
            self.start()
        lost: list[tuple[str, LostLock]] = []
        with state.table.lock:
            older = state.table.tracked.get(queue, job_id) if just_taken else None
            if older is not None and older.token != token:
                lost = state.table.tracked.lose([(older, "taken")], self._clock.now_ms())
            state.table.tracked.track(
                queue,
                job_id,
                token,
                now=self._clock.now_ms(),
                renewed_at=renewed_at,
                renew_now=renew_now,
                entry=entry,
            )
        if lost:
            self._outbox(LocksLost(queue, tuple(report for _, report in lost)))
        if renew_now:
            state.loop.ask()
            state.wake()

    def untrack(self, queue: str, job_id: str, token: str) -> bool:
        """Stop renewing this very lock, whatever else its job has now; False when it was not tracked."""
        table = self._state().table
        with table.lock:
            return table.tracked.untrack(queue, job_id, token) is not None

    def mark_ended(self, queue: str, job_id: str, token: str, *, entry_stays: bool) -> None:
        """Report no loss of this lock from now on: its job has ended, and its release is under way."""
        self._state().table.mark_ended(queue, job_id, token, entry_stays=entry_stays)

    def release_later(self, release: PendingRelease) -> None:
        """Repeat a release until it is answered, and renew its lock until then if it is tracked."""
        state = self._state()
        if self._started and state.hub is None:
            self.start()
        state.table.add_release(release)
        state.wake()

    def believes(self, queue: str, job_id: str, token: str) -> bool:
        """Tell, without I/O, whether this very lock is tracked and may still be trusted."""
        table = self._state().table
        now = self._clock.now_ms()
        with table.lock:
            return table.tracked.believes(queue, job_id, token, now)

    def now_ms(self) -> int:
        """Return the time by the manager's clock, in ms."""
        return self._clock.now_ms()

    def wait_until_idle(self, timeout_ms: int | None) -> bool:
        """Wait until nothing is tracked and no release waits, None: without limit; True when so. Switches greenlets."""
        table = self._state().table
        until = None if timeout_ms is None else SystemClock().now_ms() + timeout_ms
        while not table.is_idle():
            if until is not None and SystemClock().now_ms() >= until:
                return False
            pause(_POLL_S)
        return True

    # -- the process -------------------------------------------------------------------------------------------------

    def _state(self) -> ProcessState:
        # The pid is compared before any lock is touched: a child can inherit a lock that nobody will ever release.
        pid = os.getpid()
        state = self._states.get(pid)
        if state is None:
            state = self._states.setdefault(pid, self._new_state())
        return state

    def _new_state(self) -> ProcessState:
        options = self.options
        table = LockTable(
            TrackedLocks(
                lock_duration=options.lock_duration,
                threshold=options.interval,
                max_hold_ms=options.max_hold_ms,
                hold_grace_ms=options.hold_grace,
            )
        )
        loop = RenewalLoop(
            table,
            self.scripts,
            options,
            queue=self.queue,
            clock=self._clock,
            # A clock of one's own keeps the protocol's numbers.
            spare_ms=1 if self._own_clock is None else 0,
            outbox=self._outbox,
        )
        return ProcessState(table, loop)

    def _queue(self, queue: str | None) -> str:
        return self.queue if queue is None else key_part("queue", queue)


def _check_arguments(clock: object, options: object, **callbacks: object) -> None:
    # What is no function would be found out when the first lock is lost.
    for name, callback in callbacks.items():
        if callback is not None and not callable(callback):
            raise OptionError(name, callback, "must be a function, or None")
    if clock is not None and not isinstance(clock, Clock):
        raise OptionError("clock", clock, "must have now_ms() and wait(ms)")
    if options is not None:
        checked_options(options)

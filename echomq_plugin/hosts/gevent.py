"""
A bare gevent host: a reliable consumer of a Redis list, with a greenlet and a lock for each job.

::

    plugin = attach(pm, connection="redis://localhost", queue="mail")
    Consumer(plugin, "mail", send, concurrency=100).run()        # producers: LPUSH mail <item>

At least once: an item leaves Redis only after its handler has ended, and an interrupted run is run again. Never two at
once: items with the same job id wait for each other.

Where items are: ``mail`` (waiting), ``mail:processing`` (taken), ``mail:failed`` (their handler raised, or their worker
died too often). Taken items go back

- to be taken next, where their run was interrupted, or could not begin because Redis did not answer;
- behind all that waits, after a pause, where another run of the same job is still going on: so they come up again soon
  enough, and hold up nobody. For a list nobody can tell the same delivery from another, so none is ever dropped.
"""

from __future__ import annotations

import hashlib
import logging
import random
import signal
from collections.abc import Callable, Sequence
from typing import Any

import gevent
from gevent.event import Event
from gevent.lock import Semaphore

from echomq_plugin.errors import (
    AttachError,
    LockHeldError,
    OptionError,
    RedisCallError,
    StartUndecidedError,
)
from echomq_plugin.hosts.list_hooks import list_hooks
from echomq_plugin.hosts.list_job import Handler, ListJob, current_lock
from echomq_plugin.hosts.orphans import OrphanWatch
from echomq_plugin.hosts.outage import Outage
from echomq_plugin.hosts.parking import Parking
from echomq_plugin.hosts.reliable_list import ReliableList
from echomq_plugin.hosts.signals import handled_signals
from echomq_plugin.keys import QueueKeys, key_part, text_id
from echomq_plugin.locks import Lock
from echomq_plugin.log import log_event
from echomq_plugin.plugin import LockPlugin
from echomq_plugin.scripts import Scripts

__all__ = ["Consumer", "current_lock"]


def sha1_of(item: bytes) -> str:
    """Return the default job id: items with the same bytes are the same job."""
    return hashlib.sha1(item, usedforsecurity=False).hexdigest()


class Consumer:
    """
    Takes items from a Redis list and runs each in a greenlet, under a lock.

    Args:
        plugin: what ``attach`` returned. It is started by ``run``; stop it yourself once the consumer has ended.
        list_key: the list; producers push on its left end.
        handler: called with an item, as bytes. When it returns, the item is done; when it raises, the item goes to
            ``<list_key>:failed``. ``current_lock()`` gives it its lock.
        concurrency: how many handlers run at once.
        job_id: gives the job id of an item: text, an int or ASCII bytes. By default the SHA-1 of the item, so put
            something of its own into each item, or equal ones wait for each other. An item for which it raises goes to
            the failed ones.
        queue: the queue of the locks; by default the first one of the plugin. One queue for each list.
        shutdown_timeout_ms: how long a warm shutdown waits for the running jobs, in ms; None: for the last one.

    Raises:
        OptionError, InvalidNameError: an argument cannot work.
        AttachError: this list already has a consumer at the same plugin manager.

    """

    def __init__(
        self,
        plugin: LockPlugin,
        list_key: str,
        handler: Handler,
        *,
        concurrency: int = 100,
        job_id: Callable[[bytes], object] | None = None,
        queue: str | None = None,
        shutdown_timeout_ms: int | None = None,
    ) -> None:
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise OptionError("concurrency", concurrency, "must be a whole number, 1 or more")
        if not callable(handler):
            raise OptionError("handler", handler, "must be callable with one item")
        self.plugin = plugin
        self.queue = plugin.manager.queue if queue is None else key_part("queue", queue)
        self._keys = QueueKeys(plugin.options.prefix, self.queue)
        self._items = ReliableList(plugin.connections, list_key)
        self._handler = handler
        self._job_id = job_id or sha1_of
        self._shutdown_timeout_ms = shutdown_timeout_ms
        self._slots = Semaphore(concurrency)
        self._stopping = Event()
        self._forced = Event()
        self._outage = Outage(list_key)
        self._parking = Parking(self._outage, self._stopping, self._forced)
        self._failed_takes = 0
        self._starting: bytes | None = None
        self._running: dict[gevent.Greenlet[..., None], ListJob] = {}
        self._name = f"echomq-list:{list_key}"
        plugin.add_queue(self.queue)
        try:
            plugin.pm.register(list_hooks(plugin.pm, self._items, self.queue), self._name)
        except ValueError as error:
            raise AttachError(f"list {list_key!r} has a consumer at this plugin manager: close() it first") from error

    # -- life of the consumer ----------------------------------------------------------------------------------------

    def run(self, signals: Sequence[int] = (signal.SIGTERM, signal.SIGINT)) -> bool:
        """
        Consume until told to stop. Switches greenlets.

        The first signal begins a warm shutdown: nothing new is taken, and locks are renewed until the last job ends.
        The second one, or the end of ``shutdown_timeout_ms``, forces it: handlers get GreenletExit and items go back.

        Args:
            signals: which signals stop it; none where the app handles signals itself and calls ``stop``. Not handled
                outside of the main thread.

        Returns:
            whether every job had ended. A job whose handler goes on in spite of GreenletExit keeps its lock.

        Raises:
            RedisCallError, AttachError: the plugin could not be started; nothing was taken.
            ServerUnsuitableError: likewise; or this user may not take items, and what ran has been put back.

        """
        gevent.get_hub()
        try:
            self._items.check(self._keys)
            self.plugin.start()
            return self._run(signals)
        finally:
            self.close()

    def _run(self, signals: Sequence[int]) -> bool:
        watch = gevent.spawn(self._watch_orphans)
        try:
            with handled_signals(signals, self._on_signal):
                try:
                    self._serve()
                except BaseException:
                    self.stop(force=True)
                    raise
                finally:
                    self.stop()
                    ended = self._drain()
        finally:
            watch.kill(block=False)
        return ended

    def stop(self, *, force: bool = False) -> None:
        """
        Tell ``run`` to end. From any greenlet of its hub; returns at once.

        Args:
            force: do not wait for jobs: put them back.

        """
        if not self._stopping.is_set():
            self._stopping.set()
            self._log(logging.INFO, "shutdown begins", running=len(self._running))
        if force and not self._forced.is_set():
            self._forced.set()
            self._log(logging.INFO, "shutdown is forced", running=len(self._running))
        # `run` may be waiting for a free slot.
        self._slots.release()

    def close(self) -> None:
        """Take the consumer's hooks out of the plugin manager; ``run`` does so at its end."""
        if self.plugin.pm.has_plugin(self._name):
            self.plugin.pm.unregister(name=self._name)

    def _on_signal(self) -> None:
        self.stop(force=self._stopping.is_set())

    def _drain(self) -> bool:
        """Wait for all jobs, and end them by force once told to. Switches greenlets."""
        greenlets = [*self._running, *self._parking.greenlets()]
        everything: Any = gevent.spawn(gevent.joinall, greenlets)
        limit_ms = self._shutdown_timeout_ms
        gevent.wait([everything, self._forced], timeout=None if limit_ms is None else limit_ms / 1000, count=1)
        if not everything.ready():
            self.stop(force=True)
            for job in list(self._running.values()):
                job.kill()
            # Each may still confirm, write and release.
            everything.join((3 * self.plugin.options.call_limit + 1_000) / 1000)
            everything.kill(block=False)
        return not self._running

    # -- taking ------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            # The slot first: what is taken can start at once.
            self._slots.acquire()
            if self._stopping.is_set():
                return
            self._starting = item = self._take()
            if item is None or not self._start(item):
                self._slots.release()
            self._starting = None

    def _take(self) -> bytes | None:
        try:
            item = self._items.take()
        except RedisCallError as error:
            # An item whose reply was lost is in the processing list: the orphan watch finds it.
            self._outage.pause(error, self._failed_takes, self._stopping)
            self._failed_takes += 1
            return None
        self._failed_takes = 0
        self._outage.over()
        return item

    def _start(self, item: bytes) -> bool:
        """Take the lock and start the item's greenlet; False: its slot is free again. Switches greenlets."""
        pause_ms = self.plugin.options.denied_pause_ms
        try:
            job_id = text_id("job_id", self._job_id(item))
        except Exception as error:  # a user's function may raise anything
            self._log(logging.ERROR, "item without job id", trace=error)
            self._parking.park(item, 0, lambda: self._items.fail(item))
            return False
        try:
            lock: Lock | None = self.plugin.pm.hook.echomq_job_start(
                queue=self.queue, job_id=job_id, delivery=None, payload=item, token=None
            )
            if lock is None:
                raise AttachError("the library is detached from this plugin manager: no job can be locked")
        except LockHeldError as held:
            self._parking.park(item, held.retry_in_ms, lambda: self._items.put_back(item, run_next=False))
            return False
        except Exception as error:  # no lock, no run: whatever went wrong
            if isinstance(error, StartUndecidedError):
                self._outage.failed(error.__cause__ if isinstance(error.__cause__, Exception) else error)
            else:
                self._log(logging.ERROR, "start failed", job_id=job_id, trace=error)
            self._parking.park(item, pause_ms, lambda: self._items.put_back(item, run_next=True))
            return False
        job = ListJob(
            item,
            lock,
            self._handler,
            plugin=self.plugin,
            items=self._items,
            outage=self._outage,
            forced=self._forced,
        )
        greenlet = gevent.spawn(job.run)
        self._running[greenlet] = job
        greenlet.rawlink(self._ended)
        return True

    def _ended(self, greenlet: Any) -> None:
        # A link, because it runs whatever ends the greenlet, and even if it never began.
        del self._running[greenlet]
        self._slots.release()

    # -- what workers left behind ------------------------------------------------------------------------------------

    def _watch_orphans(self) -> None:
        watch = OrphanWatch(self._items, Scripts(self.plugin.connections), self._keys, self._identify)
        pause_s = self.plugin.options.stalled_interval / 2 / 1000
        while not self._stopping.wait(pause_s * random.uniform(0.9, 1.1)):
            try:
                moved = watch.look(self._in_hand)
            except RedisCallError as error:
                self._outage.failed(error)
                continue
            if moved:
                self._log(logging.WARNING, "orphans put back", count=moved)

    def _in_hand(self) -> frozenset[bytes]:
        starting = () if self._starting is None else (self._starting,)
        return frozenset([*starting, *(job.item for job in self._running.values()), *self._parking.items()])

    def _identify(self, item: bytes) -> str:
        try:
            return text_id("job_id", self._job_id(item))
        except Exception:
            return sha1_of(item)  # no job has it, so the item goes back, and from there to the failed ones

    def _log(self, level: int, event: str, *, trace: BaseException | None = None, **data: object) -> None:
        log_event(level, event, trace=trace, queue=self.queue, list_key=self._items.key, **data)

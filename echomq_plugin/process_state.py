"""ProcessState: what a lock manager has in one process, and the life of the greenlets that work for it there."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence

from echomq_plugin.connections import Connections
from echomq_plugin.hubs import CallersHub, DedicatedHub, HubRunner, Task
from echomq_plugin.renewal_loop import RenewalLoop
from echomq_plugin.table import LockTable

TaskBody = Callable[[Task], None]


class ProcessState:
    """
    All that belongs to one process: after a fork the child makes its own and leaves its parent's alone.

    Attributes:
        table: the tracked locks, and the releases that wait.
        loop: the body of the renewal greenlet.
        hub: where the greenlets run; None: nothing has been started, or it was stopped.

    """

    def __init__(self, table: LockTable, loop: RenewalLoop) -> None:
        self.table = table
        self.loop = loop
        self.hub: HubRunner | None = None
        self._renewal_task: Task | None = None

    def start(
        self,
        companions: Sequence[TaskBody],
        connections: Connections,
        *,
        clock_wait: Callable[[int], None] | None,
        dedicated: bool,
        before: Callable[[], object] | None,
    ) -> None:
        """
        Start the renewal greenlet and its companions on one hub; again: no effect. Any greenlet may call it.

        Args:
            companions: what runs beside it.
            connections: of which this thread's are given up at the end.
            clock_wait: waits for so many ms, by a clock of the caller's own.
            dedicated: on a hub of its own in a native thread, else on the caller's.
            before: called once it is certain that they start.

        """
        with self.table.lock:
            if self.hub is not None:
                return
            bodies: list[TaskBody] = [self.loop.run, *companions]
            tasks = [Task(body, clock_wait) for body in bodies]
            self._renewal_task = tasks[0]
            # On the app's hub other greenlets use the same connections, and may be in the middle of their calls.
            hub: HubRunner = (
                DedicatedHub(tasks, connections.close_thread) if dedicated else CallersHub(tasks, connections.drop_idle)
            )
            self.hub = hub
        if before is not None:
            before()
        try:
            hub.start()
        except BaseException:
            self.hub = None
            raise
        atexit.register(hub.stop_at_exit)

    def stop(self) -> None:
        """End the greenlets; not started: no effect. Switches greenlets."""
        hub, self.hub = self.hub, None
        # A stop that is interrupted, or gives up, leaves it to the interpreter's exit to wait for the thread.
        if hub is not None and hub.stop():
            atexit.unregister(hub.stop_at_exit)

    def wake(self) -> None:
        """Have the renewal greenlet look again at what there is to do."""
        if self._renewal_task is not None:
            self._renewal_task.wake()

"""Signals handled through the hub, and only while a consumer runs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import gevent


@contextmanager
def handled_signals(signals: Sequence[int], handler: Callable[[], None]) -> Iterator[None]:
    """
    Handle signals in greenlets of this hub, and have them handled as before afterwards.

    Args:
        signals: which; elsewhere than on the main thread's hub, which alone gets signals, none.
        handler: called once for each signal.

    """
    if not gevent.get_hub().loop.default:
        signals = ()
    before = {number: signal.getsignal(number) for number in signals}
    watchers = [gevent.signal_handler(number, handler) for number in signals]
    try:
        yield
    finally:
        for watcher in watchers:
            watcher.cancel()
        for number, action in before.items():
            # The loop has put back the system's default, and not what Python had there.
            signal.signal(number, action)

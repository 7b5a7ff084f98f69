"""Boots: what starts a process' part once, however many first jobs come at the same moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from echomq_plugin.native import pause

_POLL_S: Final = 0.005


class _Attempt:
    """One try: over once ``done``; without a verdict where whoever made it was killed in the middle."""

    def __init__(self) -> None:
        self.done = False
        self.decided = False
        self.error: Exception | None = None


class Boots:
    """One boot at a time for each process; who comes meanwhile waits, and shares its success or its error."""

    def __init__(self) -> None:
        self._attempts: dict[int, _Attempt] = {}

    def run(self, boot: Callable[[], None]) -> None:
        """
        Run ``boot``, or wait for the run that is under way. Switches greenlets.

        Raises:
            Exception: what the boot raised, to all that waited for it.

        """
        pid = os.getpid()
        while True:
            mine = _Attempt()
            attempt = self._attempts.setdefault(pid, mine)  # one step: no other thread comes between
            if attempt is mine:
                return self._make(pid, mine, boot)
            while not attempt.done:
                pause(_POLL_S)
            if attempt.decided:
                if attempt.error is not None:
                    raise attempt.error
                return None

    def _make(self, pid: int, attempt: _Attempt, boot: Callable[[], None]) -> None:
        try:
            boot()
            attempt.decided = True
        except Exception as error:
            attempt.error, attempt.decided = error, True
            raise
        finally:
            # The next call begins anew; those that wait have this attempt in hand.
            del self._attempts[pid]
            attempt.done = True

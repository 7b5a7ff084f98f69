"""Outage: what a consumer does while Redis does not answer. It says so once, pauses, and tries again."""

from __future__ import annotations

import logging
import random
from typing import Final

from gevent.event import Event

from echomq_plugin.log import log_event

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0


class Outage:
    """
    The state of one consumer's connection to Redis, as its calls find it.

    Args:
        list_key: the consumer's list, for the log.

    """

    def __init__(self, list_key: str) -> None:
        self._list_key = list_key
        self._noticed = False

    def failed(self, error: Exception) -> None:
        """Take in a call that failed; the first one of an outage is logged."""
        if not self._noticed:
            self._noticed = True
            log_event(logging.WARNING, "redis unreachable", list_key=self._list_key, error=error)

    def over(self) -> None:
        """Take in a call that was answered."""
        if self._noticed:
            self._noticed = False
            log_event(logging.INFO, "redis answers again", list_key=self._list_key)

    def pause(self, error: Exception, attempt: int, until: Event) -> bool:
        """
        Take in a failed call and wait before it is tried again, longer each time. Switches greenlets.

        Args:
            error: why it failed.
            attempt: how many tries have failed before this one.
            until: ends the pause.

        Returns:
            whether to try again: False once ``until`` is set.

        """
        self.failed(error)
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(attempt, 10))
        return not until.wait(longest * random.uniform(0.5, 1.0))

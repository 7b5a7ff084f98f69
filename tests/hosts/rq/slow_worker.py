"""A GeventWorker whose greenlets go on for a while once their lock is given back."""

from __future__ import annotations

import time
from typing import Any

from echomq_plugin.hosts.rq.gevent_worker import GeventWorker


class SlowToEnd(GeventWorker):
    def _finish(self, *args: Any) -> None:
        super()._finish(*args)
        time.sleep(1)

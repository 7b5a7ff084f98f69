"""Patching for GeventWorker: ``python -m gevent.monkey`` does it first of all, ``rq worker -w`` alone only here."""

from __future__ import annotations

import warnings
from typing import Final

from gevent import monkey

SAY: Final = (
    "monkey-patched late, when RQ and redis-py were imported already: "
    "start with `python -m gevent.monkey $(which rq) worker -w …` to patch before everything else"
)


def patch_if_needed() -> bool:
    """Patch the standard library unless that is done; return whether it was done late, here."""
    if monkey.is_module_patched("socket") and monkey.is_module_patched("time"):
        return False
    with warnings.catch_warnings():
        # It says that ssl was imported before; the worker says it in its log, with what to do instead.
        warnings.simplefilter("ignore", monkey.MonkeyPatchWarning)
        monkey.patch_all()
    return True

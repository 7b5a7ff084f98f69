"""Which versions of RQ the adapter was written for, checked before anything of RQ is touched."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from echomq_plugin.errors import HostVersionError, MissingExtraError

OLDEST = (2, 0)
FIRST_UNKNOWN = (4, 0)


def check_version() -> None:
    """
    Check that RQ is installed and that its version is in range.

    Raises:
        MissingExtraError: RQ is not installed.
        HostVersionError: its version is out of range.

    """
    try:
        found = version("rq")
    except PackageNotFoundError as error:
        raise MissingExtraError("rq", "echomq_plugin.hosts.rq") from error
    if not OLDEST <= numbers(found) < FIRST_UNKNOWN:
        raise HostVersionError("rq", found, "2.0 up to, not including, 4.0")


def numbers(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version."""
    major, minor = re.findall(r"\d+", text + ".0")[:2]
    return int(major), int(minor)

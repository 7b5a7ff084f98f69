"""The command ``echomq-plugin``; its commands need the extra ``cli``."""

from __future__ import annotations

import sys

from echomq_plugin.errors import MissingExtraError


def main() -> None:
    """Run the command line. A missing extra is said in one line, without a traceback."""
    try:
        try:
            import rich  # noqa: F401  # found missing here, and not in the middle of a command

            from echomq_plugin.cli.commands import commands
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in ("click", "rich"):
                raise
            raise MissingExtraError("cli", "the command echomq-plugin") from error
        commands(prog_name="echomq-plugin")
    except MissingExtraError as error:
        sys.exit(f"error: {error}")

"""The commands, as click sees them."""

from __future__ import annotations

import sys

import click

from echomq_plugin.errors import ConnectionKindError, InvalidNameError, OptionError


@click.group(help="Keep every lock of a worker alive with one greenlet and one call to Redis.")
@click.version_option(package_name="echomq-plugin")
def commands() -> None:
    """Group the commands."""


@commands.command(short_help="Run 400 jobs through deleted locks, a killed worker and a blocked hub.")
@click.option("--redis-url", help="A server of yours; by default one is started for this. What is written is removed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object as the last line.")
def demo(redis_url: str | None, as_json: bool) -> None:
    """
    Run 400 jobs in two worker processes with 100 greenlets each.

    Meanwhile one lock is deleted by hand, one worker is killed, and the hub of the other is blocked for longer than a
    lock lives. Exits with 0 only if every job completed and no two runs of one job overlapped.
    """
    from echomq_plugin.cli.demo import run_demo

    try:
        sys.exit(run_demo(redis_url, as_json=as_json))
    except ConnectionKindError as error:
        raise click.BadParameter(str(error), param_hint="--redis-url") from error


@commands.command(short_help="See whether a server can serve workers: what their start would check.")
@click.option("--redis-url", default="redis://localhost:6379", show_default=True, help="The workers' server.")
@click.option("--cluster", is_flag=True, help="The server is a node of a Redis Cluster.")
@click.option("--queue", default="mail", show_default=True, help="A queue of theirs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(redis_url: str, queue: str, *, cluster: bool, as_json: bool) -> None:
    """
    Check a server's version, scripts, permissions, eviction policy and round trip, and the queue's hash tag.

    Reads ECHOMQ_PREFIX, ECHOMQ_LOCK_DURATION and the other options from the environment, as workers do. Exits with 0
    if workers may start (there may be warnings), with 1 if their start would be refused, and says what to do.
    """
    from echomq_plugin.cli.check import run_check
    from echomq_plugin.options import LockOptions

    try:
        sys.exit(run_check(redis_url, queue, LockOptions.from_env(), cluster=cluster, as_json=as_json))
    except ConnectionKindError as error:
        raise click.BadParameter(str(error), param_hint="--redis-url") from error
    except (InvalidNameError, OptionError) as error:
        raise click.UsageError(str(error)) from error

"""What ``echomq-plugin check`` does: the checks that a worker's start makes, before there is any worker."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from echomq_plugin.connections import Connections
from echomq_plugin.errors import RedisCallError, ServerUnsuitableError
from echomq_plugin.keys import QueueKeys, key_part
from echomq_plugin.options import LockOptions
from echomq_plugin.server_check import PERMISSIONS, ServerReport, check_server
from echomq_plugin.server_settings import as_cluster


def run_check(redis_url: str, queue: str, options: LockOptions, *, cluster: bool, as_json: bool) -> int:
    """
    Check a server, print what was found, and return the exit code: 0 when workers may start, else 1.

    Args:
        redis_url: the server; of a cluster, any node.
        queue: a queue of the workers'.
        options: theirs.
        cluster: the server is a node of a cluster.
        as_json: print one JSON object.

    Raises:
        InvalidNameError, ConnectionKindError: the queue or the URL cannot be used.

    """
    keys = QueueKeys(options.prefix, key_part("queue", queue))
    connections = Connections(redis_url, call_limit_ms=options.call_limit)
    if cluster:
        # Not by the driver's own cluster client: its calls have no limit, and it expects a cluster to answer.
        connections.server = as_cluster(connections.server)
    report, error = None, None
    try:
        report = check_server(connections, [keys])
        report = replace(report, warnings=report.warnings + options.warnings)
    except (RedisCallError, ServerUnsuitableError) as caught:
        error = str(caught)
    if as_json:
        print(json.dumps({"fit": error is None, "error": error, **(asdict(report) if report else {})}))
    else:
        print(f"error: {error}" if report is None else _in_words(report, options))
    return 0 if error is None else 1


def _in_words(report: ServerReport, options: LockOptions) -> str:
    limits = f"a call may take {options.call_limit} ms, a lock lives for {options.lock_duration} ms"
    return "\n".join(
        [
            f"{report.kind or 'a server that does not say what it is'} {report.version}".strip(),
            f"round trip: {report.round_trip_ms:.1f} ms ({limits})",
            "scripts and permissions: all that is needed",
            f"to grant to a user of their own: {PERMISSIONS.replace('<prefix>', options.prefix)}",
            *(f"warning: {warning}" for warning in report.warnings),
        ]
    )

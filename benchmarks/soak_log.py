"""What the logs of the soak's workers say: who believed what when, what was lost, and what was invented."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

NEVER = 10**15


class Overlap(NamedTuple):
    """Two runs of one job that were believed in at once, from when until when (ms)."""

    job_id: str
    begin: int
    end: int


class Forgotten(NamedTuple):
    """The server forgot one lock, or everything."""

    at: int
    job_id: str | None = None
    token: str | None = None


@dataclass
class Seen:
    """Sums over all logs; ``ended`` tells until when each token was believed in."""

    runs: int = 0
    put_back: int = 0
    invented: int = 0
    unchecked: int = 0
    repeated: int = 0
    losses: Counter[str] = field(default_factory=Counter)
    overlaps: list[Overlap] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    reported: Counter[str] = field(default_factory=Counter)


def read_logs(logs: list[Path], died: dict[Path, int], lock_duration: int) -> Seen:
    """
    Read the logs of all workers.

    Args:
        logs: one for each process.
        died: when a process was killed, in ms: it believes nothing any more.
        lock_duration: in ms.

    """
    seen = Seen()
    beliefs: dict[str, list[tuple[int, int]]] = defaultdict(list)
    to_check: set[str] = set()
    for log in logs:
        begun: dict[str, tuple[str, int]] = {}
        ended: dict[str, int] = {}
        trusted: dict[str, int] = {}
        for line in log.read_text().splitlines() if log.exists() else ():
            at, kind, job_id, *rest = line.split()
            if kind == "begin":
                begun[rest[0]] = (job_id, int(at))
                trusted[rest[0]] = int(at) + lock_duration
            elif kind == "lost":
                seen.losses[rest[1]] += 1
                seen.reported[rest[0]] += 1
                ended.setdefault(rest[0], int(rest[2]))
                if rest[1] == "expired":
                    seen.invented += int(at) < trusted.get(rest[0], 0)
                elif int(at) < trusted.get(rest[0], NEVER):  # else its time was over anyway
                    to_check.add(rest[0])
            elif kind == "end":
                ended.setdefault(rest[0], int(at))
            elif kind == "renewed":
                trusted[rest[0]] = int(rest[1]) + lock_duration
            elif kind == "back":
                seen.put_back += 1
            elif kind == "invented":
                seen.invented += 1
                to_check.discard(rest[0])
            elif kind == "checked":
                to_check.discard(rest[0])
        seen.runs += len(begun)
        for token, (job_id, at) in begun.items():
            until = min(ended.get(token, died.get(log, NEVER)), trusted[token])
            seen.ended[token] = until
            beliefs[job_id].append((at, until))
    seen.unchecked = len(to_check)
    seen.repeated = sum(times - 1 for times in seen.reported.values())
    for job_id, runs in beliefs.items():
        runs.sort()
        latest_end = 0
        for begin, end in runs:
            if begin < latest_end:
                seen.overlaps.append(Overlap(job_id, begin, min(end, latest_end)))
            latest_end = max(latest_end, end)
    return seen


def known_by(forgotten_at: int, troubles: Sequence[tuple[int, int]], bound: int) -> int:
    """Tell by when every worker knows: ``bound`` ms in which no trouble kept it from the server."""
    until = forgotten_at + bound
    for began, ended in sorted(troubles):
        if began < until and ended > forgotten_at:
            until = max(until, ended + bound)
    return until


def excused(overlap: Overlap, forgotten: Sequence[Forgotten], troubles: Sequence[tuple[int, int]], bound: int) -> bool:
    """Tell whether a double belief is one that is promised for a server that forgot: begun since, and ended in time."""
    return any(
        lost.at <= overlap.begin and overlap.end <= known_by(lost.at, troubles, bound)
        for lost in forgotten
        if lost.job_id in (None, overlap.job_id)
    )


def unreported(
    seen: Seen, forgotten: Sequence[Forgotten], troubles: Sequence[tuple[int, int]], bound: int
) -> list[str]:
    """Return the tokens of single locks that were deleted, believed in for longer than promised, and never reported."""
    return [
        lost.token
        for lost in forgotten
        if lost.token is not None
        and lost.token not in seen.reported
        and seen.ended.get(lost.token, 0) > known_by(lost.at, troubles, bound)
    ]

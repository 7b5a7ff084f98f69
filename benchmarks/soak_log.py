"""What the logs of the soak's workers say: who believed what when, what was lost, and what was invented."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Seen:
    """Sums over all logs; ``overlaps`` are the times at which a second belief in one job began."""

    runs: int = 0
    put_back: int = 0
    invented: int = 0
    losses: Counter[str] = field(default_factory=Counter)
    overlaps: list[int] = field(default_factory=list)


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
    for log in logs:
        begun: dict[str, tuple[str, int]] = {}
        ended: dict[str, int] = {}
        trusted: dict[str, int] = {}
        for line in log.read_text().splitlines() if log.exists() else ():
            at, kind, job_id, *rest = line.split()
            if kind == "begin":
                begun[rest[0]] = (job_id, int(at))
            elif kind == "lost":
                seen.losses[rest[1]] += 1
                ended.setdefault(rest[0], int(rest[2]))
            elif kind == "end":
                ended.setdefault(rest[0], int(at))
            elif kind == "renewed":
                trusted[rest[0]] = int(rest[1]) + lock_duration
            elif kind == "back":
                seen.put_back += 1
            elif kind == "invented":
                seen.invented += 1
        seen.runs += len(begun)
        for token, (job_id, at) in begun.items():
            believed_until = min(ended.get(token, died.get(log, 10**15)), trusted.get(token, at + lock_duration))
            beliefs[job_id].append((at, believed_until))
    for runs in beliefs.values():
        runs.sort()
        latest_end = 0
        for begin, end in runs:
            if begin < latest_end:
                seen.overlaps.append(begin)
            latest_end = max(latest_end, end)
    return seen

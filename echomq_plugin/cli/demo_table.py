"""What the demo shows: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from echomq_plugin.cli.demo_plan import DemoPlan
from echomq_plugin.cli.demo_runs import RunBook
from echomq_plugin.cli.demo_watch import Sight

_EVENTS_SHOWN: Final = 10


class View(Protocol):
    """Shows a demo."""

    def event(self, text: str) -> None:
        """Say what has just happened."""
        ...

    def show(self, sight: Sight, live: Collection[int], book: RunBook) -> None:
        """Show how things stand."""
        ...

    def end(self, summary: Mapping[str, int | float]) -> None:
        """Show what became of it."""
        ...


@contextmanager
def view_for(plan: DemoPlan, *, to_stderr: bool) -> Iterator[View]:
    """Yield the view that suits the place where it is shown."""
    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal:
        yield LineView(console)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield TableView(plan, live)


class _Clocked:
    def __init__(self) -> None:
        self._began = time.monotonic()

    def _stamped(self, text: str) -> str:
        return f"{time.monotonic() - self._began:5.1f} s  {text}"


class LineView(_Clocked):
    """Prints events as they come: for logs."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def event(self, text: str) -> None:
        """See ``View``."""
        self._console.print(self._stamped(text), markup=False, soft_wrap=True)

    def show(self, sight: Sight, live: Collection[int], book: RunBook) -> None:
        """Show nothing: a table for each look would bury the events."""

    def end(self, summary: Mapping[str, int | float]) -> None:
        """See ``View``."""
        self._console.print(_verdict(summary), soft_wrap=True)


class TableView(_Clocked):
    """Redraws one table: for terminals."""

    def __init__(self, plan: DemoPlan, live: Live) -> None:
        super().__init__()
        self._plan = plan
        self._live = live
        self._events: deque[str] = deque(maxlen=_EVENTS_SHOWN)
        self._table: RenderableType = ""

    def event(self, text: str) -> None:
        """See ``View``."""
        self._events.append(self._stamped(text))
        self._draw()

    def show(self, sight: Sight, live: Collection[int], book: RunBook) -> None:
        """See ``View``."""
        table = Table(title="one renewal greenlet and one call per tick in each worker", title_justify="left")
        for column in ("worker", "", "locks held", "last tick renewed", "ticks", "longest gap"):
            table.add_column(column, justify="left" if column in ("worker", "") else "right")
        for pid, figures in sorted(sight.figures.items()):
            table.add_row(
                str(pid),
                "running" if pid in live else "ended",
                str(figures.locks) if pid in live else "-",
                f"{figures.last_renewed} in one call, {figures.last_tick_ms} ms",
                str(figures.ticks),
                f"{figures.max_renewal_gap_ms} ms",
            )
        ttl = "-" if sight.lowest_ttl_ms is None else f"{sight.lowest_ttl_ms} of {self._plan.lock_duration} ms"
        table.caption = (
            f"{sight.completed} of {self._plan.jobs} jobs completed, {sight.waiting} waiting · lowest TTL {ttl}"
            f" · overlapping runs: {book.overlapping()}"
        )
        table.caption_justify = "left"
        self._table = table
        self._draw()

    def end(self, summary: Mapping[str, int | float]) -> None:
        """See ``View``."""
        self._draw(_verdict(summary))

    def _draw(self, *more: RenderableType) -> None:
        lines = [Text(event, no_wrap=True, overflow="ellipsis") for event in self._events]
        self._live.update(Group(self._table, *lines, *more), refresh=True)


def _verdict(summary: Mapping[str, int | float]) -> Text:
    good = summary["lost_jobs"] == 0 and summary["overlapping_runs"] == 0
    lines = [
        f"{summary['completed']} of {summary['jobs']} jobs completed in {summary['seconds']} s, "
        f"{summary['lost_jobs']} lost, {summary['overlapping_runs']} runs overlapped",
        f"{summary['recovered']} jobs recovered, {summary['lock_lost_reports']} locks reported lost",
        f"{summary['renewals']} renewals in {summary['renewal_calls']} calls over {summary['ticks']} ticks; "
        f"no lock waited longer than {summary['max_renewal_gap_ms']} ms for its renewal",
    ]
    return Text("\n".join(["", *lines]), style="green" if good else "bold red")

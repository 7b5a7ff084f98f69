"""What the soak counts: beliefs that overlap, and not those that a kill, a loss or a deadline had ended before."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak_log import read_logs

DURATION = 4_000
RENEWED = "1000 begin 7 a\n3000 renewed 7 a 3000"


@pytest.mark.parametrize(
    ("first", "died_at", "overlaps"),
    [
        ([RENEWED, "5000 end 7 a"], None, []),
        ([RENEWED, "5000 lost 7 a missing 5000"], None, []),
        ([RENEWED], 5_000, []),
        ([RENEWED], 6_500, [6_000]),
        ([RENEWED], None, [6_000]),
        ([RENEWED, "9000 end 7 a"], None, [6_000]),
        ([RENEWED, "9000 lost 7 a missing 9000"], None, [6_000]),
        ([RENEWED, "9000 lost 7 a expired 5500"], None, []),
        (["1000 begin 7 a", "9000 end 7 a"], None, []),
    ],
    ids=[
        "ended before", "lost before", "killed before", "killed after", "never ended", "ended after", "lost after",
        "deadline before", "not renewed in time",
    ],
)  # fmt: skip
def test_a_second_run_that_begins_while_the_first_is_believed_is_an_overlap(
    tmp_path: Path, first: list[str], died_at: int | None, overlaps: list[int]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("\n".join(first))
    two.write_text("6000 begin 7 b\n6500 back 8\n8000 end 7 b\n")
    seen = read_logs([one, two], {} if died_at is None else {one: died_at}, DURATION)
    assert seen.overlaps == overlaps
    assert (seen.runs, seen.put_back) == (2, 1)

"""What the soak counts: double belief but what is promised, and losses that are invented, repeated or unreported."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak_log import Forgotten, Overlap, Seen, excused, known_by, read_logs, unreported

DURATION = 4_000
RENEWED = "1000 begin 7 a\n3000 renewed 7 a 3000"
BOUND = 600


def read(folder: Path, *logs: list[str]) -> Seen:
    """Read logs with these lines, one for each process."""
    paths = [folder / str(number) for number in range(len(logs))]
    for path, lines in zip(paths, logs, strict=True):
        path.write_text("\n".join(lines))
    return read_logs(paths, {}, DURATION)


@pytest.mark.parametrize(
    ("first", "died_at", "overlaps"),
    [
        ([RENEWED, "5000 end 7 a"], None, []),
        ([RENEWED, "5000 lost 7 a missing 5000"], None, []),
        ([RENEWED], 5_000, []),
        ([RENEWED], 6_500, [(6_000, 6_500)]),
        ([RENEWED], None, [(6_000, 7_000)]),
        ([RENEWED, "9000 end 7 a"], None, [(6_000, 7_000)]),
        ([RENEWED, "6100 lost 7 a missing 6100"], None, [(6_000, 6_100)]),
        ([RENEWED, "8500 renewed 7 a 8500", "9000 end 7 a"], None, [(6_000, 8_000)]),
        ([RENEWED, "9000 lost 7 a expired 5500"], None, []),
        (["1000 begin 7 a", "9000 end 7 a"], None, []),
    ],
    ids=[
        "ended before", "lost before", "killed before", "killed after", "never ended", "ended after", "lost after",
        "outlives the second", "deadline before", "not renewed in time",
    ],
)  # fmt: skip
def test_a_second_run_that_begins_while_the_first_is_believed_is_an_overlap_until_one_of_them_ends(
    tmp_path: Path, first: list[str], died_at: int | None, overlaps: list[tuple[int, int]]
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("\n".join(first))
    two.write_text("6000 begin 7 b\n6500 back 8\n8000 end 7 b\n")
    seen = read_logs([one, two], {} if died_at is None else {one: died_at}, DURATION)
    assert seen.overlaps == [Overlap("7", *overlap) for overlap in overlaps]
    assert (seen.runs, seen.put_back) == (2, 1)


@pytest.mark.parametrize(
    ("forgotten", "troubles", "fine"),
    [
        ([], [], False),
        ([Forgotten(900)], [], True),
        ([Forgotten(899)], [], False),
        ([Forgotten(1_001)], [], False),
        ([Forgotten(100)], [(600, 900)], True),
        ([Forgotten(100)], [(600, 899)], False),
        ([Forgotten(100)], [(701, 900)], False),
        ([Forgotten(100)], [(0, 90), (600, 700), (1_200, 1_300)], True),
        ([Forgotten(900, "7", "a")], [], True),
        ([Forgotten(900, "8", "a")], [], False),
    ],
    ids=[
        "nothing forgotten", "ends in time", "ends too late", "forgotten after it began", "reached late", "reached",
        "knew before the trouble", "troubles in a row", "that lock", "another lock",
    ],
)  # fmt: skip
def test_a_double_belief_is_excused_only_since_the_server_forgot_and_until_its_worker_could_know(
    forgotten: list[Forgotten], troubles: list[tuple[int, int]], fine: bool
) -> None:
    assert excused(Overlap("7", 1_000, 1_500), forgotten, troubles, BOUND) is fine


def test_a_worker_knows_after_one_bound_without_trouble() -> None:
    assert known_by(1_000, [], BOUND) == 1_600
    assert known_by(1_000, [(500, 1_100)], BOUND) == 1_700
    assert known_by(1_000, [(1_650, 2_000)], BOUND) == 1_600


def test_each_report_of_a_token_after_its_first_is_a_repeated_loss(tmp_path: Path) -> None:
    lost = "4000 lost 7 a missing 4000"
    assert read(tmp_path, [RENEWED, lost]).repeated == 0
    assert read(tmp_path, [RENEWED, lost, "5000 lost 7 a expired 5000", lost]).repeated == 2
    assert read(tmp_path, [RENEWED, lost, "5000 begin 7 b", "6000 lost 7 b missing 6000"]).repeated == 0


@pytest.mark.parametrize(
    ("lines", "invented", "unchecked"),
    [
        (["4000 lost 7 a missing 4000"], 0, 1),
        (["4000 lost 7 a missing 4000", "4100 checked 7 a"], 0, 0),
        (["4000 lost 7 a taken 4000", "4100 invented 7 a"], 1, 0),
        (["4000 lost 7 a missing 4000", "4100 checked 8 b"], 0, 1),
        (["6999 lost 7 a expired 6999"], 1, 0),
        (["7000 lost 7 a expired 7000"], 0, 0),
        (["6999 lost 7 a missing 6999"], 0, 1),
        (["7000 lost 7 a missing 7000"], 0, 0),
    ],
    ids=[
        "no answer",
        "confirmed",
        "denied",
        "another's answer",
        "before the worker's own deadline",
        "the worker's own deadline",
        "just in time",
        "after its deadline",
    ],
)
def test_a_loss_is_confirmed_or_invented_or_counted_as_unchecked(
    tmp_path: Path, lines: list[str], invented: int, unchecked: int
) -> None:
    seen = read(tmp_path, [RENEWED, *lines])
    assert (seen.invented, seen.unchecked) == (invented, unchecked)


@pytest.mark.parametrize(
    ("lines", "missing"),
    [
        (["4600 lost 7 a missing 4600"], []),
        (["4600 end 7 a"], []),
        (["4601 end 7 a"], ["a"]),
        ([], ["a"]),
    ],
    ids=["reported", "ended before it could know", "went on", "never ended"],
)
def test_a_deleted_lock_that_is_believed_in_for_longer_than_promised_has_to_be_reported(
    tmp_path: Path, lines: list[str], missing: list[str]
) -> None:
    seen = read(tmp_path, [RENEWED, *lines])
    assert unreported(seen, [Forgotten(4_000, "7", "a")], [], BOUND) == missing
    assert unreported(seen, [Forgotten(4_000)], [], BOUND) == []

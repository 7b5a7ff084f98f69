"""The promise, over 2 000 seeded histories: two workers never both believe, nothing is dropped, lost or invented."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import pytest

from .__main__ import run_seeds
from .history import BrokenPromiseError
from .mutations import MUTATIONS
from .simulate import Simulation

SEEDS = 2_000
CHUNKS = 8
SEEDS_OF_DOUBLES = 150
MOST_SEEDS_FOR_A_MUTATION = 600

FACTS = (
    "runs",
    "storm",
    "refuse",
    "pause server",
    "restart",
    "flush scripts",
    "pause worker",
    "crash worker",
    "shut down",
    "cut off",
    "restart empty",
    "failover",
    "evict",
    "undecided",
    "denied",
    "dropped",
    "put back",
    "given up",
    "lost missing",
    "lost expired",
    "finish unknown",
    "finish lost",
)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_history_breaks_the_promise_and_each_has_seen_every_fault(chunk: int) -> None:
    count = SEEDS // CHUNKS
    facts, broken = run_seeds(chunk * count, count)
    assert not broken, "\n".join(broken)
    assert [fact for fact in FACTS if not facts[fact]] == []


def test_double_belief_after_forgetting_ends_in_time() -> None:
    facts, broken = run_seeds(0, SEEDS_OF_DOUBLES, doubles=True)
    assert not broken, "\n".join(broken)
    assert facts["overlaps after forgetting"] >= 20


@pytest.mark.parametrize("seed", [16673, 17081])
def test_a_run_whose_start_the_fence_counter_has_grown_past_is_not_promised_and_nothing_else_of_it_breaks(
    seed: int,
) -> None:
    """The entry was forgotten while nobody believed any more, and other starts came before the worker was back."""
    assert Simulation(seed).run().facts["jobs nobody could bring back"] > 0


@pytest.mark.parametrize("seed", [14696, 17488])
def test_a_history_that_once_lost_a_job_loses_it_no_more(seed: int) -> None:
    """A claim took the place of the mark that kept an entry; an interrupted run's restored entry was released."""
    Simulation(seed).run()


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_rule_is_caught(name: str) -> None:
    for seed in range(MOST_SEEDS_FOR_A_MUTATION):
        with MUTATIONS[name]():
            try:
                Simulation(seed).run()
            except BrokenPromiseError:
                return
    pytest.fail(f"{name} passed {MOST_SEEDS_FOR_A_MUTATION} seeds unseen")


@pytest.mark.parametrize("seed", [3, 14, 248])
def test_one_seed_makes_one_history(seed: int) -> None:
    traces = []
    for _ in range(2):
        told = io.StringIO()
        with redirect_stdout(told):
            Simulation(seed, trace=True).run()
        traces.append(told.getvalue())
    assert traces[0] == traces[1]
    assert traces[0].count("\n") > 10

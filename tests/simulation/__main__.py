"""``python -m tests.simulation --seeds 20000``: any number of seeds; ``--seed 7 --trace``: one, told step by step."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from .history import BrokenPromiseError
from .simulate import Simulation

REPLAY = "python -m tests.simulation --seed {seed} --trace"


def run_seeds(first: int, count: int, *, doubles: bool = False) -> tuple[Counter[str], list[str]]:
    """Run seeds; return what happened in all of them, and one line for each that broke the promise."""
    facts: Counter[str] = Counter()
    broken = []
    for seed in range(first, first + count):
        try:
            facts.update(Simulation(seed, doubles=doubles).run().facts)
        except BrokenPromiseError as error:
            broken.append(f"seed {seed}: {error}\n  replay: {REPLAY.format(seed=seed)}{' --doubles' * doubles}")
    return facts, broken


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2_000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--doubles", action="store_true", help="forget often, and deliver again what was forgotten")
    parser.add_argument("--trace", action="store_true", help="tell what happens, step by step")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        print(dict(Simulation(arguments.seed, trace=arguments.trace, doubles=arguments.doubles).run().facts))
        return 0
    began = time.monotonic()
    facts, broken = run_seeds(arguments.first, arguments.seeds, doubles=arguments.doubles)
    for line in broken:
        print(line)
    print(f"{arguments.seeds} seeds in {time.monotonic() - began:.0f} s, {len(broken)} broke the promise")
    print(", ".join(f"{fact}: {count}" for fact, count in sorted(facts.items())))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

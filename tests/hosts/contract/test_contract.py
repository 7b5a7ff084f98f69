"""The contract of all hosts: one that keeps the rules passes it, and one that breaks a rule fails that rule's test."""

from __future__ import annotations

import re
import sys

import pytest
from contract_faults import FAULTS, Fault

from echomq_plugin.testing import HostContract

TESTS = [name for name in dir(HostContract) if name.startswith("test_")]
CASES = [pytest.param(Fault(None, test), id=f"sound-{test}") for test in TESTS] + [
    pytest.param(fault, id=f"{name}-{fault.test}".replace(" ", "-"))
    for name, faults in FAULTS.items()
    for fault in faults
]


TRIES = 4


class Shelf(HostContract):
    """The page's host, with what it was taught."""

    __test__ = False
    queue = "shelf"
    can_deliver_again = True
    can_give_up = True
    can_retry = True
    can_limit_time = True

    def __init__(self, fault):
        self.fault = fault

    def enqueue(self, name, *, retries=0, time_limit_ms=None):
        self.client.hset("shelf:retries", name, retries)
        if time_limit_ms is not None:
            self.client.hset("shelf:limits", name, time_limit_ms / 1000)
        self.client.lpush("shelf", name)
        return name

    def start_worker(self):
        return self.spawn([sys.executable, "-m", "gevent.monkey", str(self._folder / "shelf.py")])

    def deliver_again(self, job_id):
        self.client.lpush("shelf", job_id)

    def is_given_up(self, job_id):
        return job_id in self.client.lrange("shelf:failed", 0, -1)

    def wait_until(self, condition, what):
        if self.fault.says and re.search(self.fault.says, what):
            self.limit_s = 10.0  # it never comes true, and that takes as long as it may
        super().wait_until(condition, what)


def run(fault, folder):
    """
    Run the fault's test; raises what the test raises.

    Some faults need two workers to meet, and a busy machine can keep them apart: a fault may be found at any try.
    """
    for number in range(1 if fault.patch is None else TRIES):
        run_once(fault, folder / str(number))


def run_once(fault, folder):
    folder.mkdir(parents=True)
    (folder / "shelf.py").write_text(fault.host())
    shelf = Shelf(fault)
    with shelf.opened(folder):
        getattr(HostContract, fault.test)(shelf)


def test_each_test_of_the_contract_has_a_fault_that_it_finds():
    """A test that no fault fails may as well not be there."""
    assert {fault.test for faults in FAULTS.values() for fault in faults} == set(TESTS)


@pytest.mark.parametrize("fault", CASES)
def test_a_host_passes_until_it_breaks_a_rule(fault, tmp_path):
    """And then the test of that rule fails, and for that reason."""
    if fault.patch is None:
        run(fault, tmp_path)
    else:
        with pytest.raises(BaseException, match=fault.says):  # pytest's own failure is no Exception
            run(fault, tmp_path)

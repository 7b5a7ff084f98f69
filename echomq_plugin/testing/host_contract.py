"""
HostContract: the rules that every host keeps, as a pytest class. ``docs/write-a-host.md`` shows how to use it.

Each test starts a server of its own and real worker processes, so it proves what the host does, not what its adapter
means to do. Durations are short: locks of two seconds where people have thirty.
"""

from __future__ import annotations

from typing import ClassVar

from echomq_plugin.testing.contract_deaths import DeathsContract
from echomq_plugin.testing.contract_runs import RunsContract
from echomq_plugin.testing.contract_troubles import TroublesContract


class HostContract(RunsContract, TroublesContract, DeathsContract):
    """
    Subclass it, write ``enqueue`` and ``start_worker``, say what your host can do, and run pytest.

    ``ContractWorld`` lists all that can be written and said.
    """

    _left_out: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        """Take out the tests of what the host cannot do: pytest does not see what is None."""
        tests = {name: getattr(HostContract, name) for name in dir(HostContract) if name.startswith("test_")}
        needing = {name: test.needs for name, test in tests.items() if hasattr(test, "needs")}
        left_out = {name for name, ability in needing.items() if not getattr(cls, ability)}
        for name in left_out:
            setattr(cls, name, None)
        # What this class can do, and the class that it is made from could not.
        for name in cls._left_out - left_out - set(vars(cls)):
            setattr(cls, name, tests[name])
        cls._left_out = frozenset(left_out)

"""An adapter whose host is not installed says which extra installs it."""

from __future__ import annotations

import importlib
import sys

import pytest

from echomq_plugin.errors import MissingExtraError


@pytest.mark.parametrize("host", ["dramatiq", "huey"])
def test_an_adapter_without_its_host_names_the_extra(monkeypatch, host):
    """``import`` fails with an ImportError that says what to install."""
    for name in list(sys.modules):
        if name.startswith((f"echomq_plugin.hosts.{host}", f"{host}.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, host, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'echomq-plugin\[{host}\]'"):
        importlib.import_module(f"echomq_plugin.hosts.{host}")

"""The fixtures of the fault tests serve here too."""

from faults.conftest import plugin, pm, proxy, recorder

__all__ = ["plugin", "pm", "proxy", "recorder"]

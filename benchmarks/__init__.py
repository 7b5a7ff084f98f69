"""Figures, each measured in one run: ``python -m benchmarks.NAME [--json]``. Never part of the tests."""

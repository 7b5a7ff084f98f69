"""``python -m echomq_plugin`` is the command ``echomq-plugin``."""

from __future__ import annotations

from echomq_plugin.cli import main

if __name__ == "__main__":
    main()

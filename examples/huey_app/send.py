"""Send three reports: ``python send.py [seconds]``. Huey names a task by its module: ``app.py`` must be imported."""

import sys

from app import report

seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
for month in ("January", "February", "March"):
    print(f"{month}: {report(month, seconds=seconds).id}")

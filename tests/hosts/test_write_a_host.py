"""The page on writing a host: its host keeps the contract, run as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHICH = "running_job_holds or killed_worker"


def test_the_host_of_the_page_keeps_the_contract(tmp_path):
    """The page's two files, as printed; its host goes through the whole contract in ``contract/test_contract.py``."""
    page = (ROOT / "docs" / "write-a-host.md").read_text()
    host, test = re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "shelf.py").write_text(host)
    (tmp_path / "test_shelf.py").write_text(test)
    which = [] if os.environ.get("WHOLE_CONTRACT") else ["-k", WHICH]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *which, "test_shelf.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout

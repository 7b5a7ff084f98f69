"""The other runtime is the same on every machine, wherever its packages come from."""

from __future__ import annotations

import json

from interop.peers import HERE


def test_the_lock_file_pins_every_package_by_its_content_and_names_no_place() -> None:
    packages = json.loads((HERE / "package-lock.json").read_text())["packages"]
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]

    assert packages.pop("")["dependencies"] == wanted
    for name, package in packages.items():
        assert "resolved" not in package, name
        assert package["integrity"].startswith("sha512-"), name
    for name, version in wanted.items():
        assert packages[f"node_modules/{name}"]["version"] == version

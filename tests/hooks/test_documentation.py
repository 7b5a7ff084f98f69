"""docs/hooks.md and the tests cannot fall behind the hooks."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pluggy
import pytest

from echomq_plugin.hookspecs import FIRST_RESULT, SPECS

PAGE = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, flags=re.DOTALL | re.MULTILINE))


def heading(hook: str) -> str:
    return f"{hook}({', '.join(inspect.signature(SPECS[hook]).parameters)})"


def test_there_is_one_heading_for_each_hook_with_its_exact_arguments() -> None:
    assert list(SECTIONS) == [heading(hook) for hook in SPECS]


@pytest.mark.parametrize("hook", SPECS)
def test_a_section_says_when_where_with_what_to_what_end_and_what_if_it_raises(hook: str) -> None:
    body = SECTIONS[heading(hook)]

    assert re.findall(r"^- `(\w+)`: ", body, flags=re.MULTILINE) == list(inspect.signature(SPECS[hook]).parameters)
    for word in ("When:", "From:", "Result:", "Raises:"):
        assert body.count(word) == 1, word


@pytest.mark.parametrize("hook", SPECS)
def test_a_docstring_says_the_same_things(hook: str) -> None:
    text = inspect.getdoc(SPECS[hook]) or ""

    for word in ("When:", "From:", "Arguments:", "Result:", "Raises:"):
        assert word in text, word
    for name in inspect.signature(SPECS[hook]).parameters:
        assert re.search(rf"^ +{name}: ", text, flags=re.MULTILINE), name


@pytest.mark.parametrize("hook", SPECS)
def test_every_argument_of_a_hook_is_typed(hook: str) -> None:
    signature = inspect.signature(SPECS[hook])

    assert all(parameter.annotation is not parameter.empty for parameter in signature.parameters.values())
    assert signature.return_annotation is not signature.empty


@pytest.mark.parametrize("hook", SPECS)
def test_each_hook_has_a_test_of_its_own(hook: str) -> None:
    source = (Path(__file__).parent / "test_each_hook.py").read_text(encoding="utf-8")

    assert re.search(rf"^def test_hook_{hook}\(", source, flags=re.MULTILINE)


def test_the_page_example_works_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from echomq_plugin import LostLock

    [example] = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    namespace: dict[str, object] = {}
    exec(compile(example, "docs/hooks.md", "exec"), namespace)
    pm = namespace["pm"]
    assert isinstance(pm, pluggy.PluginManager)

    pm.hook.echomq_lock_lost(queue="mail", lost=(LostLock("42", "token", "taken", 1_234),))

    assert capsys.readouterr().out == "mail: 42 lost its lock after 1234 ms (taken)\n"


def test_only_hooks_with_one_answer_stop_at_the_first() -> None:
    assert set(FIRST_RESULT) == {"echomq_job_start", "echomq_job_finish", "echomq_job_stalled"}

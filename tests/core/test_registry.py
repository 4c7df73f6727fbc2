"""Finding methods, tasks and the user's own files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from etude.core import registry
from etude.core.errors import ConfigError, UnknownNameError, nearest
from etude.core.method import Method
from etude.core.registry import (
    docstring,
    family,
    files,
    get_method,
    load_attribute,
    load_task,
    module_at,
    summary,
)
from etude.core.task import Task

OWN = """
from etude.methods.rlvr.grpo import grpo
mine = grpo.replace(id="mine", problems=3)
number = 3
"""


def test_files_name_methods_and_tasks() -> None:
    assert {"grpo", "reinforce"} <= set(files("methods"))
    assert {"sums", "compose", "attr-20q"} <= set(files("tasks"))
    assert "formats" not in files("tasks"), "a helper beside the tasks is no task"
    assert family("methods", "grpo") == "rlvr"
    assert summary("methods", "grpo").startswith("GRPO: group relative policy optimization")
    assert docstring("tasks", "attr-20q").startswith(summary("tasks", "attr-20q"))


def test_a_large_method_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = tmp_path / "methods" / "rlvr" / "large_one"
    large.mkdir(parents=True)
    (large / "__init__.py").write_text(
        '"""Large: it has parts of its own."""\nlarge_one = grpo.replace(id="large-one")\n'
    )
    (large / "judge.py").write_text("number = 3\n")
    (large.parent / "small.py").write_text('small = grpo.replace(id="small")\n')
    monkeypatch.setattr(registry, "ROOT", tmp_path)
    files.cache_clear()
    try:
        assert files("methods") == {"large-one": large / "__init__.py", "small": large.parent / "small.py"}
        assert family("methods", "large-one") == family("methods", "small") == "rlvr"
        assert summary("methods", "large-one") == "Large: it has parts of its own."
    finally:
        files.cache_clear()


def test_a_folder_is_imported_once() -> None:
    found = registry.ROOT / "tasks" / "control"
    assert module_at(found / "__init__.py").__name__ == "etude.tasks.control"
    assert module_at(found / "cartpole.py").__name__ == "etude.tasks.control.cartpole"


@pytest.mark.slow
def test_load_by_name() -> None:
    assert isinstance(get_method("grpo"), Method)
    assert isinstance(load_task("attr-20q"), Task)


@pytest.mark.parametrize(("name", "close"), [("grp", "grpo"), ("GRPO", "grpo"), ("reinforc", "reinforce")])
def test_unknown_methods_are_answered_with_the_nearest(name: str, close: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        get_method(name)
    assert caught.value.nearest[0] == close
    assert str(caught.value).endswith("`etude methods` lists them all.")


def test_nearest_prefers_spelling_then_substrings() -> None:
    assert nearest("clip_cov", ["clip-cov", "kl-cov", "dapo"])[0] == "clip-cov"
    assert nearest("ppo", ["ppo-rlhf", "zzz"]) == ["ppo-rlhf"]
    assert nearest("qqqq", ["grpo"]) == []
    assert nearest("", ["grpo"]) == []


def test_a_method_from_a_file_or_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    assert get_method(str(tmp_path / "mine.py")).problems == 3
    assert get_method(f"{tmp_path}/mine.py:mine").parent == "grpo"
    assert get_method("etude.methods.rlvr.grpo:grpo").id == "grpo"
    with pytest.raises(ConfigError, match="must be a Method, got int"):
        get_method(f"{tmp_path}/mine.py:number")
    with pytest.raises(UnknownNameError, match="Did you mean 'mine'"):
        load_attribute(f"{tmp_path}/mine.py:min")
    with pytest.raises(ConfigError, match="There is no file"):
        get_method(str(tmp_path / "other.py"))
    with pytest.raises(ConfigError, match="Cannot import 'no_such_module'"):
        get_method("no_such_module:thing")


def test_a_file_that_fails_once_fails_again(tmp_path: Path) -> None:
    (tmp_path / "fails_on_import.py").write_text("x = 1\nraise ZeroDivisionError('on purpose')\n")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            load_attribute(f"{tmp_path}/fails_on_import.py:x")


def test_a_file_cannot_replace_a_module_of_python(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("x = 1\n")
    with pytest.raises(ConfigError, match="rename it"):
        load_attribute(f"{tmp_path}/json.py:x")


@pytest.mark.slow
def test_names_cost_no_heavy_import() -> None:
    code = (
        "import sys; from etude.core.registry import files, summary; files('methods'); files('tasks');"
        "summary('methods', 'grpo'); print('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

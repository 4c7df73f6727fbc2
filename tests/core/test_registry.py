"""Finding methods, tasks and the user's own files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from etude.core.errors import ConfigError, UnknownNameError, nearest
from etude.core.method import Method
from etude.core.part import part_class
from etude.core.registry import docstring, family, files, get_method, load_attribute, load_task, module_name, summary
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


def test_a_large_method_is_a_folder() -> None:
    path = files("methods")["derl"]
    assert path.parts[-3:] == ("rlvr", "derl", "__init__.py")
    assert family("methods", "derl") == "rlvr"
    method = get_method("derl")
    assert method is sys.modules[module_name(path)].derl
    assert module_name(path) == "etude.methods.rlvr.derl"
    assert "etude.methods.rlvr.derl.__init__" not in sys.modules  # one module, not two with a set of parts each
    assert part_class("formula-policy").__module__ == "etude.methods.rlvr.derl.formulas"


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

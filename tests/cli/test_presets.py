"""Presets: settings that a run begins with, what wins over them, and that every file of them is whole."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Cli

import etude
from etude.core.errors import ConfigError, EtudeError, MissingExtraError, UnknownNameError
from etude.core.registry import get_method
from etude.core.worlds import World
from etude.evaluation.intervals import bootstrap_interval
from etude.runs import presets
from etude.runs.jobs import jobs_for
from etude.runs.training import compose_task
from etude.runtime.jsonl import JsonLines
from etude.tasks import resolve_task
from etude.tasks.control import _names

PLAIN = """
method = "ppo"
task = "cartpole"
steps = 64
source = "a test"

[set]
"experience.environments" = 2
"experience.steps" = 16
"advantages.gamma" = 0.9
"""
SMALL = ("--task", "cartpole", "--seeds", 1, "--evaluate", 0)


@pytest.fixture
def shelf(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with one preset, of ppo on cartpole, in the place of those that are shipped."""
    place = tmp_path_factory.mktemp("configurations")
    (place / "ppo").mkdir()
    (place / "ppo/cartpole.toml").write_text(PLAIN)
    monkeypatch.setattr(presets, "PLACES", (place,))
    presets.presets.cache_clear()
    yield place
    presets.presets.cache_clear()


def written(folder: str, name: str = "method.json") -> dict[str, Any]:
    return dict(json.loads((Path(folder) / name).read_text()))


def numbers(folder: str) -> list[Any]:
    """What a run logged, without its clock."""
    lines = JsonLines.read(Path(folder) / "metrics.jsonl")
    return [{k: v for k, v in line.items() if "second" not in k} for line in lines]


@pytest.mark.slow
def test_a_run_begins_with_the_preset_of_its_method_and_task_and_says_so(cli: Cli, shelf: Path) -> None:
    answer = cli("train", "ppo", *SMALL, "--out", "x")
    assert answer.code == 0, answer.err
    said = "experience.environments=2, experience.steps=16, advantages.gamma=0.9"
    assert f"Preset ppo/cartpole, 64 steps: {said}. What you set wins; --no-preset leaves it out." in answer.sentence
    method, config = written("x"), written("x", "config.json")
    assert (method["experience"]["environments"], method["advantages"]["gamma"], config["steps"]) == (2, 0.9, 64)
    assert method["preset"]["name"] == "ppo/cartpole"
    assert method["preset"]["changes"]["advantages.gamma"] == [0.98, 0.9]
    assert config["began_with"] == f"ppo/cartpole@{method['preset']['fingerprint']}"


@pytest.mark.slow
def test_the_steps_of_a_preset_are_not_said_where_others_are_taken(cli: Cli, shelf: Path) -> None:
    answer = cli("train", "ppo", *SMALL, "--steps", 96, "--out", "x")
    assert "Preset ppo/cartpole: experience.environments=2" in answer.sentence


@pytest.mark.slow
def test_flags_and_files_win_over_it(cli: Cli, shelf: Path) -> None:
    Path("a.toml").write_text('[set]\n"advantages.lam" = 0.5\n"advantages.gamma" = 0.7\n')
    flags = ("--config", "a.toml", "--set", "experience.environments=4", "--steps", 128, "--quiet")
    assert cli("train", "ppo", *SMALL, *flags, "--out", "x").code == 0
    method = written("x")
    assert (method["experience"]["environments"], method["experience"]["steps"]) == (4, 16)
    assert (method["advantages"]["gamma"], method["advantages"]["lam"]) == (0.7, 0.5)
    assert written("x", "config.json")["steps"] == 128
    assert method["preset"]["changes"]["advantages.gamma"] == [0.98, 0.9], "what the preset changed, not the user"


@pytest.mark.slow
def test_no_preset_is_the_published_method(cli: Cli, shelf: Path) -> None:
    answer = cli("train", "ppo", *SMALL, "--no-preset", "--steps", 512, "--out", "x")
    assert answer.code == 0 and "Preset" not in answer.err
    published = get_method("ppo", World.CONTROL)
    assert written("x") == json.loads(json.dumps(published.to_json()))
    assert "began_with" not in written("x", "config.json")


@pytest.mark.slow
def test_python_has_the_same_switch(cli: Cli, shelf: Path, tmp_path: Path) -> None:
    small: dict[str, Any] = {"seeds": 1, "evaluate": 0, "quiet": True}
    with_it = etude.train("ppo", "cartpole", out=tmp_path / "a", **small)
    without = etude.train("ppo", "cartpole", out=tmp_path / "b", steps=512, preset=False, **small)
    own = etude.train(etude.method("ppo", world="control"), "cartpole", out=tmp_path / "c", steps=512, **small)
    gammas = [written(str(run.folder))["advantages"]["gamma"] for run in (with_it, without, own)]
    assert gammas == [0.9, 0.98, 0.98], "a Method object is somebody's own"


@pytest.mark.slow
@pytest.mark.parametrize("extra", [(), ("--with", "a2c"), ("--set", "advantages.gamma=0.8")])
def test_run_toml_and_resume_repeat_the_numbers_when_the_preset_is_another(
    extra: tuple[str, ...], cli: Cli, shelf: Path
) -> None:
    assert cli("train", "ppo", *SMALL, *extra, "--quiet", "--out", "one").code == 0
    assert cli("train", "ppo", *SMALL, *extra, "--until", 32, "--quiet", "--out", "two").code == 0
    (shelf / "ppo/cartpole.toml").write_text(PLAIN.replace("0.9", "0.1").replace("= 64", "= 32"))
    again = cli("train", "--config", "one/run.toml", "--quiet", "--out", "three")
    assert again.code == 0, again.err
    assert cli("train", "--resume", "two", "--quiet").code == 0
    assert numbers("one") == numbers("two") == numbers("three")
    assert "preset" not in written("three"), "its settings are the run's own now"


@pytest.mark.slow
def test_another_environment_is_another_task(cli: Cli, shelf: Path) -> None:
    answer = cli("train", "ppo", *SMALL, "--set", "task.gust=1", "--steps", 512, "--out", "x")
    assert answer.code == 0, answer.err
    assert "with other fields it is another, and begins without" in answer.sentence
    assert written("x")["advantages"]["gamma"] == 0.98


def test_how_environments_are_stepped_does_not_make_another_task(shelf: Path) -> None:
    text = PLAIN.replace("cartpole", "Acrobot-v1")
    (shelf / "ppo/Acrobot-v1.toml").write_text(text)
    presets.presets.cache_clear()
    preset = presets.load_preset("ppo/Acrobot-v1")
    same = compose_task("Acrobot-v1", ["task.backend=gymnasium", "task.workers=true", "task.step_timeout=5"])
    assert presets.is_for(preset, same)
    assert not presets.is_for(preset, compose_task("Acrobot-v1", ["task.arguments.x=1", "task.backend=gymnasium"]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (('source = "a test"', 'sauce = "a test"'), "Did you mean 'source'"),
        (("steps = 64", "steps = 0"), "steps must be a whole number of at least 1, got 0"),
        (("[set]", "evaluate = 3\n[set]"), "evaluate"),
        (('"advantages.gamma" = 0.9', '"task.gust" = 2'), "sets task.gust=2: a preset sets fields of its method"),
        (('source = "a test"', ""), "lacks a key"),
        (("[set]", '[score]\ncommand = "x"\n[set]'), "lacks a key"),
        (("method =", "method ="), ""),
    ],
)
def test_what_is_wrong_with_a_file_is_said(change: tuple[str, str], sentence: str, shelf: Path) -> None:
    (shelf / "ppo/cartpole.toml").write_text(PLAIN.replace(*change))
    if not sentence:
        plain = presets.load_preset("ppo/cartpole")
        assert plain.steps == 64 and plain.sentence(True).endswith("Its score is not measured yet.")
        return
    with pytest.raises(EtudeError, match=sentence):
        presets.load_preset("ppo/cartpole")


def test_unknown_presets_and_seeds_without_a_score_are_refused(shelf: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'ppo/cartpole'"):
        presets.load_preset("ppo/cartpol")
    score = '[score]\ncommand = "x"\nseeds = 2\nsteps = 64\nepisodes = 5\nprocessor = "p"\n'
    score += "[score.metrics.return]\nvalue = 1.0\nlow = 0.0\nhigh = 2.0\nmembers = [1.0]\n"
    (shelf / "ppo/cartpole.toml").write_text(PLAIN + score)
    with pytest.raises(ConfigError, match="return must have 2 members, one for each seed"):
        presets.load_preset("ppo/cartpole")


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_a_comparison_begins_all_arms_with_presets_or_none(cli: Cli, shelf: Path) -> None:
    flags = ("--task", "cartpole", "--seeds", 2, "--workers", 1)
    answer = cli("compare", "ppo", "a2c", *flags, "--steps", 512, "--preset")
    assert answer.code == 0, answer.err
    assert "There is no preset of a2c for this task: all are trained as published." in answer.sentence
    assert not any("preset" in written(str(p.parent)) for p in Path("runs").rglob("method.json"))
    (shelf / "a2c").mkdir()
    (shelf / "a2c/cartpole.toml").write_text(PLAIN.replace('"ppo"', '"a2c"'))
    # workers are processes of their own, which read the shelf that is shipped
    found, sentence = presets.for_all(["ppo", "a2c"], resolve_task("cartpole"))
    assert found == {} and "a2c" in sentence
    presets.presets.cache_clear()
    found, sentence = presets.for_all(["ppo", "a2c"], resolve_task("cartpole"))
    assert list(found) == ["ppo", "a2c"] and sentence == "Presets: ppo/cartpole, a2c/cartpole."
    assert presets.for_all(["ppo", "a2c"], resolve_task("cartpole"), "my.py:score")[0] == {}


def test_runs_of_comparisons_beds_claims_and_searches_take_none_unless_asked(tmp_path: Path) -> None:
    (plain,) = jobs_for("ppo", "cartpole", "tiny", 2, 64, (), tmp_path, together=True)
    (begun,) = jobs_for("ppo", "cartpole", "tiny", 2, 64, (), tmp_path, together=True, preset="abc")
    assert "--no-preset" in plain.command() and "--no-preset" not in begun.command()
    assert plain.folder != begun.folder


def test_methods_and_tasks_list_their_presets(cli: Cli, shelf: Path) -> None:
    assert "Presets (taken by `etude train ppo --task T`): cartpole" in cli("methods", "show", "ppo").out
    assert "Presets" not in cli("methods", "show", "grpo").out
    assert "presets       ppo" in cli("tasks", "show", "cartpole").out
    assert "presets" not in cli("tasks", "show", "pendulum").out


# The files that are shipped


@pytest.mark.parametrize(
    ("task", "package", "sentence"),
    [
        ("LunarLanderContinuous-v3", "Box2D", r"LunarLanderContinuous-v3 \(.*pip install 'etude\[box2d\]'"),
        ("HalfCheetah-v5", "mujoco", r"HalfCheetah-v5 \(MuJoCo is not.*pip install 'etude\[control\]'"),
        ("Pong-v5", "envpool", r"'Pong-v5'.*pip install 'etude\[control\]' brings EnvPool"),
    ],
)
def test_where_a_package_is_missing_its_extra_is_named_before_anything_is_written(
    task: str, package: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without EnvPool, which has all three, and without what Gymnasium makes them of."""
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == "envpool" else real(n, *a))
    monkeypatch.setitem(sys.modules, package, None)
    for name in [n for n in sys.modules if n.startswith(("gymnasium.envs.mujoco", "gymnasium.envs.box2d"))]:
        monkeypatch.delitem(sys.modules, name)
    _names.envpool_ids.cache_clear()
    try:
        with pytest.raises((MissingExtraError, UnknownNameError), match=sentence):
            etude.train("ppo", task, out=tmp_path / "run", quiet=True)
    finally:
        _names.envpool_ids.cache_clear()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", presets.presets())
def test_every_shipped_preset_applies_to_its_method_on_its_task(name: str) -> None:
    preset = presets.load_preset(name)
    assert preset.name == name, "a file is called by its method and its task"
    assert preset.source and preset.score is not None, "what nobody measured is not shipped"
    assert "not measured" not in preset.sentence(True)
    composed = preset.onto(World.CONTROL)
    assert list(composed.objections()) == []
    assert f"etude train {preset.method} --task {preset.task}" in preset.score.command
    try:
        task = resolve_task(preset.task)
        task.make([0], 1).close()  # type: ignore[attr-defined]
    except EtudeError as error:
        pytest.skip(f"{preset.task} cannot be made here: {error}")
    assert presets.is_for(preset, task)


@pytest.mark.parametrize("name", presets.presets())
def test_the_score_of_a_shipped_preset_is_that_of_its_seeds(name: str) -> None:
    score = presets.load_preset(name).score
    assert score is not None and score.seeds >= 5
    assert set(score.metrics) == {"return", "return/deterministic"}
    for metric in score.metrics.values():
        found = bootstrap_interval(np.array(metric.members))
        assert (metric.value, metric.low, metric.high) == pytest.approx((found.value, found.low, found.high), abs=0.05)

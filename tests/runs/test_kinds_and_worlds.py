"""What runs look up by kind and by world: loops, options, evaluations that build the policy alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.core.errors import ConfigError
from etude.core.kind_names import KINDS
from etude.core.kinds import TokenMethod
from etude.core.recipe import Recipe
from etude.core.registry import get_method
from etude.core.worlds import World
from etude.loops import LOOPS, loop_class
from etude.loops.on_policy import OnPolicyLoop
from etude.runs.comparing import _begin_arms
from etude.runs.kinds import RUNS, run_of
from etude.runs.training import EVERYWHERE, Options
from etude.runs.worlds import EvaluationOptions, check_evaluation, world_of
from etude.tasks import resolve_task
from etude.tasks.control.cartpole import CartPole

SMALL = {
    "experience.environments": 2, "experience.steps": 16, "epochs": 1, "policy.network.hidden": "8",
    "critic.network.hidden": "8", "policy.observations": "normalize-observations",
}  # fmt: skip


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A run of control of two members."""
    folder = tmp_path / "run"
    etude.train("ppo", "cartpole", out=folder, set=SMALL, steps=64, seeds=2, evaluate=3, quiet=True)
    return folder


def test_every_kind_has_a_loop_in_each_of_its_worlds_and_a_run() -> None:
    own = [(kind, world) for kind in KINDS.values() if kind is not Recipe for world in kind.worlds]
    assert set(own) == {pair for pair in LOOPS if pair[0].__module__.startswith("etude.")}  # others may be loaded
    for kind, world in own:
        assert {"step", "save", "load"} <= set(dir(loop_class(kind, world)))
        assert kind in RUNS
    assert Recipe in RUNS  # its loops are those of its runs
    with pytest.raises(ConfigError, match=r"No loop trains a TokenMethod in tasks of control: add it to LOOPS"):
        loop_class(TokenMethod, World.CONTROL)


def test_every_option_is_read_somewhere() -> None:
    kinds = [run_of(get_method("ppo", world)) for world in World]
    worlds = [world_of(world) for world in World]
    read = EVERYWHERE.union(*(w.READS & k.READS for w, k in zip(worlds, kinds)))
    assert {f.name for f in dataclasses.fields(Options)} == read
    asked = frozenset[str]().union(*(w.EVALUATION_READS for w in worlds))
    assert {f.name for f in dataclasses.fields(EvaluationOptions)} == asked
    for world in worlds:
        assert not {f.name for f in dataclasses.fields(Options)}.isdisjoint(world.READS)


@pytest.mark.parametrize(
    ("task", "options", "sentence"),
    [
        ("compose", {"episodes": 5}, "--episodes means nothing for compose, a task of language"),
        ("compose", {"video": "a.gif"}, "--video means nothing for compose"),
        ("cartpole", {"k": (1, 64)}, "--k means nothing for cartpole, a task of control"),
        ("cartpole", {"top_p": 0.9}, "--top-p means nothing"),
        ("cartpole", {"reward": "mine.py:score"}, "--reward means nothing"),
        ("enumerable", {"seed": 3}, "--seed means nothing for enumerable"),
    ],
)
def test_what_an_evaluation_would_not_read_is_refused(task: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_evaluation(EvaluationOptions(**options), resolve_task(task))
    check_evaluation(EvaluationOptions(), resolve_task(task))


@pytest.mark.slow
def test_a_member_without_a_picture_is_refused(trained: Path) -> None:
    with pytest.raises(ConfigError, match="--member says whose episode a picture shows"):
        etude.evaluate(trained, member=1)


@pytest.mark.slow
def test_evaluating_and_exporting_build_the_policy_alone(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No environment to train in, no critic, no optimizer; and the policies play as they did after training."""
    after, made, real = etude.evaluate(trained, episodes=3)["test"], [], CartPole.make

    def make(self: CartPole, seeds: Sequence[int], count: int, purpose: str = "train") -> Any:
        made.append(purpose)
        return real(self, seeds, count, purpose)

    def built(*args: Any, **options: Any) -> None:
        raise AssertionError("built although nothing is trained")

    monkeypatch.setattr(CartPole, "make", make)
    monkeypatch.setattr(type(get_method("ppo", "control").critic), "build", built)
    monkeypatch.setattr(OnPolicyLoop, "__init__", built)  # which makes optimizer and collector
    again = etude.evaluate(trained, episodes=3)["test"]
    assert {k: v.value for k, v in again.items()} == {k: v.value for k, v in after.items()}
    etude.export(trained, tmp_path / "policy.pt2", member=1)
    assert made and "train" not in made
    assert [p for p in made if p != "spaces"] == ["evaluate 0"] * 2


def test_arms_of_two_kinds_meet_on_one_task() -> None:
    """The kind is looked up per arm, the world is the task's."""
    example = Path(__file__).resolve().parents[2] / "docs" / "examples" / "cross_entropy.py"
    arms, _ = _begin_arms(["ppo", f"{example}:cross_entropy"], resolve_task("cartpole"), None, preset=False)
    assert [type(m).__name__ for m in arms.values()] == ["RolloutMethod", "SearchMethod"]
    assert [run_of(m).training_steps(m, 100_000) for m in arms.values()] == [196, 13]  # of 4 x 128, and of 16 x 500


def test_a_comparison_refuses_a_model_that_no_arm_would_load() -> None:
    with pytest.raises(ConfigError, match=r"models/mine is no run of control, nor a checkpoint in one"):
        etude.compare(["ppo", "a2c"], "cartpole", model="models/mine")

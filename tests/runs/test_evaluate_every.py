"""Evaluating in the middle of training: where it is written, and that it changes nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.core.control import VectorEnvironment
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.population import Member
from etude.core.registry import get_method
from etude.evaluation import control
from etude.evaluation.control import play
from etude.experience.vector import Rollouts
from etude.loops.on_policy import OnPolicyLoop
from etude.runtime.jsonl import JsonLines
from etude.tasks.control.cartpole import CartPole

CONTROL = {
    "experience.environments": 2, "experience.steps": 16, "epochs": 1, "policy.network.hidden": "8",
    "critic.network.hidden": "8",
}  # fmt: skip
RUNS: dict[str, tuple[str, str, dict[str, Any], int, int, list[int]]] = {
    # method, task, options, steps, evaluate_every, training steps after which there is a look
    "language": (
        "grpo", "compose",
        {"set": {"problems": 2, "experience.size": 4, "optimizer.lr": 0.01}, "evaluate": 8, "evaluate_samples": 4},
        4, 2, [2, 4],
    ),
    "control": ("ppo", "cartpole", {"set": CONTROL, "seeds": 2, "evaluate": 2}, 96, 32, [1, 2, 3]),
    "enumerable": ("grpo", "enumerable", {"seeds": 2}, 3, 1, [1, 2, 3]),
}  # fmt: skip


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """A log without its clock."""
    return [{k: v for k, v in line.items() if "second" not in k} for line in JsonLines.read(folder / name)]


def weights(folder: Path) -> dict[str, bytes]:
    """Every tensor of the last checkpoint: what is trained, its optimizer, what parts learned."""
    last = max((folder / "checkpoints").glob("step-*"), key=lambda p: int(p.name[5:]))
    found = {str(p.relative_to(last)): p.read_bytes() for p in last.rglob("*.safetensors")}
    assert found
    return found


@pytest.mark.slow
@pytest.mark.parametrize("world", RUNS)
def test_looking_changes_nothing_and_ends_where_the_run_does(world: str, tmp_path: Path) -> None:
    method, task, options, steps, every, looks = RUNS[world]
    plain, looked = tmp_path / "plain", tmp_path / "looked"
    etude.train(method, task, out=plain, steps=steps, quiet=True, **options)
    etude.train(method, task, out=looked, steps=steps, evaluate_every=every, quiet=True, **options)
    assert lines(plain, "metrics.jsonl") == lines(looked, "metrics.jsonl")
    assert weights(plain) == weights(looked)
    assert not (plain / "evaluations.jsonl").exists()
    found = lines(looked, "evaluations.jsonl")
    assert [line["step"] for line in found] == looks
    (split,) = set(found[-1]) - {"step", "intervals"}
    sides = json.loads((looked / "evaluation.json").read_text())
    before, after = (
        {k: np.mean(sides[when][split][k].get("members", sides[when][split][k]["value"])) for k in found[-1][split]}
        for when in ("before", "after")
    )
    assert {k: np.mean(v) for k, v in found[-1][split].items()} == pytest.approx(after)
    assert before != pytest.approx(after), "what is looked at must be the policy of that step"


@pytest.mark.slow
@pytest.mark.parametrize(("every", "times"), [(32, 2 + 3 * 2), (64, 2 + 1 * 2 + 2)])
def test_the_last_step_is_evaluated_once(
    every: int, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = []
    monkeypatch.setattr(control, "play", lambda *a, **k: [played.append(1), play(*a, **k)][1])
    method, task, options, steps, _, _ = RUNS["control"]
    etude.train(method, task, out=tmp_path / "run", steps=steps, evaluate_every=every, quiet=True, **options)
    assert len(played) == times  # of sampled and of likeliest actions: before, in between, and after if not known


@pytest.mark.slow
def test_greedy_completions_are_one_of_each_problem_and_named_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**RUNS["language"][2], "evaluate_split": "test", "evaluate_every": 1, "evaluate_temperature": 0}
    del options["evaluate_samples"]
    done = etude.train("grpo", "compose", out=tmp_path / "run", steps=2, **options)
    found = lines(done.folder, "evaluations.jsonl")
    names = {"pass@1/greedy", "reward/greedy"}
    assert all(set(line["test"]) == names == set(line["intervals"]) for line in found)
    assert set(done.evaluation["after"]["test"]) == names
    assert all(count in (0, 1) for count in done.evaluation["solved"]["after"]["test"])
    assert done.best is not None and done.best.name == "test/pass@1/greedy" and done.best.among == 2
    last = done.score("pass@1/greedy")
    assert f"step 2/2  evaluated: test/pass@1/greedy {last:.3g}" in capsys.readouterr().err
    with pytest.raises(UnknownNameError, match=r"no metric of the split test named 'pass@1'. Did you mean 'pass@1/gr"):
        done.score("pass@1")
    same = etude.evaluate(done.folder, k=(1,), problems=8, temperature=0, split="test")["test"]
    assert same["pass@1/greedy"].value == last
    assert etude.evaluate(done.folder, problems=8, temperature=0, split="test", seed=7)["test"] == same  # no chance


@pytest.mark.parametrize(
    ("options", "message"),
    [({"samples": 4}, "leave out --samples"), ({"k": (8,)}, "leave out --k"), ({"top_p": 0.9}, "leave out --top-p")],
)
def test_what_a_greedy_completion_has_no_use_for_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        etude.evaluate("tiny", "compose", temperature=0, **options)
    with pytest.raises(ConfigError, match="leave out evaluate_samples"):
        etude.train("grpo", "compose", evaluate_temperature=0, evaluate_samples=4)
    with pytest.raises(ConfigError, match="--evaluate-temperature means nothing for cartpole"):
        etude.train("ppo", "cartpole", evaluate_temperature=0)
    with pytest.raises(ConfigError, match=r"stop at test/\.\.\., or --evaluate-split heldout"):
        etude.train("grpo", "compose", evaluate_every=1, stop_when="heldout/pass@1 > 0.5")


@pytest.mark.slow
def test_a_run_that_goes_on_has_each_look_once(tmp_path: Path) -> None:
    method, task, options, steps, every, _ = RUNS["enumerable"]
    options = {**options, "evaluate_every": every, "quiet": True}
    whole = etude.train(method, task, out=tmp_path / "whole", steps=steps, **options).folder
    parts = etude.train(method, task, out=tmp_path / "parts", steps=2, **options).folder
    etude.resume(parts, steps=steps, quiet=True)
    assert lines(parts, "evaluations.jsonl") == lines(whole, "evaluations.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "played"), [({}, 5), ({"evaluate": 30}, 30)])
def test_as_many_episodes_are_played_as_were_asked_for(
    asked: dict[str, int], played: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = []

    def recorded(*args: Any, **kwargs: Any) -> Any:
        returns = play(*args, **kwargs)
        shapes.append(returns.shape)
        return returns

    monkeypatch.setattr(control, "play", recorded)
    options: dict[str, Any] = {**RUNS["control"][2], "evaluate": None, **asked}
    etude.train("ppo", "cartpole", out=tmp_path / "run", steps=32, quiet=True, **options)
    assert shapes == [(2, played)] * 4  # sampled and likeliest actions, before and after


@pytest.mark.first
@pytest.mark.parametrize(("episodes", "side_by_side"), [(7, 7), (100, 10), (400, 40)])
def test_many_episodes_are_played_in_ten_rounds(episodes: int, side_by_side: int) -> None:
    method, counts = get_method("ppo", "control").replace(experience=Rollouts(environments=2, steps=8)), []

    class Counted(CartPole):
        def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
            counts.append(count)
            return super().make(seeds, count, purpose)

    loop = OnPolicyLoop(method, Counted(), [Member(0), Member(1)], 1)
    assert play(loop, Counted(), episodes).shape == (2, episodes)
    assert counts == [2, side_by_side]


def test_what_would_evaluate_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="evaluate=0 that nothing is evaluated"):
        etude.train("grpo", evaluate=0, evaluate_every=2, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="reward-model trains what does not act, so --evaluate-every"):
        etude.train("reward-model", "preferences", evaluate_every=2, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="--evaluate-samples means nothing for cartpole"):
        etude.train("ppo", "cartpole", evaluate_samples=2, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("split", ["test", "heldout"])
def test_the_split_that_was_asked_for_alone_is_evaluated(split: str, tmp_path: Path) -> None:
    options = {**RUNS["language"][2], "evaluate_split": split, "evaluate_every": 1, "quiet": True}
    folder = etude.train("grpo", "compose", out=tmp_path / "run", steps=1, **options).folder
    sides = json.loads((folder / "evaluation.json").read_text())
    assert [list(sides[when]) for when in ("before", "after")] == [[split], [split]]
    (line,) = lines(folder, "evaluations.jsonl")
    assert set(line) == {"step", split, "intervals"}
    whole = etude.train("grpo", "compose", out=tmp_path / "both", steps=1, quiet=True, **RUNS["language"][2]).folder
    assert json.loads((whole / "evaluation.json").read_text())["before"][split] == sides["before"][split]


def test_a_split_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"There is no split named 'tests'\. Did you mean 'test'"):
        etude.train("grpo", "compose", evaluate_split="tests", out=tmp_path / "run")
    with pytest.raises(ConfigError, match="--evaluate-split means nothing for cartpole"):
        etude.train("ppo", "cartpole", evaluate_split="test", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()

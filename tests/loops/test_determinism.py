"""Same seed, same numbers; a run that was resumed is the run that never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from etude.advantages.returns import GAE
from etude.experience.groups import Groups
from etude.learners.token import TokenCritic
from etude.loops.language import LanguageLoop
from etude.loops.states import join_tensors, split_tensors
from etude.methods.rlvr.grpo import grpo
from etude.optimizers.adam import AdamW
from etude.optimizers.schedules import Cosine
from etude.references.frozen import MovingAverage
from etude.regularizers.kl import KLToReference
from language_toys import Toy, make_loop, random_policy

full = grpo.replace(
    problems=4,
    experience=Groups(size=4),
    optimizer=AdamW(lr=1e-3, warmup=0.2, schedule=Cosine()),
    minibatches=2,
    epochs=2,
    regularizers=(KLToReference(),),
)
METHODS = {
    "grpo": full,
    "moving reference": full.replace(reference=MovingAverage(rate=0.3)),
    "no reference": full.replace(regularizers=()),
    "critic": full.replace(advantages=GAE(), critic=TokenCritic()),
}
SMALL = {k: m.replace(optimizer=AdamW(lr=1e-6)) for k, m in METHODS.items()}
"""Steps that are far below the rounding of a bfloat16 weight."""


def make(method: Any, seed: int = 0, weights: int = 0, dtype: torch.dtype = torch.float32) -> LanguageLoop:
    policy = random_policy(seed=weights, dtype=dtype)
    return make_loop(method, Toy(prompts=tuple("abcdefg")), policy, seed=seed, steps=8)


def play(loop: LanguageLoop, steps: int) -> list[Any]:
    """Metrics (clocks aside) and episodes of some steps."""
    found = []
    for _ in range(steps):
        report = loop.step()
        found.append(({k: v for k, v in report.metrics.items() if "second" not in k}, report.episodes))
    return found


def weights(loop: LanguageLoop) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in loop.policy.tensors().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.first
@pytest.mark.parametrize("name", METHODS)
def test_two_runs_with_one_seed_are_the_same(name: str) -> None:
    a, b = make(METHODS[name]), make(METHODS[name])
    assert play(a, 3) == play(b, 3)
    assert same(weights(a), weights(b))


@pytest.mark.slow
def test_another_seed_is_another_run() -> None:
    assert play(make(full, 0), 1) != play(make(full, 1), 1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_is_the_one_that_never_stopped(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    method = METHODS[name] if dtype is torch.float32 else SMALL[name]
    straight, stopped = make(method, dtype=dtype), make(method, dtype=dtype)
    expected = play(straight, 5)
    play(stopped, 2)
    stopped.save(tmp_path)
    # a frozen reference is the model that the run started from, and is not saved; all else is, whatever it starts from
    resumed = make(method, weights=77 if name in ("moving reference", "no reference") else 0, dtype=dtype)
    resumed.load(tmp_path)
    assert resumed.finished == 2
    assert play(resumed, 3) == expected[2:]
    assert same(weights(resumed), weights(straight))
    states = [loop.updater.stepper.moments() for loop in (resumed, straight)]
    for key, s in states[1].items():
        assert all(torch.equal(torch.as_tensor(states[0][key][k]), torch.as_tensor(v)) for k, v in s.items())


@pytest.mark.slow
def test_counters_of_faults_are_resumed(tmp_path: Path) -> None:
    loop = make(full)
    loop.step()
    loop.updater.stepper.failures, loop.updater.halved, loop.updater.budget = 2, True, 77
    counted = {"steps": 2, "flat_steps": 5, "differed": True, "components": {"task-reward": True, "bonus": False}}
    loop.differences.load_state_dict(counted)
    loop.save(tmp_path)
    again = make(full)
    again.load(tmp_path)
    assert (again.updater.stepper.failures, again.updater.halved, again.updater.budget) == (2, True, 77)
    assert again.differences.state_dict() == counted


def test_states_go_through_files() -> None:
    state = [{"a": {"counts": torch.arange(3), "list": [1, (2.5, torch.ones(2))], "none": None}}, {}]
    plain, tensors = split_tensors(state)
    assert len(tensors) == 2 and not any(isinstance(v, torch.Tensor) for v in plain[0]["a"].values())
    back = join_tensors(plain, tensors)
    assert torch.equal(back[0]["a"]["counts"], torch.arange(3)) and torch.equal(
        back[0]["a"]["list"][1][1], torch.ones(2)
    )
    assert back[0]["a"]["list"][:1] == [1] and back[0]["a"]["none"] is None and back[1] == {}

"""Checks that came out of the museum, each on another variant of its fault than the one that is shown there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from control_toys import control_loop
from etude.core.control import ControlTask
from etude.core.edit import set_values
from etude.core.errors import CheckpointError, InvariantError
from etude.core.population import Member
from etude.core.registry import get_method
from etude.experience.groups import Groups
from etude.loops import losses, update
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.on_policy import OnPolicyLoop
from etude.loops.replay_update import ReplayUpdater
from etude.methods.rlvr.grpo import grpo
from etude.optimizers.adam import AdamW
from etude.runtime import round_trip
from etude.runtime.checkpoints import save_json, save_tensors
from etude.runtime.folder import RunFolder
from etude.runtime.progress import Progress
from etude.runtime.run import Run
from etude.runtime.stopping import Stopping
from etude.tasks import resolve_task
from language_toys import make_loop, random_policy
from replay_toys import REPLAY, small

little = grpo.replace(problems=3, experience=Groups(size=4), optimizer=AdamW(lr=1e-3))


# 5. Weights of tokens


@pytest.mark.slow
def test_a_denominator_of_the_micro_batch_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device of several normalises by its own tokens."""

    def own(method: Any, batch: Any, policy: Any) -> Any:
        return losses.loss_terms(method, losses.with_shares(method, batch, 8), policy)

    loop = make_loop(little, micro_tokens=80)
    monkeypatch.setattr(update, "loss_terms", own)
    before = [p.clone() for p in loop.policy.parameters()]
    with pytest.raises(InvariantError, match="another denominator"):
        loop.step()
    assert all(torch.equal(a, b) for a, b in zip(before, loop.policy.parameters())), "nothing was updated"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_honest_micro_batches_weigh_what_they_should(dtype: torch.dtype) -> None:
    loop = make_loop(little.replace(epochs=2, minibatches=2), policy=random_policy(dtype=dtype), micro_tokens=60)
    for _ in range(2):
        loop.step()


# 2. Slow copies


def dqn_loop() -> OffPolicyLoop:
    method = set_values(small(REPLAY["dqn"], every=1), {"critic.learning.target.every": 3})
    task = resolve_task("CartPole-v1")
    assert isinstance(task, ControlTask)
    return OffPolicyLoop(method, task, [Member(0), Member(1)], 10, block=16)


@pytest.mark.slow
def test_a_slow_copy_whose_turn_never_comes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = dqn_loop()
    monkeypatch.setattr(ReplayUpdater, "_follow", lambda *_: None)
    with pytest.raises(InvariantError, match=r"slow copy of the critic of member 0 did not follow it, .* every 3"):
        for _ in range(3):
            loop.step()


@pytest.mark.slow
def test_honest_slow_copies_follow() -> None:
    loop = dqn_loop()
    for _ in range(4):
        loop.step()
    assert loop.updater.updates > 6


# Checkpoints come back whole


def run_of(path: Path, resume: bool, until: int) -> None:
    """PPO on cart-pole up to a step."""
    ppo = set_values(get_method("ppo", world="control"), {"experience.environments": 2, "experience.steps": 8})
    folder = RunFolder.resume(path) if resume else RunFolder.create(path, {}, {"seed": 0})
    with folder:
        loop = control_loop(ppo, [0, 1], steps=3)
        stopping = Stopping(None, None, (), until)
        Run(folder, loop, 3, stopping=stopping, progress=Progress(3, quiet=True)).execute()


@pytest.mark.slow
def test_a_counter_that_is_set_back_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor, and nothing that the run itself counts: environment steps so far."""
    run_of(tmp_path / "run", resume=False, until=2)
    whole = OnPolicyLoop.load

    def load(self: OnPolicyLoop, folder: Path) -> None:
        whole(self, folder)
        self.acted = 0

    with monkeypatch.context() as patch:
        patch.setattr(OnPolicyLoop, "load", load)
        with pytest.raises(CheckpointError, match=r"was read, and acted in state\.json is not what it says"):
            run_of(tmp_path / "run", resume=True, until=3)
    left = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert left == ["step-0", "step-2"], "nothing is left of the look"
    run_of(tmp_path / "run", resume=True, until=3)


def test_what_differs_is_named(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, nan, extra in ((one, 0.0, {}), (two, 0.0, {"newer": 1})):
        folder.mkdir()
        save_json(folder / "state.json", {"a": [1, {"b": float("nan")}], "c": "x", **extra})
        save_tensors(folder / "state.safetensors", {"w": torch.tensor([float("nan"), nan])})
        (folder / "notes.txt").write_text("same")
    assert round_trip.unlike(one, two) == "", "what only the second has is no matter"
    assert round_trip.unlike(two, one) == "newer in state.json"
    save_tensors(two / "state.safetensors", {"w": torch.tensor([float("nan"), -0.0])})
    assert round_trip.unlike(one, two) == "w in state.safetensors", "to the last bit"
    state = json.loads((two / "state.json").read_text())
    state["a"][1]["b"] = 2
    (two / "state.json").write_text(json.dumps(state))
    assert round_trip.unlike(one, two) == "a[1].b in state.json"
    (two / "notes.txt").write_text("other")
    assert round_trip.unlike(one, two) == "its content in notes.txt"
    (two / "notes.txt").unlink()
    assert round_trip.unlike(one, two) == "notes.txt"

"""Checks that came out of the museum, each on another variant of its fault than the one that is shown there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from control_toys import control_loop
from etude.advantages.returns import GAE
from etude.core.control import ControlTask, Step
from etude.core.edit import set_values
from etude.core.errors import CheckpointError, InvariantError
from etude.core.population import Member
from etude.core.registry import get_method
from etude.core.transitions import Transitions
from etude.experience.beginnings import Beginnings
from etude.experience.groups import Groups
from etude.experience.vector import RolloutCollector
from etude.loops import losses, update
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.on_policy import OnPolicyLoop
from etude.loops.replay_update import ReplayUpdater
from etude.methods.rlvr.grpo import grpo
from etude.optimizers.adam import AdamW
from etude.policies.language import LanguagePolicy
from etude.references.frozen import MovingAverage
from etude.regularizers.kl import KLToReference
from etude.runtime import round_trip
from etude.runtime.checkpoints import save_json, save_tensors
from etude.runtime.folder import RunFolder
from etude.runtime.progress import Progress
from etude.runtime.run import Run
from etude.runtime.stopping import Stopping
from etude.tasks import resolve_task
from language_toys import make_loop, random_policy
from replay_toys import REPLAY, small

OBSERVATIONS = "normalize-observations"
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


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_group_that_is_cut_reads_its_held_prompt_in_any_dtype(dtype: torch.dtype) -> None:
    """What is held adds gradients up in float32, and a bfloat16 model reads it in its own dtype."""
    policy = random_policy(dtype=dtype)
    before = [p.detach().clone() for p in policy.parameters()]
    loop = make_loop(little, policy=policy, micro_tokens=16)
    loop.step()
    assert any(not torch.equal(a, b) for a, b in zip(before, loop.policy.parameters()))


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


def test_what_an_environment_gave_up_is_no_fault_of_the_checkpoint(tmp_path: Path) -> None:
    """It has said so, and its numbers are another episode's."""
    one, two = tmp_path / "one", tmp_path / "two"
    at = "state/collector/environment"
    for folder, lost, lengths in ((one, False, 3), (two, True, 0)):
        folder.mkdir()
        save_tensors(folder / "state.safetensors", {
            f"{at}/lost": torch.tensor([lost]), f"{at}/lengths": torch.tensor([lengths]), "w": torch.tensor([1.0]),
        })  # fmt: skip
    assert round_trip.unlike(one, two) == ""
    save_tensors(two / "state.safetensors", {
        f"{at}/lost": torch.tensor([False]), f"{at}/lengths": torch.tensor([0]), "w": torch.tensor([1.0]),
    })  # fmt: skip
    assert round_trip.unlike(one, two) == f"{at}/lengths in state.safetensors"


# 2. Normalisers


def normalised() -> OnPolicyLoop:
    changes = {"experience.environments": 2, "experience.steps": 8, "policy.observations": OBSERVATIONS}
    return control_loop(set_values(get_method("ppo", world="control"), changes), [0, 1])


@pytest.mark.slow
def test_a_rollout_that_is_taken_in_before_it_is_learned_from_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, where the exhibit takes it in step by step."""
    collect, loop = RolloutCollector.collect, normalised()

    def collected(self: RolloutCollector, *given: Any) -> Transitions:
        batch = collect(self, *given)
        self.actor.observe(batch.flat().observations)
        return batch

    monkeypatch.setattr(RolloutCollector, "collect", collected)
    before = loop.parameters.values.clone()
    with pytest.raises(InvariantError, match="moments of the normaliser changed while rollout 0 was collected"):
        loop.step()
    assert torch.equal(loop.parameters.values, before), "nothing was updated"


@pytest.mark.slow
def test_a_normaliser_that_learns_afterwards_is_no_fault() -> None:
    loop = normalised()
    marks = []
    for _ in range(2):
        loop.step()
        marks.append([x.clone() for x in loop.actor.transforms.buffers()])
    assert not torch.equal(marks[0][0], marks[1][0])


# 2. References


@pytest.mark.slow
def test_a_reference_that_an_average_moves_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of its own, towards which something steps that should not."""
    stepped = LanguagePolicy.updated

    def updated(self: Any) -> None:
        stepped(self)
        with torch.no_grad():
            for mine, theirs in zip(self.reference.parameters(), self.model.parameters()):
                mine.lerp_(theirs, 0.01)

    monkeypatch.setattr(LanguagePolicy, "updated", updated)
    loop = make_loop(little.replace(regularizers=(KLToReference(),)))
    loop.step()
    with pytest.raises(InvariantError, match="reference of the policy changed, and nothing was to move it"):
        loop.step()


@pytest.mark.slow
def test_a_reference_that_the_method_moves_is_no_fault(tmp_path: Path) -> None:
    method = little.replace(regularizers=(KLToReference(),), reference=MovingAverage())
    loop, again = make_loop(method), make_loop(method)
    for _ in range(2):
        loop.step()
    loop.save(tmp_path)
    again.step()
    again.load(tmp_path)
    again.step()
    assert again.finished == 3


# Beginnings and ends of episodes


def ended(first: list[float], last: list[float]) -> Step:
    """Two environments of a member, both of which ended."""
    yes, begun = np.ones((1, 2), bool), np.array(first, np.float32).reshape(1, 2, 1)
    return Step(begun, np.zeros((1, 2), np.float32), yes, ~yes, np.array(last, np.float32).reshape(2, 1))


def test_ends_that_are_beginnings_are_said_once() -> None:
    watch = Beginnings(np.zeros((1, 2, 1), np.float32))
    with pytest.warns(UserWarning, match="Each of the first 10 episodes ended with the observation"):
        for k in range(5):
            watch.ended(ended([k, k + 9], [k, k + 9]))
    watch.ended(ended([1, 2], [1, 2]))


def test_one_true_end_is_enough() -> None:
    watch = Beginnings(np.zeros((1, 2, 1), np.float32))
    for k in range(20):
        watch.ended(ended([k, k + 9], [k, k + 9 if k else 3]))
    watch = Beginnings(np.zeros((1, 2, 1), np.float32))
    for _ in range(20):  # a world of one observation
        watch.ended(ended([0, 0], [0, 0]))


def test_copies_that_begin_alike_are_said_once_and_fixed_starts_are_not() -> None:
    watch = Beginnings(np.full((1, 2, 1), 5.0, np.float32))
    with pytest.warns(UserWarning, match="All 2 environments of member 0 began their first 3 episodes alike"):
        for k in range(4):
            watch.ended(ended([k, k], [8, 9]))
    watch = Beginnings(np.full((1, 2, 1), 5.0, np.float32))
    for _ in range(4):
        watch.ended(ended([5, 5], [8, 9]))
    watch = Beginnings(np.array([[[5.0], [6.0]]], np.float32))
    for k in range(4):
        watch.ended(ended([k, k], [8, 9]))


# True ends


class Endless(GAE):
    """Returns of a user's own part: sums of all rewards of the rollout to come."""

    def returns_of_transitions(self, batch: Transitions) -> torch.Tensor:
        return batch.rewards.flip(1).cumsum(1).flip(1)


@pytest.mark.slow
def test_returns_that_go_on_after_a_true_end_are_said_once() -> None:
    ppo = set_values(get_method("ppo", world="control"), {"experience.environments": 4, "experience.steps": 64})
    loop = control_loop(ppo.replace(advantages=Endless()), [0])
    with pytest.warns(UserWarning, match="true ends of episodes the critic learns another return than the last reward"):
        loop.step()
    loop.step()
    for advantages in (GAE(), GAE(lam=1.0), GAE(gamma=0.9, lam=0.0)):
        control_loop(ppo.replace(advantages=advantages), [0, 1]).step()

"""Action masks: what is not allowed has probability 0, wherever a policy acts, learns, is evaluated or exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from etude.core.errors import ConfigError, EnvironmentFault
from etude.core.method import Method
from etude.core.population import Member, Population
from etude.core.registry import get_method
from etude.evaluation.control import play
from etude.evaluation.environment_check import check_environment
from etude.evaluation.export import export_policy
from etude.experience.action_masks import allowed, mask_of
from etude.experience.spaces import observation_shape
from etude.loops.on_policy import OnPolicyLoop
from etude.policies.control.actor import FORBIDDEN, ActorPolicy
from etude.policies.control.distributions import Categorical
from etude.tasks.control.environment import EnvironmentTask
from leaf_toys import MASKED
from solo_runs import assert_members_are_alone, assert_same, member, results

torch.set_num_threads(1)


def task(**arguments: Any) -> EnvironmentTask:
    """An environment that raises where something is done that it does not allow."""
    return EnvironmentTask(MASKED, arguments=arguments)


def method(name: str = "ppo") -> Method:
    """With small rollouts."""
    found: Any = get_method(name, "control")
    return found.replace(experience=found.experience.replace(environments=2, steps=12))  # type: ignore[no-any-return]


def masked(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, logits, FORBIDDEN)


def test_probabilities_gradients_and_entropy_are_those_of_the_subset() -> None:
    """Against torch.distributions over the allowed options alone."""
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 4, generator=g, dtype=torch.float64).requires_grad_()
    mask = torch.tensor([[1, 1, 0, 1], [0, 0, 1, 0], [1, 0, 0, 1], [1, 1, 1, 1], [0, 1, 1, 0]], dtype=torch.bool)
    space, said = Categorical((4,)), masked(logits, mask)
    for row, (values, on) in enumerate(zip(logits, mask)):
        subset = torch.distributions.Categorical(logits=values[on])
        torch.testing.assert_close(space.entropy(said[row]), subset.entropy(), atol=1e-12, rtol=1e-12)
        for i, action in enumerate(on.nonzero()[:, 0]):
            mine = space.logp(said[row], action[None].float())
            torch.testing.assert_close(mine, subset.log_prob(torch.tensor(i)), atol=1e-12, rtol=1e-12)
    assert torch.equal(said.softmax(-1)[~mask], torch.zeros(int((~mask).sum()), dtype=torch.float64))
    chosen = torch.tensor([[0.0], [2.0], [3.0], [1.0], [2.0]])
    (space.logp(said, chosen).sum() + space.entropy(said).sum()).backward()
    assert torch.equal(logits.grad[~mask], torch.zeros(int((~mask).sum()), dtype=torch.float64))  # type: ignore[index]
    assert torch.equal(space.kl(said, said), torch.zeros(5, dtype=torch.float64))


def test_sampling_and_the_likeliest_keep_to_what_is_allowed() -> None:
    g, space = torch.Generator().manual_seed(0), Categorical((3, 2))
    mask = torch.tensor([0, 1, 1, 1, 0], dtype=torch.bool)
    said = masked(torch.tensor([9.0, 0.0, 0.0, 0.0, 9.0]), mask).expand(4000, 5)
    drawn = space.sample(said, space.noise((4000,), g))
    assert drawn[:, 0].unique().tolist() == [1.0, 2.0] and drawn[:, 1].unique().tolist() == [0.0]
    assert abs(float((drawn[:, 0] == 1).double().mean()) - 0.5) < 0.04  # 5 standard errors
    assert space.mode(said[0]).tolist() == [1.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["info", "key"])
@pytest.mark.parametrize("several", [False, True], ids=["one choice", "two choices"])
def test_training_and_evaluation_never_do_what_is_not_allowed(where: str, several: bool) -> None:
    """The environment raises if they do, and three lost episodes in a row end the run."""
    goal = task(where=where, several=several)
    loop = OnPolicyLoop(method(), goal, [Member(0), Member(1)], 3)
    for _ in range(3):
        assert "environment_faults" not in loop.step().metrics
    assert loop.updater.needs and loop.actor.leaves is not None
    assert loop.actor.leaves.masked == (5 if several else 3) and tuple(loop.actor.shape) == (2,)
    for deterministic in (False, True):
        assert np.isfinite(play(loop, goal, 5, deterministic=deterministic)).all()


@pytest.mark.slow
def test_both_ways_to_say_it_give_the_same_numbers() -> None:
    one, other = (results(method(), task(where=where), [Member(0)], 2) for where in ("info", "key"))
    assert_same(member(one, 0), member(other, 0), "a mask in the observation")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "trpo", "v-mpo"])
def test_a_mask_that_allows_everything_is_no_mask(name: str) -> None:
    one, other = (results(method(name), task(where=w, ones=True), [Member(0), Member(1)], 2) for w in ("info", "none"))
    for k in range(2):
        mine, plain = member(one, k), member(other, k)
        assert mine.keys() == plain.keys()
        for key in mine:
            assert torch.equal(torch.as_tensor(mine[key]), torch.as_tensor(plain[key])), key


@pytest.mark.slow
def test_members_are_as_they_would_be_alone() -> None:
    assert_members_are_alone(method(), task(), [Member(s) for s in range(3)], (1, 3))


@pytest.mark.slow
def test_each_environment_in_a_process_of_its_own() -> None:
    goal = EnvironmentTask(MASKED, workers=True)
    vector, plain = goal.make([0], 2), task().make([0], 2)
    try:
        assert np.array_equal(vector.reset(), plain.reset())
    finally:
        vector.close()


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("none allowed", r"the action_mask allows no action.*allow one, or end the episode.*of member 0, step 3"),
        ("forgotten", r"info has no 'action_mask', which an earlier one had: every reset and step must say it"),
        ("too short", r"info\['action_mask'\] must be 3 numbers, each 0 or 1, got array\(\["),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(fault: str, sentence: str) -> None:
    loop = OnPolicyLoop(method(), task(fault=fault), [Member(0), Member(1)], 1)
    with pytest.raises(EnvironmentFault, match=sentence):
        loop.step()


def test_masks_that_fit_no_actions_are_refused() -> None:
    shape = observation_shape(spaces.Dict(action_mask=spaces.MultiBinary(4), seen=spaces.Box(-1, 1, (2,))))
    one = Population([Member(0)])
    with pytest.raises(ConfigError, match=r"has 4 numbers, and there are 3 options in Discrete\(3\): it needs one for"):
        ActorPolicy().build(shape, spaces.Discrete(3), one)
    with pytest.raises(ConfigError, match=r"Masks say which choices are allowed, of Discrete and MultiDiscrete"):
        ActorPolicy().build(shape, spaces.Box(-1, 1, (4,)), one)


def test_a_mask_of_several_choices_may_be_a_tuple_as_gymnasium_has_it() -> None:
    space = spaces.MultiDiscrete([3, 2], start=[10, 20])
    mask = mask_of({"action_mask": (np.array([1, 0, 0]), np.array([0, 1]))}, space)
    assert isinstance(mask, np.ndarray) and mask.tolist() == [1, 0, 0, 0, 1]
    assert allowed(np.array([12, 20]), space, mask).tolist() == [10, 21]


@pytest.mark.slow
def test_what_is_exported_keeps_to_it(tmp_path: Path) -> None:
    goal = task(where="key")
    loop = OnPolicyLoop(method(), goal, [Member(0), Member(1)], 2)
    loop.step()
    program: Any = torch.export.load(export_policy(loop, 1, tmp_path / "policy.pt2")).module()
    mask = torch.tensor([[0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 0, 0]], dtype=torch.int8)
    actions = program({"action_mask": mask, "seen": torch.randn(4, 2)})
    assert actions.tolist() == [2, 1, 0, 0]


@pytest.mark.slow
def test_check_plays_by_the_mask() -> None:
    found = check_environment(task(), steps=300)
    assert [f.sentence for f in found if f.level != "fact"] == []
    assert any(f.about == "mask" and "which of 3 options are allowed" in f.sentence for f in found)
    stuck = check_environment(task(fault="none allowed"), steps=300)
    assert any(
        f.level == "fault" and "allows no action, and the episode goes on (after step 3" in f.sentence for f in stuck
    )

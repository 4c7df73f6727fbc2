"""Words as Beacons: what completing pays, what the policy sees of a sub-goal, and that it is PPO without either."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.population import Member, Population
from etude.core.registry import get_method
from etude.core.worlds import World
from etude.loops.on_policy import OnPolicyLoop
from etude.methods.agents.words_as_beacons import (
    NoSubgoal,
    SubgoalBonus,
    SubgoalOffset,
    SubgoalPhrase,
    SubgoalTriple,
    phrase,
    phrases,
)
from etude.policies.control.leaves import Leaf, Leaves
from etude.tasks.control._subgoals import COLOURS, NONE, STATES, TYPES
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.minigrid_subgoals import MiniGridSubgoals

BEACONS: Any = get_method("words-as-beacons")
MEMBERS = [Member(0), Member(1)]
TASK = MiniGridSubgoals(level="MiniGrid-MultiRoom-N2-S4-v0")
KEY = [3.0, -1.0, 5.0, 4.0, 0.0]


def small(**changes: Any) -> Any:
    """Eight steps in two environments, passed over once."""
    rollout = BEACONS.experience.replace(environments=2, steps=8)
    return BEACONS.replace(**{"experience": rollout, "epochs": 2, "minibatches": 2, **changes})


def seeing(part: Any) -> Any:
    return BEACONS.policy.replace(observations=(part,))


def loop_of(method: Method, task: MiniGridSubgoals = TASK, steps: int = 3) -> OnPolicyLoop:
    return OnPolicyLoop(method, task, MEMBERS, steps)


def numbers(loop: OnPolicyLoop) -> dict[str, torch.Tensor]:
    for _ in range(2):
        loop.step()
    return {k: v.clone() for k, v in loop.policy_tensors().items()}


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_without_a_word_and_without_a_bonus_it_is_ppo_bit_for_bit() -> None:
    """PPO of control with the same slots but for `rewards`, on the same grids with nobody who teaches."""
    ppo = get_method("ppo", World.CONTROL).replace(
        **{
            slot: getattr(small(policy=seeing(NoSubgoal())), slot)
            for slot in (
                "policy", "experience", "advantages", "critic", "regularizers", "optimizer", "epochs", "minibatches"
            )
        }
    )  # fmt: skip
    plain = numbers(loop_of(ppo, TASK.replace(told=0.0)))
    own = numbers(loop_of(small(policy=seeing(NoSubgoal()), rewards=(SubgoalBonus(alpha=0.0),))))
    assert plain.keys() == own.keys() and all(torch.equal(plain[k], own[k]) for k in plain)
    longer = BEACONS.experience.replace(environments=8, steps=64)  # in which something is completed
    arms = (small(policy=seeing(NoSubgoal()), experience=longer, rewards=r) for r in ((), (SubgoalBonus(),)))
    plain, paid = (numbers(loop_of(arm)) for arm in arms)
    assert not all(torch.equal(plain[k], paid[k]) for k in plain)


@pytest.mark.slow
def test_an_input_that_never_changes_is_a_bias() -> None:
    """Weights from a code of zeros stay as they began: the policy is that of a network without them."""
    loop = loop_of(small(policy=seeing(SubgoalOffset())), TASK.replace(told=0.0))
    joint: Any = loop.actor.body
    weight = joint.joint.layers[0].weight
    before = weight.detach().clone()
    loop.step()
    assert torch.equal(weight[:, -2:], before[:, -2:]) and not torch.equal(weight[:, :32], before[:, :32])


def test_the_bonus_by_hand() -> None:
    """A limit of 40: completed by the 1st, the 10th and the 40th step since it became active, and not at all."""
    progress = torch.tensor([[[1 - 1 / 40], [1 - 10 / 40], [1 - 40 / 40], [0.0]]])
    rows: Any = SimpleNamespace(rewards=torch.tensor([[[0.0], [0.5], [1.0], [2.0]]]), progress=progress)
    found = SubgoalBonus(alpha=0.2).shape(rows).flatten()
    torch.testing.assert_close(found, torch.tensor([0.195, 0.65, 1.0, 2.0]))


@pytest.mark.slow
def test_what_is_paid_is_less_than_alpha_each_and_only_where_something_was_completed() -> None:
    loop = loop_of(small(experience=BEACONS.experience.replace(environments=8, steps=64)))
    batch = loop.collector.collect(0, loop.critic)
    assert batch.progress is not None
    bonus = loop.method.rewards[0].shape(batch) - batch.rewards
    assert bonus.any() and float(bonus.min()) >= 0 and float(bonus.max()) < 0.2
    torch.testing.assert_close(bonus, 0.2 * batch.progress)
    returns = [r for _, r, _ in loop.collector.ended]
    assert all(0 <= r <= 1 for r in returns)  # what is reported is the environment's own


def test_codes_by_hand() -> None:
    said = torch.tensor([KEY, list(NONE)])
    assert SubgoalOffset().code(said).tolist() == [[3, -1], [0, 0]]
    assert SubgoalTriple().code(said).tolist() == [[5, 4, 0], [-1, -1, -1]]
    assert NoSubgoal().code(said).tolist() == [[-1, -1, -1]] * 2
    found = SubgoalPhrase().code(said)
    assert found.shape == (2, 384) and not found[1].any()
    words = [_drawn("take"), _drawn("key")]
    expected = words[0] + words[1]
    torch.testing.assert_close(found[0], expected / expected.norm())


def _drawn(word: str) -> torch.Tensor:
    return torch.randn(384, generator=torch.Generator().manual_seed(zlib.crc32(word.encode())))


def test_phrases_are_alike_where_they_share_words() -> None:
    def code(kind: str, colour: str, state: str) -> torch.Tensor:
        at = (TYPES.index(kind), COLOURS.index(colour), STATES.index(state))
        return SubgoalPhrase().code(torch.tensor([[0.0, 0.0, *at]]))[0]

    assert phrase(TYPES.index("door"), COLOURS.index("red"), STATES.index("locked")) == "open locked door"
    assert phrase(TYPES.index("goal"), 1, 0) == "go to goal" and phrase(TYPES.index("ball"), 2, 0) == "take ball"
    yellow, red, key = code("door", "yellow", "closed"), code("door", "red", "closed"), code("key", "red", "open")
    assert float(yellow @ red) == pytest.approx(0.75, abs=0.1)  # three words of four are the same
    assert abs(float(yellow @ key)) < 0.15
    assert torch.equal(phrases(384), phrases(384)) and len(phrases(16)) == 11 * 6 * 3 + 1


def test_the_rest_of_what_is_seen_stays() -> None:
    shape = Leaves([Leaf("['direction']", "choice", (4,)), Leaf("['subgoal']", "vector", (5,))])
    module, coded = SubgoalTriple().build(shape, Population(MEMBERS))
    assert tuple(coded) == (7,) and isinstance(coded, Leaves)
    assert [leaf.size for leaf in coded.leaves] == [4, 3]
    seen = torch.tensor([[[1.0, 0, 0, 0, *KEY]]])
    assert module(seen).tolist() == [[[1, 0, 0, 0, 5, 4, 0]]]


def test_the_network_is_the_papers() -> None:
    loop = loop_of(BEACONS.replace(experience=BEACONS.experience.replace(environments=1, steps=8)))
    sizes = {k: tuple(v.shape[1:]) for k, v in loop.actor.named_parameters()}
    convolutions = [v for k, v in sizes.items() if "images" in k and "weight" in k]
    assert convolutions == [(32, 3, 3, 3), (32, 32, 3, 3), (32, 32, 3, 3)]
    assert sizes["body.joint.layers.0.weight"] == (32 + 4 + 3, 256) and sizes["head.weight"] == (256, 7)
    critic: Any = loop.critic
    assert tuple(critic.head.weight.shape) == (2, 256, 1)


def test_observations_without_a_sub_goal_are_refused() -> None:
    with pytest.raises(ConfigError, match="SubgoalTriple shows a sub-goal, and observations have no 'subgoal'"):
        OnPolicyLoop(small(), cartpole, MEMBERS, 1)
    blind = get_method("ppo", World.CONTROL).replace(rewards=(SubgoalBonus(),))
    with pytest.raises(ConfigError, match="pays for sub-goals, and the environment has none"):
        OnPolicyLoop(blind, cartpole, MEMBERS, 1).step()


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("part", [SubgoalOffset(), SubgoalTriple(), SubgoalPhrase()], ids=lambda p: p.name)
def test_it_goes_on_where_it_was(part: Any, tmp_path: Path) -> None:
    whole, again = (loop_of(small(policy=seeing(part))) for _ in range(2))
    whole.step()
    whole.save(tmp_path)
    again.load(tmp_path)
    expected, found = numbers(whole), numbers(again)
    assert all(torch.equal(expected[k], found[k]) for k in expected)
    assert np.isfinite([float(v.sum()) for v in found.values()]).all()

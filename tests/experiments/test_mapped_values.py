"""Mapped Q-learning: Q-learning as its limits, and the chains that its claim is about."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from etude.core.registry import get_method
from etude.experiments.value import map_dqn
from etude.experiments.value.map_dqn import MappedQLearning, Steps, chains, right, sweep
from etude.methods.value.map_dqn.channels import Channels
from etude.methods.value.map_dqn.decompositions import Decomposition, Ensemble, Polar, Slices, Whole
from etude.methods.value.map_dqn.maps import IdentityMap, LogMap
from etude.tasks.tabular.finite import FiniteMDP
from etude.tasks.tabular.tile_chain import TileChain

pytestmark = pytest.mark.usefixtures("one_thread")
STATES, ACTIONS, GAMMA = 5, 3, 0.9


def walked(count: int, members: int = 2) -> list[Steps]:
    """Random steps between states, with rewards of both signs; state 5 is the end."""
    g = torch.Generator().manual_seed(0)
    found = []
    for _ in range(count):
        state, action, following = (torch.randint(n, (members, 1), generator=g) for n in (STATES, ACTIONS, STATES + 1))
        found.append(Steps(state, action, torch.randn(members, 1, generator=g, dtype=torch.float64), following))
    return found


def q_learning(steps: list[Steps], rate: float, members: int = 2) -> Tensor:
    """Step by step in tables."""
    q = torch.zeros(members, STATES, ACTIONS, dtype=torch.float64)
    for step in steps:
        for k in range(members):
            s, a, r, following = (float(column[k, 0]) for column in step)
            after = 0.0 if int(following) == STATES else float(q[k, int(following)].max())
            q[k, int(s), int(a)] += rate * (r + GAMMA * after - q[k, int(s), int(a)])
    return q


def learned(channels: Channels, steps: list[Steps], rate: float, share: float, members: int = 2) -> Tensor:
    features = torch.eye(STATES, dtype=torch.float64).expand(members, -1, -1)
    learner = MappedQLearning(channels, features, ACTIONS, GAMMA, rate, share)
    for step in steps:
        learner.learn(step)
    return learner.values()


def test_one_channel_without_a_map_is_q_learning_by_the_product_of_both_steps() -> None:
    steps = walked(100)
    found = learned(Channels(decomposition=Whole(limit=None), maps=(IdentityMap(),)), steps, rate=0.4, share=0.5)
    assert torch.allclose(found, q_learning(steps, 0.2), atol=1e-12)
    assert float(found.abs().max()) > 0.5


@pytest.mark.parametrize("part", [Polar(of=Whole(limit=None)), Polar(of=Slices(count=3)), Ensemble(Polar(Slices(3)))])
def test_the_sum_of_channels_without_maps_is_q_learning(part: Decomposition) -> None:
    """Q-decomposition, all channels following the choice that is best by their sum."""
    steps = walked(100)
    found = learned(Channels(decomposition=part, maps=(IdentityMap(),)), steps, rate=0.3, share=1.0)
    assert torch.allclose(found, q_learning(steps, 0.3), atol=1e-12)


def test_a_logarithm_moves_values_by_their_ratio() -> None:
    """From f(Q) = 0.5 ln Q halfway: Q becomes sqrt(Q U), and U = 4 where Q is 0.01687 at the start."""
    channels = Channels(decomposition=Whole(limit=None), maps=(LogMap(),))
    one = torch.zeros(1, 1, dtype=torch.long)
    step = Steps(one, one, torch.full((1, 1), 4.0, dtype=torch.float64), one + STATES)
    found = learned(channels, [step], rate=0.5, share=1.0, members=1)
    assert float(found[0, 0, 0]) == pytest.approx((0.01687 * 4.0) ** 0.5)
    assert float(found[0, 1, 0]) == pytest.approx(0.01687)
    averaged = learned(channels, [step], rate=1.0, share=0.25, members=1)
    assert float(averaged[0, 0, 0]) == pytest.approx(0.75 * 0.01687 + 1.0)


def test_a_tile_moves_by_the_mean_of_the_steps_that_it_covers() -> None:
    """Two layers: states 0 and 1 share a tile of the first, and have tiles of their own in the second."""
    features = torch.tensor([[[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]], dtype=torch.float64)
    channels = Channels(decomposition=Whole(limit=None), maps=(IdentityMap(),))
    learner = MappedQLearning(channels, features, 1, GAMMA, rate=1.0)
    nothing = torch.zeros(1, 2, dtype=torch.long)
    rewards = torch.tensor([[1.0, 3.0]], dtype=torch.float64)
    learner.learn(Steps(torch.tensor([[0, 1]]), nothing, rewards, nothing + 2))
    assert torch.allclose(learner.weights[0, 0, 0], torch.tensor([1.0, 0.5, 1.5], dtype=torch.float64))


def test_chains_of_several_sizes_lie_side_by_side() -> None:
    found = chains([0, 1, 2], gamma=0.96)
    assert len(set(found.counts.tolist())) > 1
    for k, count in enumerate(found.counts.tolist()):
        alone: FiniteMDP = TileChain(states=count).mdp([0], gamma=0.96)
        assert torch.equal(found.best[k, :count], alone.optimal()[0])
        assert not found.tiles[k, count:].any() and (found.tiles[k, :count].sum(-1) == 4).all()
    steps = sweep(found.mdp, found.counts)
    seen = {(int(s), int(a)) for s, a in zip(steps.state[0], steps.action[0])}
    assert seen == {(s, a) for s in range(int(found.counts[0])) for a in range(2)}
    last = (steps.state[0] == found.counts[0] - 1) & (steps.action[0] == 1)
    assert set(steps.following[0][last].tolist()) == {60} and set(steps.reward[0][last].tolist()) == {2.0}
    middle = (steps.state[0] == 7) & (steps.action[0] == 0)
    assert steps.following[0][middle].tolist() == [6]


def test_right_actions_are_counted_where_one_is_best() -> None:
    found = chains([0, 1], gamma=0.96)
    assert right(found.best, found) == [1.0, 1.0]
    assert right(-found.best, found) == [0.0, 0.0] == right(torch.zeros_like(found.best), found)
    half = found.best.clone()
    half[0, : int(found.counts[0]) // 2] *= -1
    assert right(half, found)[0] == pytest.approx(0.5, abs=0.02)


def test_the_experiment_has_what_the_claim_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_dqn, "SWEEPS", 3)
    claim, found = get_method("map-dqn").claim, map_dqn.experiment([3, 4])
    assert claim is not None
    for pair in found:
        assert set(pair.arm) == set(pair.baseline) == {measure.name for measure in claim.measures}
        assert set(claim.equal) <= set(pair.budgets) and pair.start == {"right actions": 0.0}
    assert found[0].arm != found[1].arm

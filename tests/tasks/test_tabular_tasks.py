"""Finite decision processes: values by hand, by enumeration and by playing; the chances that tasks are made of."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from etude.core.errors import ConfigError
from etude.tasks.tabular.control import TabularArrays, TabularTask
from etude.tasks.tabular.finite import FiniteMDP, greedy, optimal_return
from etude.tasks.tabular.garnet import Garnet
from etude.tasks.tabular.n_chain import NChain
from etude.tasks.tabular.river_swim import RiverSwim
from etude.tasks.tabular.tile_chain import TileChain

LEFT, RIGHT = range(2)


def close(one: torch.Tensor, two: torch.Tensor, within: float = 1e-9) -> bool:
    return bool((one - two).abs().max() < within)


def deterministic(mdp: FiniteMDP) -> list[torch.Tensor]:
    """Every policy [1, S, A] that draws nothing."""
    _, states, actions = mdp.rewards.shape
    rows = torch.eye(actions, dtype=torch.float64)
    return [rows[list(each)][None] for each in itertools.product(range(actions), repeat=states)]


# Values


def test_the_values_of_two_states_by_hand() -> None:
    """From state 0 'stay' pays 1; 'go' leads to state 1 with 1/2 and else ends. From state 1 all pay 4 and end.

    gamma 1/2: stay for ever is worth 2; go is worth 1/2 * 1/2 * 4 = 1; so Q*(0) = (2, 1) and Q*(1) = (4, 4).
    Two steps: (1 + 1/2 * 1, 1/2 * 1/2 * 4) = (1.5, 1).
    """
    moves = torch.zeros(1, 2, 2, 2, dtype=torch.float64)
    moves[0, 0, 0, 0], moves[0, 0, 1, 1] = 1.0, 0.5
    rewards = torch.tensor([[[1.0, 0.0], [4.0, 4.0]]], dtype=torch.float64)
    start = torch.tensor([0.25, 0.75], dtype=torch.float64)
    mdp = FiniteMDP(moves, rewards, start, gamma=0.5, horizon=2)
    assert close(mdp.optimal(), torch.tensor([[[2.0, 1.0], [4.0, 4.0]]]))
    assert mdp.optimal_stages()[0].tolist() == [[[1.5, 1.0], [4.0, 4.0]], [[1.0, 0.0], [4.0, 4.0]]]
    half = torch.full((1, 2, 2), 0.5, dtype=torch.float64)
    assert mdp.evaluate(half)[0].tolist() == pytest.approx([4 / 3, 4.0])  # v = 1/2 (1 + v/2) + 1/2
    assert optimal_return(mdp).item() == 0.25 * 1.5 + 0.75 * 4


def test_value_iteration_ends_at_the_values_of_its_greedy_policy() -> None:
    mdp = Garnet().mdp(range(6), gamma=0.97)
    q = mdp.optimal()
    assert close(mdp.evaluate(greedy(q)), q.amax(-1)) and close(mdp.backup(q.amax(-1)), q)


def test_no_policy_of_a_tiny_process_is_better() -> None:
    """Every one of the 3^4 deterministic policies, and of 2^6 that change from stage to stage."""
    mdp = Garnet(states=4, actions=3, branching=2).mdp([5], gamma=0.8)
    values = torch.cat([mdp.evaluate(policy) for policy in deterministic(mdp)])
    assert len(values) == 81 and close(values.amax(0), mdp.optimal().amax(-1)[0])
    staged = RiverSwim(states=2, limit=3).mdp([0], horizon=True)
    rows = itertools.product(deterministic(staged), repeat=3)
    found = torch.cat([staged.evaluate_stages(torch.stack(each, 1)) for each in rows])
    assert len(found) == 64 and close(found.amax(0)[0], staged.optimal_stages()[0, 0].amax(-1))


def test_the_chain_of_two_ends_is_worth_the_nearer_end_discounted() -> None:
    """State s of S is s + 1 steps from the left end and S - s from the right one; the last step pays."""
    s = np.arange(50)
    best = np.maximum(0.96**s, 2 * 0.96 ** (49 - s))
    assert np.allclose(TileChain().mdp([0], gamma=0.96).optimal().amax(-1)[0].numpy(), best, atol=1e-9)


@pytest.mark.parametrize("states", [3, 10, 100])
def test_always_right_is_worth_11_in_a_chain_of_any_length(states: int) -> None:
    """N - 2 steps lead to the last of N states, and 11 of N + 9 are left."""
    mdp = NChain(states=states).mdp([0], horizon=True)
    assert optimal_return(mdp).item() == pytest.approx(11.0)
    left = greedy(torch.tensor([1.0, 0.0], dtype=torch.float64)).expand(1, states + 9, states, 2)
    assert mdp.mean(mdp.evaluate_stages(left)[:, 0]).item() == pytest.approx(0.001 * (states + 8))


def test_in_a_mixed_chain_the_seed_says_which_action_goes_right() -> None:
    """The best return is 11 all the same, and a policy that does the same everywhere gets nowhere."""
    mdp, plain = (NChain(states=20, mixed=mixed).mdp([0, 1, 2], horizon=True) for mixed in (True, False))
    assert optimal_return(mdp).tolist() == pytest.approx([11.0] * 3)
    right = mdp.transitions[..., 1, :] == plain.transitions[..., 1, :]
    share = right.all(-1).double().mean(-1)
    assert bool((share > 0).all() and (share < 1).all()) and not torch.equal(right[0], right[1])
    for action in range(2):
        always = greedy(torch.eye(2, dtype=torch.float64)[action]).expand(3, 29, 20, 2)
        assert float(mdp.mean(mdp.evaluate_stages(always)[:, 0]).max()) < 1


def test_adding_members_changes_nobodys_values() -> None:
    three, alone = (Garnet().mdp(seeds, gamma=0.9) for seeds in ([3, 5, 7], [7]))
    assert torch.equal(three.transitions[2:], alone.transitions) and torch.equal(three.rewards[2:], alone.rewards)
    policy = torch.full((1, 30, 4), 0.25, dtype=torch.float64)
    assert close(three.evaluate(policy)[2:], alone.evaluate(policy), 1e-12)
    assert not torch.equal(three.rewards[0], three.rewards[1])


# The chances


def test_garnets_lead_to_as_many_states_as_branches_and_use_them_all() -> None:
    tables = Garnet(states=7, actions=3, branching=4).tables(range(200))
    assert bool(((tables.transitions > 0).sum(-1) == 4).all()) and close(tables.transitions.sum(-1), torch.ones(1))
    reached = (tables.transitions > 0).double().mean((0, 1, 2))  # 4/7 each, of 4200 draws
    assert close(reached, torch.full((7,), 4 / 7), 4 * (4 / 7 * 3 / 7 / 4200) ** 0.5)
    chances = tables.transitions[tables.transitions > 0]  # of a uniform stick broken in four: deviation sqrt(3/80)
    assert abs(float(chances.std()) - (3 / 80) ** 0.5) < 0.005
    assert float(tables.rewards.abs().max()) <= 1 and abs(float(tables.rewards.mean())) < 0.04


def test_the_river_sweeps_back() -> None:
    tables = RiverSwim().tables([0])
    right = tables.transitions[0, :, RIGHT]
    assert right[0].tolist() == [0.4, 0.6, 0, 0, 0, 0]
    assert right[3].tolist() == pytest.approx([0, 0, 0.05, 0.6, 0.35, 0])
    assert right[5].tolist() == pytest.approx([0, 0, 0, 0, 0.4, 0.6])
    assert tables.rewards[0].sum().item() == pytest.approx(1.005)
    assert tables.transitions[0, :, LEFT].argmax(-1).tolist() == [0, 0, 1, 2, 3, 4]


def test_tiles_overlap_and_tell_no_two_far_states_alike() -> None:
    shown = TileChain().shown()
    assert (shown.sum(1) == 4).all() and shown.shape == (50, 10 + 11 + 11 + 11)
    alike = shown @ shown.T
    apart = np.abs(np.arange(50)[:, None] - np.arange(50))
    assert (alike[apart >= 5] == 0).all() and (alike[apart == 1] >= 2).all()


# As environments


def played(task: TabularTask, seeds: list[int], episodes: int, policy: torch.Tensor) -> np.ndarray:
    """[M, episodes] returns of a policy [S, A] in the first episode of as many environments."""
    vector: Any = task.make(seeds, episodes)
    random, chances = np.random.default_rng(0), policy.cumsum(-1).numpy()
    vector.reset()
    total, live = np.zeros((len(seeds), episodes)), np.ones((len(seeds), episodes), bool)
    while live.any():
        states = vector.states[..., 0]
        actions = (random.random(states.shape)[..., None] > chances[states]).sum(-1)
        step = vector.step(actions[..., None].astype(np.float32))
        total += step.rewards * live
        live &= ~(step.terminated | step.truncated)
    return total


@pytest.mark.parametrize(
    "task", [Garnet(states=6, limit=15), NChain(states=5), RiverSwim(), TileChain(states=8, limit=12)], ids=str
)
def test_what_is_played_earns_what_the_tables_say(task: TabularTask) -> None:
    """Within four standard errors, of a policy that does everything; each member by tables of its own."""
    seeds = [0, 1]
    mdp = task.mdp(seeds, horizon=True)
    states, actions = mdp.rewards.shape[1:]
    weights = 1 + torch.arange(states * actions, dtype=torch.float64).view(states, actions).sin() ** 2
    policy = weights / weights.sum(-1, keepdim=True)
    expected = mdp.mean(mdp.evaluate_stages(policy.expand(2, task.length(), states, actions))[:, 0])
    found = played(task, seeds, 4000, policy)
    errors = found.std(1) / np.sqrt(found.shape[1])
    assert (np.abs(found.mean(1) - expected.numpy()) < 4 * errors).all() and (errors > 0).all()


def test_an_episode_ends_where_chances_are_missing_and_is_seen_where_it_was() -> None:
    vector: Any = TileChain(states=3, seen="one-hot").make([0], 2)
    vector.reset()
    vector.states = np.array([[[0], [2]]])
    step = vector.step(np.array([[[LEFT], [RIGHT]]], np.float32))
    assert step.terminated.tolist() == [[True, True]] and step.rewards.tolist() == [[1.0, 2.0]]
    assert step.final.tolist() == [[1, 0, 0], [0, 0, 1]] and vector.episode.tolist() == [[1, 1]]


def test_who_does_not_arrive_is_stopped_at_the_limit() -> None:
    vector: Any = NChain(states=4).make([0], 1)
    first = vector.reset()
    assert first[0, 0].tolist() == [0, 1, 0, 0]
    steps = [vector.step(np.array([[[RIGHT]]], np.float32)) for _ in range(13)]
    assert [bool(s.truncated) for s in steps] == [False] * 12 + [True]
    assert sum(s.rewards.item() for s in steps) == 11 and not any(s.terminated.item() for s in steps)


def test_a_thermometer_shows_the_state_and_all_to_its_left() -> None:
    assert NChain(states=3, seen="thermometer").shown().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_no_draw_lies_above_chances_that_are_1_but_for_rounding() -> None:
    """Ten chances of 0.1 add up to less than 1, and the largest draw must lead to the last state that can follow."""
    moves = torch.zeros(1, 12, 1, 12, dtype=torch.float64)
    moves[..., :10] = 0.1
    start = torch.zeros(12, dtype=torch.float64)
    start[:10] = 0.1
    mdp = FiniteMDP(moves, torch.zeros(1, 12, 1, dtype=torch.float64), start)
    vector = TabularArrays(mdp, np.eye(12), 9, [0], 1, "train")
    most = np.array([[[1 - 2.0**-53]]])
    assert moves[0, 0, 0].cumsum(-1)[-1] < 1 and vector.start(most).item() == 9
    vector.states, vector.luck = np.array([[[3]]]), lambda count: most  # type: ignore[method-assign]
    after, _, ended = vector.advance(vector.states, np.zeros((1, 1, 1)))
    assert after.item() == 9 and not ended.item()


# What is refused


def test_tables_that_are_none_are_refused() -> None:
    moves, rewards = torch.full((1, 2, 1, 2), 0.5).double(), torch.zeros(1, 2, 1).double()
    start = torch.tensor([1.0, 0.0]).double()
    with pytest.raises(ConfigError, match=r"must have transitions \[P, S, A, S\]"):
        FiniteMDP(moves[..., 0], rewards, start)
    with pytest.raises(ConfigError, match="transitions must be chances"):
        FiniteMDP(moves * 1.1, rewards, start)
    with pytest.raises(ConfigError, match="start must be chances"):
        FiniteMDP(moves, rewards, start / 2)
    with pytest.raises(ConfigError, match="rewards must be finite"):
        FiniteMDP(moves, rewards / 0, start)
    with pytest.raises(ConfigError, match=r"gamma must be a number in \[0, 1\], got 2"):
        FiniteMDP(moves, rewards, start, gamma=2)
    with pytest.raises(ConfigError, match=r"need a discount: set FiniteMDP\.gamma below 1"):
        FiniteMDP(moves, rewards, start).optimal()
    with pytest.raises(ConfigError, match="need a horizon"):
        FiniteMDP(moves, rewards, start).optimal_stages()


def test_tasks_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"branching must be at most the 3 states, got 4"):
        Garnet(states=3)
    for task, least in ((NChain, 3), (RiverSwim, 2), (TileChain, 2)):
        with pytest.raises(ConfigError, match=f"states must be at least {least}, got {least - 1}"):
            task(states=least - 1)

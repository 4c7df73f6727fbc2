"""REFUEL: with one turn it is REBEL; its least loss at every history; what is shared, learned and paid."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from etude.core.edit import set_values
from etude.core.episodes import Episode, StopReason
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.methods.preference.refuel import DifferentAnswers, DifferentWhole, RelativeFutures
from etude.objectives.links import SquaredToReward
from etude.tasks.agents.number_hunt import NumberHunt
from language_toys import Toy, make_loop, random_policy

Y = 3
"""Answers at each of two turns; the user's reply says what was answered first."""


# The least loss


def tree(seed: int) -> Tensor:
    """log pi of the answers [1 + Y, Y] at the first turn and behind each answer to it, in float64."""
    return torch.randn(1 + Y, Y, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).log_softmax(-1)


def futures(now: Tensor) -> Tensor:
    """Q^pi [1 + Y, Y] of the two turns, by enumeration of what follows."""
    paid = torch.randn(Y, Y, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return torch.cat([(now[1:].exp() * paid).sum(-1)[None], paid])


def population(now: Tensor, old: Tensor, gaps: Any, eta: float) -> Tensor:
    """E[loss] [1 + Y] at each history of pairs from pi_t, `gaps(h, y, y')` giving (chance, R - R') of each."""
    link, total = SquaredToReward(eta=eta), []
    for h in range(len(now)):
        each = torch.zeros((), dtype=torch.float64)
        for y, other in product(range(Y), repeat=2):
            margin = (now - old)[h, y] - (now - old)[h, other]
            for chance, gap in gaps(h, y, other):
                each = each + (old[h, y] + old[h, other]).exp() * chance * link(
                    margin, torch.tensor(gap, dtype=torch.float64)
                )
        total.append(each)
    return torch.stack(total)


@pytest.mark.parametrize("eta", [0.5, 4.0])
def test_the_loss_is_0_at_a_step_of_mirror_descent_at_every_history(eta: float) -> None:
    """pi_{t+1} ~ pi_t exp(eta Q^{pi_t}); and with anything added that depends on the history alone."""
    old = tree(0)
    for q in (futures(old), futures(old) + torch.tensor([5.0, -2.0, 0.5, 9.0])[:, None]):
        best = (old + eta * q).log_softmax(-1)

        def gaps(h: int, y: int, other: int, q: Tensor = q) -> list[tuple[float, float]]:
            return [(1.0, float(q[h, y] - q[h, other]))]

        assert float(population(best, old, gaps, eta).max()) < 1e-24
        assert float(population((old + 0.9 * eta * q).log_softmax(-1), old, gaps, eta).min()) > 1e-4


def test_noise_of_returns_does_not_move_the_least_loss() -> None:
    """What follows the first turn is sampled: the loss is above 0 there, and its gradient 0 all the same."""
    old, eta = tree(0), 2.0
    q, paid = futures(old), futures(old)[1:]

    def sampled(h: int, y: int, other: int) -> list[tuple[float, float]]:
        if h:
            return [(0.5, float(q[h, y] - q[h, other]) + noise) for noise in (-1.0, 1.0)]
        ways = product(range(Y), repeat=2)
        return [(float((old[1 + y, a] + old[1 + other, b]).exp()), float(paid[y, a] - paid[other, b])) for a, b in ways]

    best = (old + eta * q).log_softmax(-1).requires_grad_(True)
    loss = population(best, old, sampled, eta)
    assert float(loss.detach().min()) > 0.01
    assert float(torch.autograd.grad(loss.sum(), best)[0].abs().max()) < 1e-12
    away = (old + 0.9 * eta * q).log_softmax(-1).requires_grad_(True)
    assert float(torch.autograd.grad(population(away, old, sampled, eta).sum(), away)[0].abs().max()) > 1e-3


@pytest.mark.slow
def test_with_one_turn_it_is_rebel() -> None:
    """The same samples, losses and gradients; of what rebel pays besides neither has anything here."""
    rebel: Any = get_method("rebel")
    refuel: Any = get_method("refuel")
    plain = rebel.replace(rewards=rebel.rewards[:1], reference=None, problems=3)
    found = []
    for method in (plain, refuel.replace(filters=(), problems=3)):
        loop = make_loop(method, Toy(), random_policy(seed=2))
        found.append([loop.step().metrics[k] for k in ("loss", "reward", "gradient_norm")])
    assert found[1] == pytest.approx(found[0], rel=1e-4)  # sampled in two calls, which round apart
    assert found[0][0] > 0


@pytest.mark.slow
def test_a_toy_policy_learns_what_to_say() -> None:
    method: Any = set_values(get_method("refuel"), {"filters": (), "experience.size": 8, "objective.link.eta": 4.0})
    task = Toy(max_tokens=1, scoring=lambda _, said: float(said[:1].islower()))
    loop = make_loop(method.replace(problems=3, optimizer=method.optimizer.replace(lr=5e-3)), task, random_policy())
    rewards = [loop.step().metrics["reward"] for _ in range(8)]
    assert sum(rewards[-2:]) / 2 > sum(rewards[:2]) / 2 + 0.3


# What is compared


@pytest.fixture(scope="module")
def pairs() -> tuple[list[Episode], NumberHunt, Any]:
    """Two ways to go on of each of 24 hunts of three guesses by a policy that says anything."""
    task, policy = NumberHunt(max_turns=3, noise=0.5), random_policy(seed=1, context=256)
    context = Context(task, policy, Stream(3), max_tokens=2)
    chosen = [task.problems("train")[i] for i in range(24)]
    return RelativeFutures().collect(chosen, context), task, policy


@pytest.mark.slow
def test_every_turn_is_drawn_and_both_share_what_came_before(pairs: Any) -> None:
    episodes, _, _ = pairs
    assert {e.info["turn"] for e in episodes} == {0, 1, 2}
    different = 0
    for one, other in zip(episodes[::2], episodes[1::2]):
        turn = one.info["turn"]
        assert other.info["turn"] == turn and one.group == other.group
        spoken = [[s for s in e.segments if s.role == "assistant"] for e in (one, other)]
        assert [len(s) for s in spoken] == [3, 3]  # played to the end
        begin = [e.segments.index(s[turn]) for e, s in zip((one, other), spoken)]
        before = [[t for s in e.segments[:b] for t in s.tokens] for e, b in zip((one, other), begin)]
        assert before[0] == before[1]
        for said in spoken:
            assert [any(s.action_mask) for s in said] == [k == turn for k in range(3)]
        different += spoken[0][turn].tokens != spoken[1][turn].tokens
    assert different > 20


@pytest.mark.slow
def test_the_whole_return_is_paid_at_the_turn_that_is_learned(pairs: Any) -> None:
    episodes, task, policy = pairs
    for episode in episodes:
        (learned,) = episode.turns
        assert episode.reward == learned.reward
        last = [s for s in episode.segments if s.role == "assistant"][-1].text.strip()
        game = task.environment()
        game.reset(episode.problem, episode.seed)
        game.turn = 2
        assert learned.reward == game.step(SimpleNamespace(text=last)).reward
    batch = to_batch(episodes, 0, 1.0, policy.device)
    assert batch.action_counts.max() <= 2  # of one turn


@pytest.mark.slow
def test_the_last_turn_alone_and_dialogues_that_end_before() -> None:
    task, policy = NumberHunt(max_turns=2), random_policy(seed=1, context=256)
    context = Context(task, policy, Stream(3), max_tokens=2)
    chosen = [task.problems("train")[i] for i in range(4)]
    assert {e.info["turn"] for e in RelativeFutures(turn="last").collect(chosen, context)} == {1}

    class Short(Toy):
        max_turns: ClassVar[int] = 2

    lost = RelativeFutures(turn="last").collect(Short().problems("train")[:2], Context(Short(), policy, Stream(3)))
    assert lost == []


def test_what_is_the_same_and_what_was_cut_is_left_out() -> None:
    ended, cut = SimpleNamespace(stop=StopReason.TERMINATED), SimpleNamespace(stop=StopReason.MAX_TOKENS)
    tokens = torch.tensor([[1, 5, 9], [2, 5, 9], [1, 5, 9], [1, 6, 9], [1, 5, 9], [1, 6, 9]])
    rows: Any = SimpleNamespace(tokens=tokens, action_mask=torch.tensor([[0, 1, 1]] * 6), scores=torch.zeros(6),
                                group=torch.tensor([0, 0, 1, 1, 2, 2]), episodes=[ended] * 5 + [cut])  # fmt: skip
    assert DifferentWhole().weigh(rows).tolist() == [0, 0, 1, 1, 0, 0]
    assert DifferentAnswers().weigh(rows).tolist() == [0, 0, 1, 1, 1, 1], "a cut answer counts"


def test_one_way_to_go_on_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"set experience\.size to 2 or more"):
        set_values(get_method("refuel"), {"experience.size": 1}).check()

"""INPO: its fixed point by enumeration, for preferences without an order; comparisons that are drawn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.complete import complete_token
from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.kinds import TokenMethod
from etude.core.registry import get_method
from etude.experiments.preference import inpo as claim
from etude.experiments.preference.inpo import ETA, TAU, exploitability, game, improve, labelled
from etude.loops.credit import loss
from etude.policies.tabular import SoftmaxTree
from etude.rewards.preferences import ByScore, Wins

pytestmark = pytest.mark.usefixtures("one_thread")
INPO, DPO = claim.arms()
CYCLE = torch.tensor([[[0.5, 0.9, 0.1], [0.1, 0.5, 0.9], [0.9, 0.1, 0.5]]], dtype=torch.float64)
"""Rock, paper, scissors."""


def policy_of(logp: Tensor) -> SoftmaxTree:
    policy = SoftmaxTree(*logp.shape)
    policy.logits[0].data.copy_(logp[:, None])
    return policy


def step(logp: Tensor, reference: Tensor, preference: Tensor, tau: float = TAU, eta: float = ETA) -> Tensor:
    """A step of mirror descent against oneself: log of ref^(tau/eta) pi^(1 - tau/eta) exp(P(y > pi) / eta)."""
    wins = (preference * logp.exp()[:, None]).sum(-1)
    return (tau / eta * reference + (1 - tau / eta) * logp + wins / eta).log_softmax(-1)


def slope(now: Tensor, sampled: Tensor, reference: Tensor, preference: Tensor, method: TokenMethod = INPO) -> Tensor:
    """Gradient of the population's loss at the policy `now`, pairs being sampled by another one."""
    batch, policy = labelled(policy_of(sampled), reference, preference), policy_of(now)
    assert batch.prompt is not None and batch.response is not None
    said = policy.rows(0, batch.prompt, batch.response, policy.table())
    return torch.autograd.grad(loss(complete_token(method), batch, said, 1), policy.logits[0])[0]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_loss_is_least_at_a_step_of_mirror_descent(seed: int) -> None:
    """For a random preference, in circles or not, though nobody estimates P(y > pi)."""
    first, reference, preference = game(seed)
    sampled = step(first, reference, preference)  # some policy that is not the reference
    best = step(sampled, reference, preference)
    assert float(slope(best, sampled, reference, preference).abs().max()) < 1e-14
    assert float(slope(sampled, sampled, reference, preference).abs().max()) > 1e-3


def test_tau_equal_to_eta_is_ipo_on_samples_of_the_policy() -> None:
    first, reference, preference = game(0)
    sampled = step(first, reference, preference)
    ipo = get_method("ipo")
    assert isinstance(ipo, TokenMethod) and ipo.objective is not None
    ipo = ipo.replace(objective=ipo.objective.replace(link=INPO.objective.link))  # type: ignore[union-attr]
    own = set_values(INPO, {"objective.of.denominators": ("reference-policy",)})
    assert isinstance(own, TokenMethod)
    found = [slope(first, sampled, reference, preference, method) for method in (own, ipo)]
    assert torch.equal(*found) and float(found[0].abs().max()) > 1e-3
    best = step(sampled, reference, preference, tau=ETA)
    assert float(slope(best, sampled, reference, preference, ipo).abs().max()) < 1e-14


def test_in_a_circle_the_uniform_policy_stays_and_is_not_exploitable() -> None:
    uniform = torch.zeros(1, 3, dtype=torch.float64).log_softmax(-1)
    assert float(slope(uniform, uniform, uniform, CYCLE).abs().max()) < 1e-14
    assert exploitability(uniform, uniform, CYCLE) == pytest.approx(0, abs=1e-14)
    other = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64).log_softmax(-1)
    assert exploitability(other, uniform, CYCLE) > 0.01


def test_of_a_preference_that_has_an_order_the_better_is_likelier() -> None:
    rewards = torch.tensor([[0.3, 2.0, -1.0, 1.0]], dtype=torch.float64)
    preference = (rewards[:, :, None] - rewards[:, None]).sigmoid()
    logp = reference = torch.zeros(1, 4, dtype=torch.float64).log_softmax(-1)
    for _ in range(60):
        logp = step(logp, reference, preference)
    assert logp[0].argsort().tolist() == rewards[0].argsort().tolist()
    assert exploitability(logp, reference, preference) < 1e-9


def test_exploitability_is_what_the_best_answer_gains() -> None:
    """Against a search over a grid of policies over two responses."""
    logp = torch.tensor([[0.7, 0.3]], dtype=torch.float64).log()
    reference = torch.tensor([[0.4, 0.6]], dtype=torch.float64).log()
    preference = torch.tensor([[[0.5, 0.8], [0.2, 0.5]]], dtype=torch.float64)

    def payoff(mine: Tensor) -> float:
        wins = float(mine.exp() @ preference[0] @ logp[0].exp())
        return wins - TAU * float((mine.exp() * (mine - reference[0])).sum())

    grid = torch.linspace(0.001, 0.999, 2001, dtype=torch.float64)
    best = max(payoff(torch.stack([x, 1 - x]).log()) for x in grid)
    assert exploitability(logp, reference, preference) == pytest.approx(best - payoff(logp[0]), abs=1e-5)


@pytest.mark.slow
def test_rounds_of_inpo_are_those_of_mirror_descent_and_dpo_stays_exploitable() -> None:
    first, reference, preference = game(0)
    policies, exact = [policy_of(first), policy_of(first)], first
    for _ in range(4):
        exact = step(exact, reference, preference)
        for method, policy in zip((INPO, DPO), policies):
            improve(method, policy, reference, preference, updates=150)
    own, other = (p.logp().detach()[0] for p in policies)
    assert float((own - exact).abs().max()) < 0.05
    begun = exploitability(first, reference, preference)
    assert (
        exploitability(own, reference, preference) < 0.3 * begun < begun < exploitability(other, reference, preference)
    )


# Comparisons


def rows(scores: Tensor, group: Tensor, seed: int = 0) -> Any:
    draw = torch.randint(1 << 60, scores.shape, generator=torch.Generator().manual_seed(seed))
    return SimpleNamespace(scores=scores, group=group, draw=draw)


def test_every_two_answers_are_compared_once() -> None:
    batch = rows(torch.zeros(7), torch.tensor([0, 0, 0, 0, 1, 1, 2]))
    wins = Wins().rescore_in(batch, None)
    assert [float(wins[batch.group == g].sum()) for g in range(3)] == [6, 1, 0]


def test_who_wins_is_drawn_with_the_oracles_chance() -> None:
    scores = torch.tensor([0.3, -0.2]).repeat(3_000).double()
    wins = Wins(oracle=ByScore(scale=0.5)).rescore_in(rows(scores, torch.arange(3_000).repeat_interleave(2)), None)
    chance = torch.tensor(1.0).sigmoid()
    assert float(wins[::2].mean()) == pytest.approx(
        float(chance), abs=4 * float((chance * (1 - chance) / 3_000) ** 0.5)
    )
    assert (wins[::2] + wins[1::2] == 1).all()


def test_the_same_two_answers_come_to_the_same_whatever_stands_beside_them() -> None:
    batch = rows(torch.randn(12, generator=torch.Generator().manual_seed(1)), torch.arange(4).repeat(3))
    wins = Wins().rescore_in(batch, None)
    for order in (torch.randperm(12, generator=torch.Generator().manual_seed(2)), (batch.group < 2).nonzero()[:, 0]):
        part = SimpleNamespace(scores=batch.scores[order], group=batch.group[order], draw=batch.draw[order])
        assert Wins().rescore_in(part, None).tolist() == wins[order].tolist()


def test_comparisons_of_written_answers_are_refused() -> None:
    method = get_method("inpo")
    for experience in ("pairs", "scored-answers"):
        with pytest.raises(ConfigError, match=r"Wins \(rewards\.\S+\) draws who wins|Wins draws who wins"):
            set_values(method, {"experience": experience, "objective": "dpo"}).check()

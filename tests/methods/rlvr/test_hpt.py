"""HPT: the unified estimator's cases on an enumerable softmax policy, and what the gate turns the method into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage, GroupMean
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.experience.data import Demonstrations
from etude.experience.groups import Groups
from etude.loops.bandit import Bandit
from etude.loops.losses import loss_shares
from etude.methods.rlvr.hpt import SOFT_RL, SOFT_SFT, PerformanceGate
from etude.objectives.policy_gradient import ClippedSurrogate, PolicyGradient
from etude.objectives.supervised import LogLikelihood
from etude.objectives.unified import (
    ClipMask,
    CurrentDenominator,
    Hybrid,
    SequenceClipMask,
    SequenceDenominator,
    ShapedDenominator,
    UnifiedGradient,
    UnitDenominator,
    WeightClipMask,
)
from etude.policies.tabular import SoftmaxTree
from language_toys import Toy, make_loop, random_policy

CASES = {
    "sft": UnifiedGradient(denominator=CurrentDenominator()),
    "reinforce": UnifiedGradient(denominator=CurrentDenominator()),
    "grpo": UnifiedGradient(mask=ClipMask(low=0.2, high=0.3)),
    "cispo": UnifiedGradient(mask=WeightClipMask(low=0.2, high=0.3)),
    "gspo": UnifiedGradient(denominator=SequenceDenominator(), mask=SequenceClipMask(low=0.1, high=0.15)),
    "srft": UnifiedGradient(denominator=UnitDenominator()),
    "luffy": UnifiedGradient(denominator=ShapedDenominator(shape=0.1)),
}


class Setting:
    """Forty responses of a tree, sampled by another tree, with advantages of both signs."""

    def __init__(self) -> None:
        self.tree = SoftmaxTree(1, 4, 3, ends=True, spread=1.0, seed=0)
        self.old = SoftmaxTree(1, 4, 3, ends=True, spread=1.0, seed=0)
        self.old.logits[0].data += 0.3 * torch.randn(
            self.old.logits[0].shape, generator=torch.Generator().manual_seed(5)
        )
        rewards = torch.rand(1, len(self.tree.tokens), generator=torch.Generator().manual_seed(1)).double()
        self.response = torch.arange(len(self.tree.tokens))
        self.prompt = torch.zeros_like(self.response)
        said = self.old.rows(0, self.prompt, self.response, self.old.table().detach())
        self.batch = Bandit(self.tree, rewards).batch(self.prompt, self.response, said)
        self.batch.advantages = (2 * self.batch.scores - 1)[:, None] * self.batch.action_mask
        self.mask = self.batch.action_mask

    def policy(self) -> TokenLogProbs:
        return self.tree.rows(0, self.prompt, self.response, self.tree.table())

    def gradient(self, values: Tensor) -> Tensor:
        return torch.autograd.grad(torch.where(self.mask, values, 0.0).sum(), self.tree.logits[0], retain_graph=True)[0]


def inside(rho: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    return 1.0 - ((advantage > 0) & (rho > 1 + high) | (advantage < 0) & (rho < 1 - low)).double()


def sequence_ratio(batch: TokenBatch, logp: Tensor) -> Tensor:
    size = batch.action_mask.sum(1)
    return (((logp - batch.behaviour_logp) * batch.action_mask).sum(1) / size).exp()[:, None]


def coefficient(name: str, batch: TokenBatch, logp: Tensor) -> Tensor:
    """mask / pi_ref of the catalogue's list, from scratch."""
    pi, old, advantage = logp.exp(), batch.behaviour_logp.exp(), batch.advantages
    rho, s = pi / old, sequence_ratio(batch, logp)
    return {
        "sft": 1 / pi,
        "reinforce": 1 / pi,
        "grpo": inside(rho, advantage, 0.2, 0.3) / old,
        "cispo": rho.clamp(0.8, 1.3) / rho / old,
        "gspo": inside(s.expand_as(rho), advantage, 0.1, 0.15) * s / pi,
        "srft": torch.ones_like(pi),
        "luffy": 0.1 / (pi + 0.1) ** 2,
    }[name]


@pytest.mark.parametrize("name", CASES)
def test_every_case_has_the_gradient_of_the_estimator(name: str) -> None:
    at = Setting()
    if name == "sft":
        at.batch.advantages = at.mask.double()
    said = at.policy()
    wanted = coefficient(name, at.batch, said.logp.detach()) * at.batch.advantages
    found = at.gradient(CASES[name](at.batch, said))
    torch.testing.assert_close(found, -at.gradient(wanted * said.logp.exp()), atol=1e-11, rtol=0)


def gspo(batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
    size = batch.action_mask.sum(1, keepdim=True)
    s = (((policy.logp - batch.behaviour_logp) * batch.action_mask).sum(1, keepdim=True) / size).exp()
    whole = -torch.minimum(s * batch.advantages[:, :1], s.clamp(0.9, 1.15) * batch.advantages[:, :1])
    return whole.expand_as(policy.logp) / size


def cispo(batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
    rho = (policy.logp - batch.behaviour_logp).exp().clamp(0.8, 1.3).detach()
    return -rho * batch.advantages * policy.logp


PUBLISHED: dict[str, Callable[[TokenBatch, TokenLogProbs], Tensor]] = {
    "sft": LogLikelihood(),
    "reinforce": PolicyGradient(),
    "grpo": ClippedSurrogate(low=0.2, high=0.3),
    "cispo": cispo,
    "srft": lambda batch, policy: -batch.advantages * policy.logp.exp(),
    "luffy": lambda batch, policy: -batch.advantages * policy.logp.exp() / (policy.logp.exp() + 0.1),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_case_has_the_gradient_of_the_objective_as_it_was_published(name: str) -> None:
    at = Setting()
    if name == "sft":
        at.batch.advantages = at.mask.double()
    said = at.policy()
    found = at.gradient(CASES[name](at.batch, said))
    torch.testing.assert_close(found, at.gradient(PUBLISHED[name](at.batch, said)), atol=1e-11, rtol=0)


def test_gspo_is_the_case_of_the_mean_ratio_with_tokens_averaged() -> None:
    at = Setting()
    said = at.policy()
    found = CASES["gspo"](at.batch, said) / at.mask.sum(1, keepdim=True)
    torch.testing.assert_close(at.gradient(found), at.gradient(gspo(at.batch, said)), atol=1e-11, rtol=0)


def test_the_clips_bite_in_this_setting() -> None:
    at = Setting()
    said = at.policy().logp.detach()
    for name in ("grpo", "gspo"):
        masked = CASES[name].mask(at.batch, said)[at.mask]
        assert 0.05 < float((masked == 0).double().mean()) < 0.95


def test_the_sft_gradient_is_the_estimator_under_the_distribution_of_demonstrations() -> None:
    at = Setting()
    shown = torch.rand(len(at.response), generator=torch.Generator().manual_seed(3)).double()
    shown /= shown.sum()
    at.batch.advantages = at.mask.double()
    said = at.policy()
    found = at.gradient(shown[:, None] * CASES["sft"](at.batch, said))
    whole = (shown * (said.logp * at.mask).sum(1)).sum()
    torch.testing.assert_close(found, -torch.autograd.grad(whole, at.tree.logits[0])[0], atol=1e-12, rtol=0)


def test_written_rows_are_imitated_and_sampled_ones_reinforced() -> None:
    at = Setting()
    at.batch.written = torch.arange(len(at.batch)) % 3 == 0
    said = at.policy()
    found = Hybrid(sampled=PolicyGradient(), coefficient=0.3)(at.batch, said)
    assert torch.equal(found[at.batch.written], -0.3 * said.logp[at.batch.written])
    assert torch.equal(found[~at.batch.written], PolicyGradient()(at.batch, said)[~at.batch.written])


# The gate


def gated(make_batch: Any, gate: PerformanceGate, solved: list[int], size: int = 8) -> tuple[list[float], list[float]]:
    """alpha and beta of problems of which so many of `size` completions are right."""
    count = len(solved)
    rows = [s < n and s < size for n in solved for s in range(size + 1)]
    batch = make_batch(
        [[1]] * (count * (size + 1)), solved=rows, group=[g for g in range(count) for _ in range(size + 1)],
        written=([False] * size + [True]) * count,
    )  # fmt: skip
    weights = gate.bind().weigh(batch).view(count, size + 1)
    assert bool((weights[:, :size] == weights[:, :1]).all())
    return weights[:, 0].tolist(), weights[:, size].tolist()


def test_a_steps_loss_is_the_mean_over_problems_of_the_gated_losses(make_batch) -> None:
    """Three problems of two completions, one imitated: every term of (1/Q) sum alpha L_RL + beta L_SFT from scratch."""
    hpt = get_method("hpt").bind()
    length, size = 6, [3, 5, 4, 2, 1, 4, 2, 6, 3]
    mask = [[int(t < n) for t in range(length)] for n in size]
    solved = torch.tensor([0, 0, 0, 1, 0, 0, 1, 1, 0], dtype=torch.bool)
    written = torch.tensor([0, 0, 1] * 3, dtype=torch.bool)
    batch = make_batch(mask, solved=solved, scores=solved.double(), group=[0] * 3 + [1] * 3 + [2] * 3, written=written)
    kept = batch.replace(weights=hpt.filters[0].weigh(batch))
    kept = kept.rows((kept.weights != 0).nonzero()[:, 0])
    logp = -torch.rand(len(kept), length, generator=torch.Generator().manual_seed(0)).double() * kept.action_mask
    kept = kept.replace(advantages=hpt.advantages(kept), behaviour_logp=logp)
    found = (hpt.objective(kept, TokenLogProbs(logp)) * loss_shares(hpt, kept, length)).sum()
    rewards = torch.tensor([[1.0, 0.0], [1.0, 1.0]]).double()  # of the two problems that are not imitated
    centred = rewards - rewards.mean(1, keepdim=True)
    reinforced = -(centred * torch.tensor([[2.0, 1.0], [2.0, 6.0]])).sum(1) / (2 * length)
    imitated = -logp[kept.written].sum() / 4
    assert kept.written.sum() == 1 and len(kept) == 5
    torch.testing.assert_close(found, (reinforced.sum() + imitated) / 3, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("gamma", "imitated"), [(0.0, 1), (2 / 8, 3), (-0.1, 0), (1.0, 9)])
def test_the_gate_imitates_what_is_solved_no_more_often_than_gamma(make_batch, gamma: float, imitated: int) -> None:
    alpha, beta = gated(make_batch, PerformanceGate(gamma=gamma), list(range(9)))
    assert beta == [1.0] * imitated + [0.0] * (9 - imitated)
    assert alpha == [1 - b for b in beta]


def test_the_soft_gate_is_the_papers_table(make_batch) -> None:
    alpha, beta = gated(make_batch, PerformanceGate(rl=SOFT_RL, sft=SOFT_SFT), list(range(9)))
    assert alpha[1:] == [0.0, 0.125, 0.25, 0.5, 1.0, 1.0, 1.0, 1.0]
    assert beta[1:] == [1.0, 0.5, 0.25, 0.125, 0.0, 0.0, 0.0, 0.0]
    with pytest.raises(ConfigError, match="as long as each other"):
        PerformanceGate(rl=(0.0, 1.0))


def test_with_gamma_0_imitated_is_exactly_what_fails_everywhere_where_grpo_has_no_gradient(make_batch) -> None:
    _, beta = gated(make_batch, PerformanceGate(gamma=0.0), list(range(9)))
    for solved in range(9):
        scores = [1.0] * solved + [0.0] * (8 - solved)
        teaches = bool(get_method("grpo").advantages(make_batch([[1]] * 8, scores=scores)).any())
        assert (beta[solved] > 0) == (solved == 0)
        if beta[solved]:
            assert not teaches


# The whole method


class Shown(Toy):
    """Problems with worked answers."""

    def problems(self, split: str) -> list[Problem]:
        return [
            Problem(p.id, p.prompt, info={"demonstration": f"{i}ab"}) for i, p in enumerate(super().problems(split))
        ]


def after(method: Any, steps: int = 2) -> list[Tensor]:
    """Weights after training with the same seed from the same model, in float64."""
    task = Shown(scoring=lambda problem, said: float("a" <= said[:1] <= "z"))
    loop = make_loop(method.replace(problems=3), task, random_policy(dtype=torch.float64), seed=2)
    for _ in range(steps):
        loop.step()
    return [p.detach().clone() for p in loop.policy.parameters()]


def close(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.allclose(a, b, atol=1e-9, rtol=0) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.slow
def test_below_0_hpt_is_dr_grpo_without_a_clip() -> None:
    hpt = get_method("hpt")
    ours = hpt.replace(filters=(PerformanceGate(gamma=-0.5),))
    plain = get_method("dr-grpo").replace(
        objective=UnifiedGradient(), minibatches=2, experience=Groups(size=8), regularizers=(hpt.regularizers[0].of,)
    )
    assert close(after(ours), after(plain))
    assert not close(after(hpt), after(plain))


@pytest.mark.slow
def test_from_1_hpt_is_sft_on_the_worked_answers() -> None:
    ours = get_method("hpt").replace(filters=(PerformanceGate(gamma=1.0),))
    sft = get_method("sft").replace(experience=Demonstrations(), minibatches=2)
    assert close(after(ours), after(sft))


def test_the_advantage_is_the_reward_less_the_mean_of_the_samples(make_batch) -> None:
    batch = make_batch([[1]] * 5, scores=[1.0, 0.0, 0.0, 1.0, 0.0], written=[False] * 4 + [True])
    assert get_method("hpt").advantages == GroupAdvantage(centre=GroupMean(), scale=None)
    assert get_method("hpt").advantages(batch)[:, 0].tolist() == [0.5, -0.5, -0.5, 0.5, 0.0]


@pytest.mark.parametrize("cut", [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0, 3], [1, 2]]])
def test_the_mean_over_problems_does_not_depend_on_the_cut(make_batch, cut: list[list[int]]) -> None:
    """Four problems of two completions and an answer; 1 and 2 are imitated. Each weighs a quarter, however long."""
    hpt, length = get_method("hpt").bind(), 6
    size = [3, 5, 4, 2, 1, 4, 2, 6, 2, 6, 1, 5]
    solved = torch.tensor([1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], dtype=torch.bool)
    batch = make_batch(
        [[int(t < n) for t in range(length)] for n in size], solved=solved, scores=solved.double(),
        group=[0] * 3 + [1] * 3 + [2] * 3 + [3] * 3, written=[False, False, True] * 4,
    )  # fmt: skip
    batch = batch.replace(weights=hpt.filters[0].weigh(batch))
    batch = batch.rows((batch.weights != 0).nonzero()[:, 0])
    logp = -torch.rand(len(batch), length, generator=torch.Generator().manual_seed(0)).double() * batch.action_mask
    batch = batch.replace(advantages=hpt.advantages(batch), behaviour_logp=logp)
    found = 0.0
    for problems in cut:
        rows = torch.isin(batch.group, torch.tensor(problems)).nonzero()[:, 0]
        piece = batch.rows(rows)
        found += float((hpt.objective(piece, TokenLogProbs(logp[rows])) * loss_shares(hpt, piece, length)).sum())
    reinforced = [-(0.5 * 3 - 0.5 * 5) / (2 * length), -(0.5 * 6 - 0.5 * 1) / (2 * length)]
    imitated = [-float(logp[row].sum()) / n for row, n in zip(batch.written.nonzero()[:, 0].tolist(), (4, 2))]
    assert [int(n) for n in batch.action_counts[batch.written]] == [4, 2]
    assert found / len(cut) == pytest.approx((sum(reinforced) + sum(imitated)) / 4, abs=1e-12)

"""Imitation with a discriminator for a reward: what it is paid, what the best one says, where the gradient leads."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.advantages.returns import RewardToGo
from etude.core.batches import Head, TokenBatch
from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.evaluation.exact import expected_gradient, gradient
from etude.loops.bandit import Bandit
from etude.methods.preference.rl_perspective_llm import (
    AdversarialImitation,
    discriminator_loss,
    log_odds,
    prefix_rewards,
    state_actions,
)
from etude.objectives.links import Logistic
from etude.policies.tabular import SoftmaxTree
from etude.references.frozen import Frozen
from etude.rewards.kl import KLPenalty
from etude.rewards.outcome import TaskReward
from language_toys import random_batch

TOKENS, LENGTH = 3, 2
TEXTS = list(itertools.product(range(TOKENS), repeat=LENGTH))


def softmax_policy(seed: int) -> Tensor:
    """Logits of a token behind every prefix: [1 + TOKENS, TOKENS]."""
    return torch.randn(1 + TOKENS, TOKENS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def logps(logits: Tensor) -> Tensor:
    """[Y, LENGTH] log-probabilities of the tokens of all texts."""
    logp = logits.log_softmax(-1)
    return torch.stack([torch.stack([logp[0, a], logp[1 + a, b]]) for a, b in TEXTS])


def test_what_tokens_are_paid_adds_up_to_what_the_text_is_worth() -> None:
    odds = torch.tensor([[0.5, -1.0, 3.0], [2.0, 0.25, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    found = prefix_rewards(odds, mask).sum(1).tolist()
    for total, last in zip(found, (3.0, 0.25)):
        assert total == pytest.approx(-math.log(1 - 1 / (1 + math.exp(-last))) - math.log(2), abs=1e-12)
    assert prefix_rewards(torch.zeros(2, 3), mask).abs().max() == 0


def test_with_the_best_discriminator_the_policy_descends_the_divergence_of_jensen_and_shannon() -> None:
    """By enumeration: the gradient of what is earned is that of -2 JS(p, pi), and nothing where pi is p."""
    logits, shown = softmax_policy(0).requires_grad_(True), logps(softmax_policy(1))
    for demonstrator in (shown, logps(logits).detach()):
        logp = logps(logits)
        odds = (demonstrator - logp.detach()).cumsum(1)
        worth = prefix_rewards(odds, torch.ones_like(odds, dtype=torch.bool)).sum(1)
        pi, p = logp.sum(1).exp(), demonstrator.sum(1).exp()
        (found,) = torch.autograd.grad((pi * worth).sum(), logits, retain_graph=True)
        middle = ((p + pi) / 2).log()
        divergence = (p * (p.log() - middle) + pi * (pi.log() - middle)).sum() / 2
        (expected,) = torch.autograd.grad(-2 * divergence, logits)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        assert (demonstrator is shown) == (float(found.abs().max()) > 1e-3)


def test_the_best_discriminator_says_how_much_likelier_demonstrators_are() -> None:
    """One prompt, one token: the bandit that cloning has as well, whose best policy is how often each was shown."""
    shown, said = [0] * 6 + [1] * 2 + [2] * 4, [0] * 2 + [1] * 9 + [2] * 1
    actions = torch.tensor(shown + said)
    sampled = torch.arange(24) >= 12
    best = torch.tensor([math.log(6 / 2), math.log(2 / 9), math.log(4 / 1)], dtype=torch.float64)
    for moved, still in ((0.0, True), (0.1, False)):
        values = (best + moved).requires_grad_(True)
        loss = discriminator_loss(values[actions][:, None], torch.ones(24, 1, dtype=torch.bool), sampled)
        (gradient,) = torch.autograd.grad(loss, values)
        assert (float(gradient.abs().max()) < 1e-12) == still


def test_either_kind_of_text_is_a_half_however_many_there_are() -> None:
    odds = torch.tensor([[1.0, 2.0], [-1.0, 0.5], [0.3, 9.0]], dtype=torch.float64)
    mask, sampled = torch.tensor([[True, True], [True, True], [True, False]]), torch.tensor([False, True, True])

    def cross(v: float, good: bool) -> float:
        return math.log(1 + math.exp(-v if good else v))

    shown = cross(1.0, True) + cross(2.0, True)
    said = (cross(-1.0, False) + cross(0.5, False) + cross(0.3, False)) / 2
    assert float(discriminator_loss(odds, mask, sampled)) == pytest.approx((shown + said) / 2 / 2, abs=1e-12)
    twice = torch.tensor([0, 1, 2, 1, 2])
    torch.testing.assert_close(
        discriminator_loss(odds[twice], mask[twice], sampled[twice]), discriminator_loss(odds, mask, sampled)
    )


def rows(seed: int = 0, width: int = 5) -> TokenBatch:
    """Worked answers that end in one token, and sampled texts."""
    batch, random = random_batch((4, 4)), torch.Generator().manual_seed(seed)
    written = torch.arange(len(batch)) % 2 == 0
    size = int(batch.tokens.max()) + 1
    hidden = torch.randn(*batch.tokens.shape, width, generator=random, dtype=torch.float64)
    head = Head(torch.randn(size, width, generator=random, dtype=torch.float64))
    return batch.replace(written=written, hidden=hidden, head=head, rewards=batch.rewards.double())


def context(step: int = 0) -> Context:
    return Context(None, None, Stream(3), step, 10)


def bound(**changes: Any) -> AdversarialImitation:
    return AdversarialImitation(**changes).bind()


def test_it_tells_worked_answers_from_sampled_ones_and_pays_by_what_it_says() -> None:
    batch, part = rows(), bound(weight=0.5)
    first = bound()
    first.marked(batch.replace(written=None), context())  # nothing is shown: nothing is learned
    assert first.state["updates"] == 0 and first.shape(batch).abs().max() == 0
    for step in range(40):
        part.marked(batch, context(step))
    assert part.state["updates"] == 160
    odds = log_odds(state_actions(batch), batch.action_mask, part.state["weights"])
    last = odds[torch.arange(len(batch)), batch.action_mask.int().cumsum(1).argmax(1)]
    assert last[~batch.sampled].min() > last[batch.sampled].max()
    paid = part.shape(batch)
    assert paid[~batch.action_mask].abs().max() == 0
    torch.testing.assert_close(paid.sum(1), 0.5 * (last.exp().log1p() - math.log(2)), rtol=0, atol=1e-9)


def test_a_token_is_paid_for_what_stands_before_it() -> None:
    batch, part = rows(), bound()
    part.marked(batch, context())
    middle = int(batch.action_mask.sum(0).argmax())
    later = batch.hidden.clone()  # type: ignore[union-attr]
    later[:, middle + 1 :] += 1
    before, after = part.shape(batch), part.shape(batch.replace(hidden=later))
    assert torch.equal(before[:, : middle + 1], after[:, : middle + 1]) and not torch.equal(before, after)


def test_what_brings_no_worked_answers_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing brings both: set experience=groups-and-demonstrations"):
        get_method("ppo-rlhf").replace(rewards=(AdversarialImitation(),)).check()


# One prompt, one token: four learners of one bandit

SHOWN = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
WORTH = torch.tensor([[0.9, -0.3, 0.4, 1.7]], dtype=torch.float64)
"""How often a demonstrator says each of four actions, and what they are worth: most is what it says least."""


def bandit(chances: Tensor, worth: Tensor = WORTH, **info: Any) -> Bandit:
    """Of a policy with these chances."""
    return Bandit(sayer(chances), worth, [Problem("x", "?", info=info)])


def sayer(chances: Tensor) -> SoftmaxTree:
    tree = SoftmaxTree(1, len(chances))
    tree.logits[0].data[0, 0] = chances.log()
    return tree


def slope(method: Any, given: Bandit, **others: SoftmaxTree) -> Tensor:
    """Of the method's expected loss, by the logits [4]."""
    return expected_gradient(method, given, 1, **others)[0, 0]


def plain(*rewards: Any) -> Any:
    """REINFORCE without a baseline."""
    method: Any = get_method("reinforce")
    return method.replace(advantages=RewardToGo(baseline=None), rewards=(TaskReward(), *rewards))


EVEN = torch.full((4,), 0.25, dtype=torch.float64)


@pytest.mark.slow
def test_cloning_comes_to_what_was_shown() -> None:
    """Its loss is convex in logits, with the gradient pi - p."""
    for chances in (EVEN, SHOWN, SHOWN.flip(0)):
        found = slope(get_method("sft"), bandit(chances), behaviour=sayer(SHOWN))
        torch.testing.assert_close(found, chances - SHOWN, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_ascent_on_what_the_best_discriminator_pays_comes_to_what_was_shown_as_well() -> None:
    """By steps along the exact gradient, which is that of the method; nothing is told apart in the end."""
    policy, one = sayer(EVEN), torch.ones(4, 1, dtype=torch.bool)
    for step in range(400):
        paid = prefix_rewards((SHOWN.log() - policy.logp().detach()[0, 0])[:, None], one)[:, 0]
        ascent = gradient((policy.probs() * paid).sum(), policy)
        if step in (0, 399):
            torch.testing.assert_close(slope(plain(), Bandit(policy, paid[None])), -ascent[0, 0], rtol=0, atol=1e-13)
        assert step or float(ascent.norm()) > 0.01
        policy.logits[0].data += 4 * ascent
    torch.testing.assert_close(policy.probs().detach()[0, 0], SHOWN, rtol=0, atol=1e-8)
    assert float(paid.abs().max()) < 1e-7


@pytest.mark.slow
def test_scores_of_pairs_and_a_divergence_come_to_the_tilted_reference() -> None:
    """Bradley and Terry's scores, learned from how often each of two wins, then E[r] - beta KL(pi || ref)."""
    beta, truth = 0.5, WORTH[0]
    chances, scores = (truth[:, None] - truth).sigmoid(), torch.zeros(4, dtype=torch.float64, requires_grad=True)
    for _ in range(400):
        said = (chances * Logistic(beta=1.0)(scores[:, None] - scores, torch.ones(4, 4))).sum()
        scores.data -= torch.autograd.grad(said, scores)[0]
    model = scores.detach()
    torch.testing.assert_close(model - model[0], truth - truth[0], rtol=0, atol=1e-9)  # but for a constant
    method, held = plain(KLPenalty(coefficient=beta)).replace(reference=Frozen()), sayer(SHOWN)
    tilted = SHOWN * (truth / beta).exp()
    tilted /= tilted.sum()
    assert float(slope(method, bandit(tilted, model[None]), reference=held).abs().max()) < 1e-9
    for other in (EVEN, SHOWN, (truth / beta).softmax(0)):
        given = bandit(other, model[None])
        logp = given.policy.logp()[0, 0]
        worth = (logp.exp() * (model - beta * (logp - SHOWN.log()))).sum()
        found = slope(method, given, reference=held)
        torch.testing.assert_close(found, -gradient(worth, given.policy)[0, 0], rtol=0, atol=1e-12)
        assert float(found.norm()) > 0.05


@pytest.mark.slow
def test_offline_learners_of_one_reward_name_the_same_best_action() -> None:
    """Leftovers of what the demonstrator said, and logits as values; cloning names another."""
    shown, value = sayer(SHOWN), float(SHOWN @ WORTH[0])
    gained, best = SHOWN * (WORTH[0] - value).clamp(min=0), EVEN
    for _ in range(300):  # where A-LoL stays: pi ~ ref clip(pi / ref, 0.1, 1.9) A
        best = gained * (best / SHOWN).clamp(0.1, 1.9)
        best = (best / best.sum()).clamp(min=1e-12)
    leftover: Any = get_method("a-lol-offline").replace(experience=get_method("reinforce").slots()["experience"])
    found = slope(leftover, bandit(best, value=value), behaviour=shown, reference=shown)
    assert float(found.abs().max()) < 1e-9
    assert float(slope(leftover, bandit(EVEN, value=value), behaviour=shown, reference=shown).norm()) > 0.05
    values: Any = get_method("planning-q-learning").replace(rewards=(TaskReward(),))
    for logits in (WORTH[0], torch.zeros(4, dtype=torch.float64)):
        given = bandit(EVEN)
        given.policy.logits[0].data[0, 0] = logits
        found = slope(values, given, behaviour=shown)
        torch.testing.assert_close(found, 2 * SHOWN * (logits - WORTH[0]), rtol=0, atol=1e-12)  # least at Q = r
    assert best.argmax() == WORTH.argmax() == 3 != SHOWN.argmax()

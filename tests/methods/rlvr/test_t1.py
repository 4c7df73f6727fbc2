"""T1: the scaled KL, the moving anchor, and that what is left without them is RLOO."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.evaluation.budget import accuracy_by_budget, forced
from etude.evaluation.difficulty import guessable, pass_rates
from etude.evaluation.exact import expected_gradient, gradient
from etude.loops.bandit import Bandit
from etude.loops.losses import loss_terms, with_shares
from etude.methods.rlvr.t1 import ScaledKL, TrialAndError, log_ratios, mistaken, scaled_kl
from etude.policies.language import LanguagePolicy
from etude.policies.tabular import SoftmaxTree
from etude.references.frozen import Frozen, Periodic
from etude.rewards.unexpected import PatternPenalty, is_garbled, repeats
from etude.tasks.language.sums import sums
from language_toys import Toy, draws, make_loop, random_policy

T1, RLOO = get_method("t1"), get_method("rloo")


def bandit(vocabulary: int = 3, length: int = 2) -> Bandit:
    tree = SoftmaxTree(1, vocabulary, length, ends=True, spread=1.0, seed=0)
    rewards = torch.rand(1, len(tree.tokens), generator=torch.Generator().manual_seed(4)).round(decimals=1).double()
    return Bandit(tree, rewards)


def plain(**slots: Any) -> Any:
    """T1 without entropy, KL and penalty."""
    return T1.replace(rewards=RLOO.rewards, regularizers=(), **slots)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_without_entropy_kl_and_penalty_the_expected_gradient_is_that_of_the_reward(size: int) -> None:
    at = bandit()
    exact = gradient((at.policy.probs()[0] * at.rewards).sum(), at.policy)
    found = expected_gradient(plain(filters=()), at, size) * at.policy.length
    torch.testing.assert_close(found, -exact, atol=1e-12, rtol=0)


@pytest.mark.slow
def test_without_entropy_kl_and_penalty_it_is_rloo() -> None:
    at = bandit()
    for method in (plain(), plain(filters=())):
        found = expected_gradient(method, at, 2)
        torch.testing.assert_close(found, expected_gradient(RLOO, at, 2), atol=1e-12, rtol=0)
    assert not torch.allclose(expected_gradient(T1.replace(rewards=RLOO.rewards), at, 2), found)


@pytest.mark.parametrize("limit", [3, 3000])
def test_the_entropy_bonus_is_a_mean_per_token_whatever_the_limit_of_length(make_batch, logprobs, limit: int) -> None:
    """Entropies 1 and 3 in one completion, 5 in the other: -0.001 (2 + 5) / 2, not their sum over B L."""
    batch = make_batch([[0, 1, 1], [0, 1, 0]]).replace(advantages=torch.zeros(2, 3, dtype=torch.float64))
    batch = with_shares(T1, batch, limit)
    said = logprobs([[0.0] * 3] * 2, entropy=[[9.0, 1.0, 3.0], [9.0, 5.0, 9.0]])
    terms = loss_terms(T1, batch, said)
    assert float(terms["regularizer/per-completion"].total) == pytest.approx(-0.0035, abs=1e-15)


def test_advantages_sum_to_zero_and_tend_to_the_exact_mean(make_batch) -> None:
    rate = 0.3
    for size, bound in ((10, 0.08), (100, 0.008), (1000, 0.0008)):
        scores = torch.zeros(size, dtype=torch.float64)
        scores[: int(rate * size)] = 1.0
        found = T1.advantages(make_batch([[1]] * size, scores=scores))[:, 0]
        assert abs(float(found.sum())) < 1e-9
        assert float((found - (scores - rate)).abs().max()) < bound


def test_scaling_every_kl_leaves_the_penalty_as_it_was() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]], dtype=torch.bool)
    k = torch.randn(2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = scaled_kl(k, mask)
    for factor in (1e-2, 3.0, 1e4):
        torch.testing.assert_close(scaled_kl(factor * k, mask), found, atol=1e-12, rtol=0)
    assert float(found[mask].std(correction=0)) == pytest.approx(1.0, abs=1e-12)
    torch.testing.assert_close(found[mask], k[mask] / k[mask].std(correction=0), atol=1e-12, rtol=0)
    assert not found[~mask].any()


def test_the_penalty_is_the_sum_of_scaled_log_ratios() -> None:
    at, other = bandit(), SoftmaxTree(1, 3, 2, ends=True, spread=1.0, seed=9)
    response = torch.tensor([0, 3, 5, 6])
    prompt = torch.zeros_like(response)
    said = at.policy.rows(0, prompt, response, at.policy.table().detach())
    held = other.rows(0, prompt, response, other.table().detach()).logp
    batch = at.batch(prompt, response, said, held)
    batch.hidden, batch.head = at.policy.hidden(prompt, response), at.policy.head(0)
    torch.testing.assert_close(log_ratios(batch), said.logp - held, atol=1e-12, rtol=0)
    k = (said.logp - held)[batch.action_mask]
    sums_of = torch.stack([(said.logp - held)[i, batch.action_mask[i]].sum() for i in range(4)])
    expected = batch.scores - 0.01 * sums_of / k.std(correction=0)
    torch.testing.assert_close(ScaledKL().rescore(batch), expected, atol=1e-12, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("reference", "zero"), [(Periodic(every=1), True), (Frozen(), False)])
def test_an_anchor_that_is_the_policy_costs_nothing(reference: Any, zero: bool) -> None:
    """a = 0: the KL in reward is exactly zero in every step, even under top-p; a = 1: not after the first."""
    method = T1.replace(reference=reference, problems=3, experience=T1.experience.replace(size=4))
    loop = make_loop(method, Toy(), random_policy(dtype=torch.float64))
    paid = [loop.step().metrics["reward/scaled-kl"] for _ in range(3)]
    assert paid[0] == 0.0
    assert (paid[1:] == [0.0, 0.0]) == zero


@pytest.mark.slow
def test_with_a_of_1_the_anchor_is_the_first_policy_and_in_between_it_follows() -> None:
    method = T1.replace(problems=3, experience=T1.experience.replace(size=4))
    loop = make_loop(method, Toy(), random_policy(dtype=torch.float64))
    first = [p.detach().clone() for p in loop.policy.model.parameters()]
    loop.step()
    for start, now, anchor in zip(first, loop.policy.model.parameters(), loop.policy.reference.parameters()):
        torch.testing.assert_close(anchor.detach(), 0.99 * start + 0.01 * now.detach(), atol=1e-12, rtol=0)


def test_groups_are_dropped_by_their_rewards_before_the_kl(make_batch) -> None:
    batch = make_batch([[1]] * 4, scores=[0.9, 1.1, 0.2, 0.3], group=[0, 0, 1, 1])
    batch.outcomes = torch.tensor([1.0, 1.0, 0.0, 1.0])
    assert T1.filters[0].weigh(batch).tolist() == [0.0, 0.0, 1.0, 1.0]


# Patterns


@pytest.mark.parametrize(
    ("text", "found"),
    [("aaaaa", True), ("aaaa", False), ("xabababababy", True), ("abcabcabcabcabd", False), ("", False), ("abc", False)],
)  # fmt: skip
def test_loops_are_runs_that_stand_five_times_in_a_row(text: str, found: bool) -> None:
    assert repeats([ord(c) for c in text], times=5, longest=16) == found


def test_loops_longer_than_the_limit_do_not_count() -> None:
    loop = list(range(7)) * 5
    assert repeats(loop, 5, 7)
    assert not repeats(loop, 5, 6)


def test_each_pattern_costs_one() -> None:
    def episode(text: str, stop: StopReason = StopReason.TERMINATED) -> Episode:
        said = Segment("assistant", text, [ord(c) for c in text], [1] * len(text), [0.0] * len(text))
        return Episode(Problem("p", "?"), [said], stop=stop)

    context = Context(None, None, Stream(0))
    texts = [episode("8,17,19"), episode("7,7,7,7,7,"), episode("8,17", StopReason.MAX_TOKENS), episode("8\ufffd")]
    assert PatternPenalty().score(texts, context) == [0.0, -1.0, -1.0, -1.0]
    assert PatternPenalty(cut=False, garbled=False, weight=0.5).score(texts, context) == [0.0, -0.5, 0.0, 0.0]
    assert [is_garbled(t) for t in ("a\nb\tc é", "\x07", "\ufffd")] == [False, True, True]


# The first stage, and what is measured around the second


def test_worked_answers_go_wrong_once_and_on_rightly() -> None:
    policy, problems = LanguagePolicy.load("tiny", device="cpu"), sums.problems("train")[:6]
    context = Context(sums, policy, Stream(0))
    for episode in TrialAndError(rate=1.0).collect(problems, context):
        text = policy.decode(episode.segments[-1].tokens)
        right = sums.demonstration(episode.problem)
        steps = text.split(",")
        assert text != right
        assert sums.score(episode.problem, text) == 1.0
        assert ",".join(s for s in steps if not s.endswith("!")) == right
        assert len(steps) == len(right.split(",")) + 1
        assert episode.written
        assert episode.action_count == len(policy.encode(text)) + 1
    plain = [e.completion for e in TrialAndError(rate=0.0).collect(problems, context)]
    assert plain == [sums.demonstration(p) for p in problems]
    assert mistaken("f1:abc", Stream(1)) != "f1:abc"


def close(problem: Problem, text: str) -> str:
    return text.rpartition(",")[0] + "," * ("," in text)


@pytest.mark.slow
def test_accuracy_by_budget_of_everything_is_accuracy_and_of_nothing_a_guess() -> None:
    policy, easy = LanguagePolicy.load("tiny", device="cpu"), sums.replace(terms=(3,))
    none, all_ = accuracy_by_budget(policy, easy, [0, 48], closing=close, problems=20, samples=2, until=",")
    rates = pass_rates(policy, easy, easy.problems("test")[:20], samples=2)
    assert all_ == pytest.approx(sum(rates) / 20, abs=0.15)
    assert none < all_
    problem = easy.problems("test")[0]
    said = sums.demonstration(problem)
    assert forced(policy, easy, [(problem, said)] * 2, tokens=1, draws=draws(2), until=r"(?s).*") == [True, True]
    assert guessable(policy, easy, [problem], lambda p: said, tries=2, tokens=1)[0] in (True, False)

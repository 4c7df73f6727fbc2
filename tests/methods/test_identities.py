"""What the methods' papers prove, checked on a policy small enough to enumerate: a softmax over two tokens of three.

Everything is exact: expectations are sums over all completions (or all pairs of them), in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from etude.advantages.group import BatchMean
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.method import Method
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.objectives.aggregation import token_shares
from etude.rewards.outcome import OverlongPenalty

V = 3
MASK = [[0, 1, 1]]
REWARDS = torch.tensor([[0.0, 1.0, 0.2], [0.7, -0.4, 0.0], [2.0, 0.1, 0.3]], dtype=torch.float64)


@dataclass
class Policy:
    """pi(a, b) = softmax(first)[a] softmax(second[a])[b]."""

    first: Tensor
    second: Tensor

    @staticmethod
    def random(seed: int = 0) -> Policy:
        g = torch.Generator().manual_seed(seed)
        first, second = torch.randn(V, generator=g, dtype=torch.float64), torch.randn(V, V, generator=g).double()
        return Policy(first.requires_grad_(True), second.requires_grad_(True))

    def logp(self, pairs: Tensor) -> Tensor:
        """[B, 3] log-probabilities of completions [B, 2]; entry 0 is the prompt."""
        a, b = pairs.T
        one, two = self.first.log_softmax(0)[a], self.second.log_softmax(1)[a, b]
        return torch.stack([torch.zeros_like(one), one, two], 1)

    def gradient(self, loss: Tensor) -> Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, (self.first, self.second))])


OUTCOMES = torch.tensor(list(itertools.product(range(V), range(V))))


def exact_gradient(policy: Policy) -> Tensor:
    """grad of J = E[r]."""
    return policy.gradient((policy.logp(OUTCOMES).sum(1).exp() * REWARDS.flatten()).sum())


def loss_gradient(method: Method, policy: Policy, batch: TokenBatch) -> Tensor:
    """-grad of the method's loss on a batch, each completion's token losses summed and completions averaged."""
    batch.advantages = method.advantages(batch)
    logp = policy.logp(batch.tokens[:, 1:])
    batch.behaviour_logp = logp.detach()
    loss = method.objective(batch, TokenLogProbs(logp)) * token_shares("fixed-length", batch.action_mask, 1)
    return -policy.gradient(loss.sum())


def batch_of(make_batch: Callable[..., TokenBatch], completions: Tensor, group: list[int] | None = None) -> TokenBatch:
    count = len(completions)
    scores = REWARDS[completions[:, 0], completions[:, 1]]
    rewards = torch.zeros(count, 3, dtype=torch.float64)
    rewards[:, 2] = scores
    tokens = torch.cat([torch.zeros(count, 1, dtype=torch.long), completions], 1)
    return make_batch(MASK * count, tokens=tokens, rewards=rewards, scores=scores, group=group or [0] * count)


def expected_gradient(method: Method, policy: Policy, make_batch: Callable[..., TokenBatch], size: int) -> Tensor:
    """E over all groups of `size` independent completions."""
    total = torch.zeros(V + V * V, dtype=torch.float64)
    for rows in itertools.product(range(len(OUTCOMES)), repeat=size):
        chosen = OUTCOMES[list(rows)]
        chance = policy.logp(chosen).sum().exp().detach()
        total += chance * loss_gradient(method, policy, batch_of(make_batch, chosen))
    return total


def with_baseline(baseline: BatchMean | None) -> Method:
    reinforce = get_method("reinforce")
    return reinforce.replace(advantages=reinforce.advantages.replace(baseline=baseline))


def test_reinforce_without_baseline_is_unbiased(make_batch) -> None:
    policy = Policy.random()
    found = expected_gradient(with_baseline(None), policy, make_batch, 1)
    torch.testing.assert_close(found, exact_gradient(policy), atol=1e-12, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_the_batch_mean_as_a_baseline_shrinks_the_gradient_by_one_sample(make_batch, size: int) -> None:
    """The mean holds the sample itself: E = (n - 1) / n grad J, a matter of scale that vanishes with n."""
    policy = Policy.random()
    found = expected_gradient(with_baseline(BatchMean()), policy, make_batch, size)
    torch.testing.assert_close(found, (size - 1) / size * exact_gradient(policy), atol=1e-12, rtol=0)


@pytest.mark.parametrize("seed", [0, 1])
def test_rloo_is_unbiased(make_batch, seed: int) -> None:
    policy = Policy.random(seed)
    found = expected_gradient(get_method("rloo"), policy, make_batch, 2)
    torch.testing.assert_close(found, exact_gradient(policy), atol=1e-12, rtol=0)


@pytest.mark.slow
def test_dr_grpo_is_unbiased_up_to_a_constant_and_grpo_is_not(make_batch) -> None:
    policy = Policy.random()
    exact = exact_gradient(policy)
    found = expected_gradient(get_method("dr-grpo"), policy, make_batch, 2)
    torch.testing.assert_close(found, exact / 2, atol=1e-12, rtol=0)
    turned = expected_gradient(get_method("grpo"), policy, make_batch, 2)
    assert torch.cosine_similarity(turned, exact, dim=0) < 0.999


def test_gpg_with_deviation_and_without_correction_is_grpo(make_batch) -> None:
    policy, grpo = Policy.random(), get_method("grpo")
    rows, group = OUTCOMES[[0, 1, 5, 6, 2, 2]], [0, 0, 0, 1, 1, 1]
    gpg = grpo.replace(objective=get_method("gpg").objective)
    found = [loss_gradient(m, policy, batch_of(make_batch, rows, group)) for m in (gpg, grpo)]
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=0)


def test_gpg_alpha_makes_the_mean_one_over_the_groups_that_teach(make_batch) -> None:
    policy, gpg = Policy.random(), get_method("gpg")
    rows, group = OUTCOMES[[0, 1, 3, 3, 6, 2, 5, 5]], [0, 0, 1, 1, 2, 2, 3, 3]  # groups 1 and 3 are all equal
    whole = batch_of(make_batch, rows, group)
    kept = whole.rows(torch.tensor([0, 1, 4, 5]))
    found, valid = loss_gradient(gpg, policy, whole), loss_gradient(gpg, policy, kept)
    torch.testing.assert_close(found, valid, atol=1e-12, rtol=0)
    plain = gpg.replace(advantages=gpg.advantages.of)
    torch.testing.assert_close(found, 4 / 2 * loss_gradient(plain, policy, whole), atol=1e-12, rtol=0)  # B / (B - M)
    torch.testing.assert_close(valid, loss_gradient(plain, policy, kept), atol=1e-12, rtol=0)  # M = 0: alpha = 1


def test_gpg_learns_nothing_from_groups_that_are_all_equal(make_batch) -> None:
    batch = batch_of(make_batch, OUTCOMES[[3, 3, 5, 5]], [0, 0, 1, 1])
    assert not get_method("gpg").advantages(batch).any()


def test_gpg_expectation_is_one_sample_short_of_rloo(make_batch) -> None:
    """(G - 1) / G grad J, the correction aside: it depends on the samples."""
    policy, gpg = Policy.random(), get_method("gpg")
    found = expected_gradient(gpg.replace(advantages=gpg.advantages.of), policy, make_batch, 2)
    torch.testing.assert_close(found, exact_gradient(policy) / 2, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("valid", "kept"), [(0, 0), (2, 4), (3, 10), (5, 10)])
def test_gpg_keeps_a_batch_of_which_enough_teaches(make_batch, valid: int, kept: int) -> None:
    """Five groups of two, `valid` of them of use; below 60 % only those stay."""
    scores = [float(row % 2 == 0 and row // 2 < valid) for row in range(10)]
    batch = make_batch([[0, 1]] * 10, scores=scores, group=[row // 2 for row in range(10)])
    weights = get_method("gpg").filters[0].weigh(batch)
    assert weights.tolist() == [float(row < kept) for row in range(10)]


def test_dapo_drops_exactly_the_groups_without_difference(make_batch) -> None:
    batch = make_batch([[0, 1]] * 6, scores=[1.0, 1.0, 0.0, 1.0, 0.0, 0.0], group=[4, 4, 0, 0, 9, 9])
    assert get_method("dapo").filters[0].weigh(batch).tolist() == [0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("length", "stop", "penalty"),
    [
        (1, StopReason.TERMINATED, 0.0),
        (80, StopReason.TERMINATED, 0.0),
        (85, StopReason.TERMINATED, -0.25),
        (90, StopReason.TERMINATED, -0.5),
        (100, StopReason.TERMINATED, -1.0),
        (100, StopReason.MAX_TOKENS, -1.0),
        (20, StopReason.MAX_TOKENS, -1.0),
        (20, StopReason.CONTEXT_OVERFLOW, -1.0),
        (20, StopReason.MAX_TURNS, 0.0),
        (20, StopReason.TRUNCATED, 0.0),
    ],
)
def test_dapo_overlong_punishment(length: int, stop: StopReason, penalty: float) -> None:
    said = Segment("assistant", "", [0] * length, [1] * length, [0.0] * length)
    episode = Episode(Problem("1", ""), [said], stop=stop)
    context = Context(task=None, policy=None, stream=None, max_tokens=100)
    overlong = next(p for p in get_method("dapo").rewards if p.name == "overlong-penalty")
    assert overlong.score([episode], context) == [pytest.approx(penalty, abs=1e-12)]


@pytest.mark.parametrize(
    ("lengths", "stop", "penalty"),
    [
        ([60, 60], StopReason.TERMINATED, 0.0),
        ([70, 90, 85], StopReason.TRUNCATED, -0.75),
        ([90, 20], StopReason.CONTEXT_OVERFLOW, -1.5),
        ([100, 20], StopReason.MAX_TURNS, -1.0),  # the first of them was cut
        ([100, 100], StopReason.MAX_TOKENS, -2.0),
    ],
)
@pytest.mark.parametrize("buffer", [0.2, 0.0])
def test_dapo_overlong_punishment_is_of_every_turn(
    lengths: list[int], stop: StopReason, penalty: float, buffer: float
) -> None:
    segments = [
        Segment(role, "", [0] * n, [int(role == "assistant")] * n, [0.0] * n)
        for n in lengths
        for role, n in (("user", 50), ("assistant", n))
    ]
    context = Context(task=None, policy=None, stream=None, max_tokens=100)
    part = OverlongPenalty(buffer=buffer, weight=0.5)
    if buffer == 0:  # nothing before the limit
        penalty = -float(sum(n == 100 for n in lengths[:-1]) + (stop.cut or lengths[-1] == 100))
    found = part.score([Episode(Problem("1", ""), segments, stop=stop)], context)
    assert found == [pytest.approx(0.5 * penalty, abs=1e-12)]


def test_lite_ppo_token_mean_is_the_sequence_mean_for_equal_lengths() -> None:
    mask = torch.tensor([[0, 1, 1], [1, 1, 0]], dtype=torch.bool)
    lite, grpo = (token_shares(get_method(m).aggregation, mask, 9) for m in ("lite-ppo", "grpo"))
    assert torch.equal(lite, grpo)


def test_rloo_and_dr_grpo_weigh_tokens_alike() -> None:
    assert get_method("rloo").aggregation == get_method("dr-grpo").aggregation == "fixed-length"

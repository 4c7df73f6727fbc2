"""Forking tokens: which tokens are kept, and what that does to DAPO's loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.registry import get_method
from etude.evaluation.tokens import entropy_by_token, entropy_change, high_entropy_overlap, token_entropies
from etude.loops.losses import loss_terms, with_factors, with_shares
from etude.methods.rlvr.forking_tokens import ForkingGroups
from etude.objectives.policy_gradient import PolicyGradient
from etude.policies.sampling import Sampling, _draw
from etude.token_weights.entropy import HighEntropyTokens
from language_toys import draws, make_loop, random_batch, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")
FORKING, DAPO = get_method("forking-tokens"), get_method("dapo")
F64 = torch.float64


@pytest.fixture
def setting(make_batch: Callable[..., TokenBatch]) -> tuple[TokenBatch, TokenLogProbs]:
    """6 rows of up to 7 tokens after a prompt token, with distinct entropies; padding has the largest of all."""
    random = torch.Generator().manual_seed(0)
    lengths = torch.tensor([7, 2, 5, 1, 6, 4])
    mask = (torch.arange(8) > 0) & (torch.arange(8) <= lengths[:, None])
    draw = lambda: torch.rand(mask.shape, generator=random, dtype=F64)  # noqa: E731
    behaviour = draw() - 2
    batch = make_batch(
        mask, behaviour_logp=behaviour, group=[0, 0, 0, 1, 1, 1],
        advantages=(draw()[:, :1] - 0.5) * mask,
    )  # fmt: skip
    logp = (behaviour + draw() - 0.5).requires_grad_(True)
    return batch, TokenLogProbs(logp, entropy=torch.where(mask, draw(), 9.0))


def loss_of(method: Method, batch: TokenBatch, policy: TokenLogProbs) -> torch.Tensor:
    factors = [part(batch, policy) for part in method.token_weights]
    return loss_terms(method, with_factors(method, with_shares(method, batch, 8), factors), policy)["objective"].total


def keeping(**fields: Any) -> Method:
    return FORKING.replace(token_weights=(HighEntropyTokens(**fields),))


def test_with_all_tokens_it_is_dapo(setting: tuple[TokenBatch, TokenLogProbs]) -> None:
    batch, policy = setting
    losses = [loss_of(m, batch, policy) for m in (keeping(share=1.0), DAPO)]
    assert losses[0] == losses[1]
    first, second = (torch.autograd.grad(loss, policy.logp, retain_graph=True)[0] for loss in losses)
    assert torch.equal(first, second)


def test_tokens_that_are_left_out_have_exactly_no_gradient(setting: tuple[TokenBatch, TokenLogProbs]) -> None:
    batch, policy = setting
    for share in (0.0, 0.2, 0.7):
        part = HighEntropyTokens(share=share)
        (gradient,) = torch.autograd.grad(loss_of(keeping(share=share), batch, policy), policy.logp)
        assert not gradient[part(batch, policy) == 0].any()
        assert bool(gradient.any()) == (share > 0)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.83, 1.0])
def test_the_share_that_is_kept(setting: tuple[TokenBatch, TokenLogProbs], share: float) -> None:
    batch, policy = setting
    kept, count = HighEntropyTokens(share=share)(batch, policy)[batch.action_mask], int(batch.action_mask.sum())
    assert abs(float(kept.mean()) - share) <= 1 / count + 1e-12
    assert policy.entropy is not None
    found = policy.entropy[batch.action_mask]
    assert torch.equal(kept.bool(), found >= found.quantile(1 - share) - 1e-12)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
def test_a_share_and_its_complement_add_up_to_dapo(setting: tuple[TokenBatch, TokenLogProbs], share: float) -> None:
    batch, policy = setting
    parts = loss_of(keeping(share=share), batch, policy) + loss_of(keeping(share=share, complement=True), batch, policy)
    torch.testing.assert_close(parts, loss_of(DAPO, batch, policy), atol=1e-12, rtol=0)


def test_a_fixed_threshold_and_its_complement(setting: tuple[TokenBatch, TokenLogProbs]) -> None:
    batch, policy = setting
    kept = HighEntropyTokens(threshold=0.672)(batch, policy).bool()
    left = HighEntropyTokens(threshold=0.672, complement=True)(batch, policy).bool()
    assert policy.entropy is not None
    assert torch.equal(kept & batch.action_mask, (policy.entropy >= 0.672) & batch.action_mask)
    assert torch.equal((left ^ kept) & batch.action_mask, batch.action_mask)


def test_the_quantile_is_of_the_batch_not_of_a_completion(setting: tuple[TokenBatch, TokenLogProbs]) -> None:
    """Entropies dealt out anew over all action tokens: each keeps its fate."""
    batch, policy = setting
    part, entropy, mask = HighEntropyTokens(share=0.3), policy.entropy, batch.action_mask
    assert entropy is not None
    order = torch.randperm(int(mask.sum()), generator=torch.Generator().manual_seed(1))
    dealt = entropy.clone()
    dealt[mask] = entropy[mask][order]
    before, after = part(batch, policy)[mask], part(batch, TokenLogProbs(policy.logp, entropy=dealt))[mask]
    assert torch.equal(after, before[order])
    assert not torch.equal(after, before)


def test_padding_never_enters_the_quantile(setting: tuple[TokenBatch, TokenLogProbs]) -> None:
    batch, policy = setting
    assert policy.entropy is not None
    quiet = torch.where(batch.action_mask, policy.entropy, 0.0)
    part = HighEntropyTokens(share=0.2)
    first, second = part(batch, policy), part(batch, TokenLogProbs(policy.logp, entropy=quiet))
    assert torch.equal(first, second)


def test_by_hand(make_batch: Callable[..., TokenBatch], logprobs: Callable[..., TokenLogProbs]) -> None:
    """Five tokens; the quantile at 0.8 is 0.9 + 0.2 (1.5 - 0.9) = 1.02, so only 1.5 is left."""
    batch = make_batch([[1, 1, 1], [1, 1, 0]])
    policy = logprobs(torch.zeros(2, 3), entropy=[[0.0, 0.9, 0.1], [1.5, 0.5, 3.0]])
    assert (HighEntropyTokens(share=0.2)(batch, policy) * batch.action_mask).tolist() == [[0, 0, 0], [1, 0, 0]]


def test_written_rows_always_count(
    make_batch: Callable[..., TokenBatch], logprobs: Callable[..., TokenLogProbs]
) -> None:
    batch = make_batch([[1, 1], [1, 1]], written=[True, False])
    policy = logprobs(torch.zeros(2, 2), entropy=[[0.0, 5.0], [1.0, 2.0]])
    assert HighEntropyTokens(share=0.5)(batch, policy).tolist() == [[1, 1], [0, 1]]


# Decoding


def test_forking_tokens_are_drawn_at_their_own_temperature() -> None:
    """Entropies 0.69 (forking) and 0.33: the first is sampled at 0.5, the second at 2."""
    logits = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=F64).log() + torch.tensor([[1.0], [3.0]])
    wanted = Sampling(2.0, fork_temperature=0.5, fork_entropy=0.672)
    tokens, logp, _ = _draw(logits, wanted, torch.zeros(2, dtype=F64))
    assert tokens.tolist() == [0, 0]
    torch.testing.assert_close(logp.exp(), torch.tensor([0.5, 0.75], dtype=F64), atol=1e-12, rtol=0)  # 3 : 1
    tilted = torch.tensor([[0.6, 0.4]], dtype=F64).log()  # entropy 0.673
    assert _draw(tilted, wanted, torch.zeros(1, dtype=F64))[1].exp().item() == pytest.approx(0.36 / 0.52, abs=1e-12)


@pytest.mark.slow
def test_equal_temperatures_change_nothing() -> None:
    policy, prompts = random_policy(dtype=F64), [[5, 9, 33], [7, 8]] * 4
    plain = policy.generate(prompts, Sampling(0.7, max_tokens=12), draws(8))
    same = policy.generate(prompts, Sampling(0.7, max_tokens=12, fork_temperature=0.7), draws(8))
    other = policy.generate(prompts, Sampling(0.7, max_tokens=12, fork_temperature=1.5), draws(8))
    assert [c.tokens for c in same] == [c.tokens for c in plain] != [c.tokens for c in other]


def test_two_temperatures_are_refused_with_ratios_and_train_without() -> None:
    groups = ForkingGroups(size=2, temperature=1.0, fork_temperature=1.4)
    with pytest.raises(ConfigError, match=r"samples at two temperatures .* would be biased"):
        FORKING.replace(experience=groups).check()
    FORKING.replace(experience=groups.replace(fork_temperature=1.0)).check()
    method = FORKING.replace(experience=groups, objective=PolicyGradient(), problems=3, filters=())
    method.check()
    report = make_loop(method).step()
    assert report.metrics["gradient_norm"] > 0


@pytest.mark.slow
def test_what_is_forking_is_the_policys_own_entropy_not_that_of_the_distribution_sampled_from() -> None:
    groups = ForkingGroups(size=2, temperature=1.0, fork_temperature=0.2)
    method = FORKING.replace(experience=groups, objective=PolicyGradient(), problems=3, filters=())
    loop = make_loop(method, policy=random_policy(dtype=F64))
    batch = loop._assess(loop.method, 3, 0, loop.stream)["policy"]
    found, wanted = loop.updater._current(loop.method, batch, True).entropy, token_entropies(loop.policy, batch)
    assert found is not None
    torch.testing.assert_close(found, wanted, atol=1e-9, rtol=0)
    assert float(batch.entropy.mean()) < 0.9 * float(wanted.mean())


# Diagnostics


def test_entropy_by_token_by_hand() -> None:
    tokens, entropy = torch.tensor([[4, 4, 5], [4, 9, 9]]), torch.tensor([[0.0, 1.0, 0.3], [2.0, 7.0, 7.0]], dtype=F64)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]], dtype=torch.bool)
    found = entropy_by_token(tokens, entropy, mask, (0, 50, 75))
    assert set(found) == {4, 5}
    assert found[4] == {"count": 3, "mean": 1.0, "p0": 0.0, "p50": 1.0, "p75": 1.5}


def test_overlap_counts_shared_positions() -> None:
    mask = torch.ones(1, 10, dtype=torch.bool)
    rising = torch.arange(10.0)[None]
    assert high_entropy_overlap(rising, rising, mask) == 1
    assert high_entropy_overlap(rising, -rising, mask) == 0
    swapped = rising.clone()
    swapped[0, 8], swapped[0, 0] = 0.0, 8.5  # 9 stays among the top two, 8 does not
    assert high_entropy_overlap(rising, swapped, mask) == 0.5


def test_entropy_change_is_ordered_by_the_entropy_before() -> None:
    before = torch.tensor([[0.9, 0.1, 0.5, 0.3]], dtype=F64)
    after = before + torch.tensor([[-0.4, 0.1, 0.2, 0.3]], dtype=F64)
    found = entropy_change(before, after, torch.ones(1, 4, dtype=torch.bool), bins=2)
    assert found == pytest.approx([0.2, -0.1], abs=1e-12)


def test_entropies_of_a_batch_are_the_models() -> None:
    policy, batch = random_policy(dtype=F64), random_batch((2, 2))
    found = token_entropies(policy, batch)
    logp = policy.model(input_ids=batch.tokens, attention_mask=batch.attention_mask).logits.log_softmax(-1)
    wanted = -(logp.exp() * logp).sum(-1)[:, :-1][batch.action_mask[:, 1:]]
    torch.testing.assert_close(found[batch.action_mask], wanted.detach(), atol=1e-9, rtol=0)
    assert not found[~batch.action_mask].any()

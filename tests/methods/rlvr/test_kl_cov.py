"""KL-Cov and Clip-Cov: the law of entropy by exact steps, limits of both losses, and tokens chosen per minibatch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.advantages.covariance import covariance, of_samples
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.edit import set_value, stack
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.registry import get_method
from etude.evaluation.entropy_law import drift, exhaustion, predicted_change
from etude.loops.credit import loss
from etude.loops.enumerable import EnumerableLoop
from etude.loops.learn import Trainer
from etude.methods.rlvr.kl_cov import CovarianceClip, HighCovariance, LogRatioPenalty
from etude.tasks import resolve_task
from etude.tasks.tabular.enumerable import Enumerable
from language_toys import make_loop

pytestmark = pytest.mark.usefixtures("one_thread")
F64 = torch.float64


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@pytest.fixture
def rows(make_batch: Callable[..., TokenBatch]) -> tuple[TokenBatch, TokenLogProbs]:
    """12 rows of 30 tokens, of which some are padding, with ratios up to 1.6 and advantages of either sign."""
    mask = torch.arange(30)[None] < torch.tensor([30, 21, 7, 30, 12, 18, 25, 30, 9, 28, 30, 16])[:, None]
    behaviour, advantages = 1.5 * random(12, 30) - 3, random(12, 1, seed=1) * mask
    batch = make_batch(mask, behaviour_logp=behaviour, advantages=advantages, draw=torch.arange(12),
                       group=torch.arange(12) // 4)  # fmt: skip
    return batch, TokenLogProbs(behaviour + 0.15 * random(12, 30, seed=2))


def entropy(logits: Tensor) -> Tensor:
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)


@pytest.mark.parametrize("natural", [False, True])
def test_entropy_changes_by_minus_the_covariance(natural: bool) -> None:
    """A bandit with 50 actions: measured over predicted goes to 1 with the step, and twice as near with half of it."""
    logits, gain = random(50), random(50, seed=1)
    p = logits.softmax(0)
    centred = gain - (p * gain).sum()
    step = centred if natural else p * centred
    off = []
    for eta in (1e-3, 5e-4):
        measured = entropy(logits + eta * step) - entropy(logits)
        off.append(float(measured / predicted_change(logits, eta * step)) - 1)
    assert abs(off[0]) < 1e-2
    assert off[1] == pytest.approx(off[0] / 2, rel=0.02)


def test_on_a_tree_a_natural_step_changes_entropy_by_minus_eta_covariance() -> None:
    """Theorem 2 on the enumerable task: eta A(node, token) at every logit, A by enumeration of what can follow."""
    task = Enumerable(prompts=3, vocabulary=4, length=2, graded=True)
    off = []
    for eta in (1e-3, 5e-4):
        loop = EnumerableLoop(get_method("grpo"), task, seeds=[0], steps=1)
        tree, rewards = loop.policy, loop.rewards.double()
        before, probs, step = loop.exact()["entropy"], tree.probs()[0], torch.zeros_like(tree.logits[0])
        worth = {"weight": torch.zeros_like(step), "sum": torch.zeros_like(step)}
        for x in range(task.prompts):
            for y in range(len(tree.tokens)):
                for node, token in zip(tree.nodes[y].tolist(), tree.tokens[y].tolist()):
                    worth["weight"][x, node, token] += probs[x, y].detach()
                    worth["sum"][x, node, token] += (probs[x, y] * rewards[x, y]).detach()
        value = worth["sum"].sum(-1, keepdim=True) / worth["weight"].sum(-1, keepdim=True)
        step = worth["sum"] / worth["weight"] - value
        told = loop._report().metrics["covariance"]
        tree.logits[0].data += eta * step
        measured = float(loop.exact()["entropy"] - before)
        off.append(measured / (-eta * told) - 1)
        found = drift([float(before), float(before) + measured], [told, 0.0])
        assert found.eta == pytest.approx(eta, rel=0.02) and found.explained == pytest.approx(1.0)
    assert 1e-6 < abs(off[0]) < 1e-2 and off[1] == pytest.approx(off[0] / 2, rel=0.05)


def test_the_rate_that_fits_is_that_of_least_squares() -> None:
    entropies, covariances = np.cumsum(random(20).numpy()), random(20, seed=1).numpy()
    found = drift(list(entropies), list(covariances))
    against, changes = -covariances[:-1], entropies[1:] - entropies[:-1]
    (eta,), (rest,), *_ = np.linalg.lstsq(against[:, None], changes, rcond=None)
    assert found.eta == pytest.approx(eta, abs=1e-12)
    assert found.explained == pytest.approx(1 - rest / (changes**2).sum(), abs=1e-12)
    assert found.measured == pytest.approx(list(changes)) and found.predicted == pytest.approx(list(eta * against))
    with pytest.raises(ValueError, match="covariances that are not all 0"):
        drift([0.5, 0.4, 0.3], [0.0, 0.0, 1.0])


@pytest.mark.slow
def test_a_step_reports_the_covariance_of_what_it_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy's, over the tokens of the step as they were sampled; what was written does not count."""
    seen, credit = list[TokenBatch](), Trainer._credit

    def spied(self: Any, method: Any, model: Any, batch: TokenBatch) -> TokenBatch:
        seen.append(credit(self, method, model, batch))
        return seen[-1]

    monkeypatch.setattr(Trainer, "_credit", spied)
    metrics = make_loop(get_method("grpo").replace(problems=6)).step().metrics
    (batch,) = seen
    assert batch.advantages is not None
    mask = batch.action_mask
    pair = np.stack([batch.behaviour_logp[mask].double().numpy(), batch.advantages[mask].double().numpy()])
    assert metrics["covariance"] == pytest.approx(np.cov(pair, bias=True)[0, 1], rel=1e-6)
    assert abs(metrics["covariance"]) > 1e-4
    written = torch.arange(len(batch)) % 2 == 0
    rest = batch.rows((~written).nonzero()[:, 0])
    assert rest.advantages is not None
    pair = np.stack([rest.behaviour_logp[rest.action_mask].numpy(), rest.advantages[rest.action_mask].numpy()])
    assert of_samples(batch.replace(written=written)) == pytest.approx(np.cov(pair, bias=True)[0, 1], rel=1e-5)
    assert "covariance" not in make_loop(get_method("sft").replace(problems=2), resolve_task("sums")).step().metrics


def test_the_mean_of_c_is_the_covariance_of_numpy(rows: tuple[TokenBatch, TokenLogProbs]) -> None:
    batch, policy = rows
    mask = batch.action_mask
    assert batch.advantages is not None
    pair = np.stack([policy.logp[mask].numpy(), batch.advantages[mask].numpy()])
    found = covariance(policy.logp, batch.advantages, mask)
    assert float(found.sum() / mask.sum()) == pytest.approx(np.cov(pair, bias=True)[0, 1], abs=1e-12)
    assert not found[~mask].any()


def test_the_tokens_that_are_held_are_those_of_largest_covariance(rows: tuple[TokenBatch, TokenLogProbs]) -> None:
    batch, policy = rows
    assert batch.advantages is not None
    chosen = HighCovariance(share=0.05)(batch, policy).bool()
    c, mask = covariance(policy.logp, batch.advantages, batch.action_mask), batch.action_mask
    assert int(chosen.sum()) == int(0.05 * int(mask.sum())) == 12
    assert not chosen[~mask].any()
    assert c[chosen].min() > c[mask & ~chosen].max()
    assert int(HighCovariance(share=1e-9)(batch, policy).sum()) == 1


def test_clip_cov_leaves_out_random_tokens_of_its_band(rows: tuple[TokenBatch, TokenLogProbs]) -> None:
    batch, policy = rows
    part = CovarianceClip(share=0.02).bind()
    assert batch.advantages is not None
    c = covariance(policy.logp, batch.advantages, batch.action_mask)
    ratio = (policy.logp - batch.behaviour_logp).exp()
    gains = batch.advantages > 0
    stopped = (gains & (ratio > 1.2)) | (~gains & (ratio < 0.8))
    band = batch.action_mask & (c > 1) & (c < 5) & ~stopped
    assert bool((batch.action_mask & (c > 1) & (c < 5) & stopped).any())
    times = torch.zeros_like(c)
    for _ in range(400):
        out = part(batch, policy) == 0
        assert int(out.sum()) == 5
        assert not out[~band].any()
        times += out
    expected = 400 * 5 / int(band.sum())
    spread = math.sqrt(expected * (1 - 5 / int(band.sum())))
    assert (times[band] - expected).abs().max() < 5 * spread


def test_what_is_left_out_does_not_depend_on_the_order_of_rows(rows: tuple[TokenBatch, TokenLogProbs]) -> None:
    batch, policy = rows
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    for kind in (CovarianceClip(share=0.02), HighCovariance(share=0.02)):
        there = kind.bind()(batch, policy)
        here = kind.bind()(batch.rows(order), TokenLogProbs(policy.logp[order]))
        assert torch.equal(here, there[order])


@pytest.mark.parametrize("empty", [{"share": 0.0}, {"lower": 1e3, "upper": 1e4}])
def test_clip_cov_without_a_band_is_the_clipped_loss(empty: dict[str, float], rows: Any) -> None:
    method = get_method("clip-cov")
    bare, none = method.replace(token_weights=(CovarianceClip(**empty),)).bind(), method.replace(token_weights=())
    assert float(loss(bare, *rows, 30)) == pytest.approx(float(loss(none, *rows, 30)), abs=1e-12)
    assert abs(float(loss(method.bind(), *rows, 30) - loss(none, *rows, 30))) > 1e-4


def test_kl_cov_without_a_share_is_the_surrogate(rows: tuple[TokenBatch, TokenLogProbs]) -> None:
    batch, policy = rows
    method = get_method("kl-cov")
    bare = method.replace(regularizers=(LogRatioPenalty(where=HighCovariance(share=0.0)),))
    mask = batch.action_mask
    plain = (-(policy.logp - batch.behaviour_logp).exp() * batch.advantages)[mask].mean()
    assert float(loss(bare, batch, policy, 30)) == pytest.approx(float(plain), abs=1e-12)
    assert float(loss(method, batch, policy, 30)) > float(plain) + 1e-5


def test_at_the_policy_that_sampled_the_penalty_has_no_gradient(rows: tuple[TokenBatch, TokenLogProbs]) -> None:
    batch, _ = rows
    logp = batch.behaviour_logp.clone().requires_grad_(True)
    method = get_method("kl-cov")
    found = loss(method, batch, TokenLogProbs(logp), 30)
    plain = loss(method.replace(regularizers=()), batch, TokenLogProbs(logp), 30)
    assert float(found.detach()) == float(plain.detach())
    assert torch.equal(*(torch.autograd.grad(x, logp)[0] for x in (found, plain)))


@pytest.mark.slow
def test_tokens_are_left_out_of_the_minibatch_and_not_of_a_piece_of_it() -> None:
    """With micro-batches of one row as many are, and the weights are those of the whole batch at once.

    Of KL-Cov the pinned loss shows it: its micro-batches hold two or three rows.
    """
    found, kept = [], []
    for budget in (1, 10_000):
        method = get_method("clip-cov").replace(problems=6, minibatches=1, filters=())
        method = set_value(method, "optimizer.epsilon=1e-3")  # else Adam makes a step of what is rounding
        method = method.replace(token_weights=(CovarianceClip(share=0.1, lower=0.01),))
        loop = make_loop(method, micro_tokens=budget)
        kept.append(loop.step().metrics["tokens_kept/covariance-clip"])
        found.append({k: v.detach().clone() for k, v in loop.policy.model.named_parameters()})
    assert kept[0] == kept[1] < 1
    for key, value in found[0].items():
        torch.testing.assert_close(value, found[1][key], atol=1e-6, rtol=0)


def test_one_update_of_each_batch_is_said_to_change_nothing() -> None:
    with pytest.warns(UserWarning, match="kl-cov takes one optimizer step of each batch.*set minibatches to 2"):
        check(get_method("kl-cov").replace(minibatches=1, parent="kl-cov", id="kl-cov"))


def test_a_band_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ConfigError, match="lower must be below upper, got 5 and 1"):
        CovarianceClip(lower=5.0, upper=1.0)


def test_a_clip_that_is_not_the_objectives_is_refused() -> None:
    method: Any = get_method("clip-cov")
    wider = set_value(method, "objective.high=0.28")
    with pytest.raises(ConfigError, match=r"0.2 below and 0.2 above.*objective's is 0.2 and 0.28: set token_weights"):
        check(wider)
    check(set_value(wider, "token_weights.covariance-clip.high=0.28"))
    check(method.replace(objective=get_method("kl-cov").slots()["objective"]))


def test_on_dapo_the_clip_is_that_of_clip_cov() -> None:
    stacked = stack(get_method("dapo"), ["clip-cov"])
    check(stacked)
    clip, part = stacked.slots()["objective"], stacked.slots()["token_weights"][0]
    assert (clip.low, clip.high) == (part.low, part.high) == (0.2, 0.2)


def test_exhaustion_fits_a_noisy_curve_as_scipy_does() -> None:
    from scipy.stats import linregress

    random_ = np.random.default_rng(0)
    entropies = np.linspace(1.2, 0.05, 30)
    scores = -0.15 * np.exp(entropies) + 0.8 + 0.01 * random_.standard_normal(30)
    found, other = exhaustion(list(entropies), list(scores)), linregress(np.exp(entropies), scores)
    assert (found.a, found.b) == pytest.approx((-other.slope, other.intercept), abs=1e-12)
    assert found.r_squared == pytest.approx(other.rvalue**2, abs=1e-12)
    assert found.ceiling == pytest.approx(0.65, abs=0.02)
    apart = scores - (other.intercept + other.slope * np.exp(entropies))
    assert found.residual == pytest.approx(float(np.sqrt(np.mean(apart**2))), abs=1e-12)
    assert found.at(0.7) == pytest.approx(other.intercept + other.slope * math.exp(0.7), abs=1e-12)
    with pytest.raises(ValueError, match="three or more entropies that differ"):
        exhaustion([0.5, 0.5, 0.5], [0.1, 0.2, 0.3])

"""OBLR-PO: the baseline of least variance, and the rate that follows the signal in the gradient."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.batches import Head, TokenBatch, TokenLogProbs
from etude.core.registry import get_method
from etude.core.rows import concatenate, split_rows
from etude.core.streams import Stream
from etude.evaluation.exact import every_group, expected_gradient, gradient
from etude.loops.bandit import Bandit
from etude.loops.enumerable import EnumerableLoop
from etude.loops.update import Updater
from etude.methods.rlvr.oblr_po import GradientWeightedBaseline, oblr_po, score_norms
from etude.methods.rlvr.oblr_po.snr import SNRAdamW
from etude.policies.tabular import SoftmaxTree
from etude.tasks.tabular.enumerable import Enumerable
from language_toys import random_batch, random_policy


def bed_of(vocabulary: int, length: int = 1, spread: float = 1.5, seed: int = 2) -> Bandit:
    tree = SoftmaxTree(1, vocabulary, length, spread=spread, seed=seed)
    random = torch.Generator().manual_seed(seed)
    return Bandit(tree, torch.rand(1, len(tree.tokens), generator=random, dtype=torch.float64))


def everything(bandit: Bandit) -> TokenBatch:
    """Every response once, with what the part needs."""
    count = len(bandit.policy.tokens)
    prompt, response = torch.zeros(count, dtype=torch.long), torch.arange(count)
    batch = bandit.batch(prompt, response, bandit.policy.rows(0, prompt, response, bandit.policy.table()))
    batch.hidden = bandit.policy.hidden(prompt, response)
    return batch.replace(head=bandit.policy.head(0))


def scores_of(bandit: Bandit) -> Tensor:
    """[Y, parameters] grad log pi of every response, by differentiation."""
    logp = bandit.policy.logp()[0, 0]
    rows = [torch.autograd.grad(x, bandit.policy.logits[0], retain_graph=True)[0].flatten() for x in logp]
    return torch.stack(rows)


def objective(bandit: Bandit) -> Tensor:
    return (bandit.policy.probs()[0, 0] * bandit.rewards[0]).sum()


def variance_of(bandit: Bandit) -> Callable[[float], float]:
    """Trace of Cov[(r - b) s] by the baseline b."""
    probs, s = bandit.policy.probs()[0, 0].detach(), scores_of(bandit)

    def variance(baseline: float) -> float:
        g = (bandit.rewards[0] - baseline)[:, None] * s
        return float((probs * g.square().sum(1)).sum() - (probs @ g).square().sum())

    return variance


@pytest.mark.parametrize("length", [1, 2])
def test_norms_are_those_of_the_gradient_where_the_policy_is_a_table(length: int) -> None:
    bandit = bed_of(4, length)
    exact = scores_of(bandit).square().sum(1)
    for norm in ("last-layer", "proxy"):
        torch.testing.assert_close(score_norms(everything(bandit), norm), exact, atol=1e-13, rtol=0)
    p = bandit.policy.probs()[0, 0].detach()
    if length == 1:  # 1 - 2 p(y) + sum_v p(v)^2
        torch.testing.assert_close(exact, 1 - 2 * p + p.square().sum(), atol=1e-13, rtol=0)


def test_the_last_layer_norm_is_that_of_its_gradient(make_batch) -> None:
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(7, 3, generator=random, dtype=torch.float64).requires_grad_(True)
    mask = [[0, 1, 1, 1, 0], [0, 0, 1, 0, 1], [0, 1, 0, 0, 0]]
    tokens = torch.randint(0, 7, (3, 5), generator=random)
    hidden = torch.randn(3, 5, 3, generator=random, dtype=torch.float64) * torch.tensor(mask)[..., None]
    batch = make_batch(mask, tokens=tokens).replace(head=Head(weight.detach()))
    batch.hidden = hidden
    logp = (hidden @ weight.T).log_softmax(-1).gather(-1, tokens[..., None])[..., 0] * torch.tensor(mask)
    expected = [torch.autograd.grad(x, weight, retain_graph=True)[0].square().sum() for x in logp.sum(1)]
    torch.testing.assert_close(score_norms(batch, "last-layer"), torch.stack(expected), atol=1e-12, rtol=0)
    assert score_norms(batch, "uniform").tolist() == [1, 1, 1]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_weighted_mean_reward_is_the_baseline_of_least_variance(seed: int) -> None:
    bandit = bed_of(6, seed=seed)
    probs, w = bandit.policy.probs()[0, 0].detach(), score_norms(everything(bandit), "last-layer")
    best = float((probs * w * bandit.rewards[0]).sum() / (probs * w).sum())
    variance, grid = variance_of(bandit), torch.linspace(-1, 2, 601).tolist()
    least = variance(best)
    assert least <= min(map(variance, grid)) + 1e-15
    assert least < variance(float(objective(bandit).detach())) < variance(0.0)
    assert variance(best + 1e-3) > least
    assert variance(best - 1e-3) > least


def test_it_is_the_mean_where_all_scores_are_equally_long() -> None:
    bandit = bed_of(5, spread=0.0)
    w = score_norms(everything(bandit), "last-layer")
    torch.testing.assert_close(w, w[:1].expand(5), atol=1e-14, rtol=0)
    found = GradientWeightedBaseline()(everything(bandit))
    torch.testing.assert_close(found, get_method("rloo").advantages(everything(bandit)), atol=1e-14, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "vocabulary", "length"), [(2, 3, 2), (3, 4, 1)])
def test_leaving_one_out_stays_unbiased(size: int, vocabulary: int, length: int) -> None:
    bandit = bed_of(vocabulary, length)
    expected = gradient(objective(bandit), bandit.policy) / length  # 'fixed-length' divides by the longest response
    for norm in ("last-layer", "proxy", "uniform"):
        method = get_method("oblr-po").replace(advantages=GradientWeightedBaseline(norm=norm))
        torch.testing.assert_close(-expected_gradient(method, bandit, size), expected, atol=1e-13, rtol=0)


def test_equal_weights_are_rloo(make_batch) -> None:
    batch = make_batch([[0, 1]] * 7, scores=torch.rand(7), group=[0, 0, 0, 1, 1, 1, 1])
    found = GradientWeightedBaseline(norm="uniform")(batch)
    torch.testing.assert_close(found, get_method("rloo").advantages(batch), atol=1e-14, rtol=0)


def test_the_baseline_weighs_the_others_by_their_norms() -> None:
    bandit = bed_of(4)
    batch = everything(bandit)
    r, w = batch.scores, score_norms(batch, "last-layer")
    rest = [[j for j in range(4) if j != i] for i in range(4)]
    expected = torch.stack([r[i] - (w[o] * r[o]).sum() / w[o].sum() for i, o in enumerate(rest)])
    torch.testing.assert_close(GradientWeightedBaseline()(batch)[:, 0], expected, atol=1e-14, rtol=0)


def test_equal_rewards_a_lone_row_and_written_rows_get_nothing(make_batch) -> None:
    batch = make_batch([[1]] * 6, scores=[0.3, 0.3, 0.3, 0.9, 0.1, 0.8], group=[0, 0, 0, 1, 2, 2])
    batch.written = torch.tensor([False] * 5 + [True])
    assert not GradientWeightedBaseline(norm="uniform")(batch).any()


def test_a_certain_answer_has_no_weight_but_still_serves_alone(make_batch) -> None:
    """Norm 0 for the second row: the first row's baseline is its reward all the same."""
    batch = make_batch([[1]] * 2, scores=[1.0, 0.25], tokens=[[1], [0]])
    weight = torch.tensor([[60.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    batch.hidden = torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]]], dtype=torch.float64)
    batch.head = Head(weight)
    assert float(score_norms(batch, "proxy")[1]) < 1e-40
    assert GradientWeightedBaseline()(batch)[:, 0].tolist() == pytest.approx([0.75, -0.75], abs=1e-12)


# The rate


def all_gradients(bandit: Bandit, size: int) -> list[tuple[float, Tensor]]:
    """Probability and RLOO gradient of every group."""
    rloo, found = get_method("rloo"), []
    for chance, batch, response in every_group(bandit, size):
        logp = bandit.policy.logp()[0, 0, response]
        loss = (rloo.advantages(batch)[:, 0] * logp).mean()
        found.append((float(chance), gradient(loss, bandit.policy)))
    return found


def average(optimizer: SNRAdamW, cases: Any) -> tuple[float, float]:
    """E[S] and E[Q] over (probability, g_A, g_B), from the part's state without memory."""
    signal = power = 0.0
    for chance, first, second in cases:
        optimizer.pace([first], [second])
        signal += chance * optimizer.state["signal"]
        power += chance * optimizer.state["power"]
    return signal, power


def test_two_halves_estimate_signal_and_power_without_bias() -> None:
    bandit = bed_of(4)
    drawn = all_gradients(bandit, 2)
    cases = [(p * q, a, b) for (p, a), (q, b) in product(drawn, drawn)]
    signal, power = average(SNRAdamW(memory=0.0).bind(), cases)
    truth = float(gradient(objective(bandit), bandit.policy).square().sum())
    spread = sum(p * float(g.square().sum()) for p, g in drawn) - truth
    assert signal == pytest.approx(truth, abs=1e-14)
    assert power == pytest.approx(truth + spread / 2, abs=1e-14)


def test_without_noise_the_whole_rate_and_without_signal_none() -> None:
    g = torch.randn(5, generator=torch.Generator().manual_seed(0))
    assert SNRAdamW().bind().pace([g], [g]) == pytest.approx(1, abs=1e-6)
    assert SNRAdamW(floor=0.0).bind().pace([g], [-g]) == 0
    assert SNRAdamW(floor=0.1).bind().pace([g], [-g]) == 0.1
    logp = bed_of(4).policy.logp  # equal rewards and no baseline: noise alone
    probs, scores = logp()[0, 0].detach().exp().tolist(), scores_of(bed_of(4))
    cases = [(probs[i] * probs[j], scores[i], scores[j]) for i, j in product(range(4), range(4))]
    signal, power = average(SNRAdamW(memory=0.0).bind(), cases)
    assert signal == pytest.approx(0, abs=1e-14)
    assert power > 0.1


def test_signal_and_power_are_moving_averages_over_all_parameters() -> None:
    optimizer = SNRAdamW(memory=0.9, floor=0.0).bind()
    random = torch.Generator().manual_seed(1)
    signal = power = 0.0
    for _ in range(5):
        a, b = ([torch.randn(3, 2, generator=random) + 1, torch.randn(4, generator=random)] for _ in range(2))
        x, y = (torch.cat([t.flatten() for t in s]).double() for s in (a, b))
        signal, power = 0.9 * signal + 0.1 * float(x @ y), 0.9 * power + 0.1 * float(((x + y) / 2).square().sum())
        assert optimizer.pace(a, b) == pytest.approx(min(1, max(0, signal / power)), abs=1e-5)
        assert optimizer.state == pytest.approx({"signal": signal, "power": power}, abs=1e-5)


def test_on_a_quadratic_the_rate_is_the_best_single_step() -> None:
    """J = -L/2 |theta|^2, g = -L theta + noise: E[J(theta + eta g)] is largest at eta = S / Q / L."""
    big, theta = 3.0, torch.tensor([0.7, -0.2], dtype=torch.float64)
    noise = [torch.tensor(v, dtype=torch.float64) for v in ([2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0])]
    cases = [(1 / 16, -big * theta + a, -big * theta + b) for a, b in product(noise, noise)]
    signal, power = average(SNRAdamW(memory=0.0).bind(), cases)

    def expected(eta: float) -> float:
        return sum(c * float(-big / 2 * (theta + eta * (a + b) / 2).square().sum()) for c, a, b in cases)

    best = signal / power / big
    assert all(expected(best) > expected(best + step) for step in (-1e-3, 1e-3))
    gain = expected(best) - expected(0.0)
    assert gain == pytest.approx(best * signal / 2, abs=1e-13)  # eta |grad|^2 - L eta^2 / 2 (|grad|^2 + Var)


def test_the_loops_hand_over_halves() -> None:
    """The rate of a step is lr times what two halves of its groups agree on."""
    loop = EnumerableLoop(get_method("oblr-po"), Enumerable(), seeds=[0, 1], steps=3)
    for _ in range(3):
        loop.step()
    for method, stepper in zip(loop.methods, loop.steppers):
        state = method.optimizer.state
        pace = min(1.0, max(0.05, state["signal"] / state["power"]))
        assert stepper.optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * pace, rel=1e-12)


def test_halves_on_enumerable_have_the_same_prompts_so_that_they_can_agree() -> None:
    """Halves of whole groups have no logits in common."""
    loop = EnumerableLoop(get_method("oblr-po"), Enumerable(), seeds=[0, 1], steps=3)
    seen: list[tuple[Tensor, Tensor]] = []
    pace = SNRAdamW.pace

    def watched(part: SNRAdamW, first: list[Tensor], second: list[Tensor], share: float) -> float:
        seen.append((first[0], second[0]))
        return pace(part, first, second, share)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SNRAdamW, "pace", watched)
        for _ in range(3):
            loop.step()
    assert len(seen) >= 3
    for first, second in seen:
        moved = [g.flatten(1).abs().sum(1) > 0 for g in (first, second)]
        assert bool((moved[0] & moved[1]).any())
    assert all(m.optimizer.state["signal"] != 0 for m in loop.methods)


def test_rows_are_halved_within_their_groups(make_batch) -> None:
    batch = make_batch([[1]] * 8, group=[5, 2, 5, 2, 5, 9, 2, 5])
    assert [rows.tolist() for rows in split_rows(batch)] == [[0, 1, 4, 5, 6], [2, 3, 7]]
    assert [rows.tolist() for rows in split_rows(make_batch([[1]] * 2, group=[1, 0]))] == [[0, 1]]


def test_a_baseline_of_the_whole_group_makes_the_signal_too_large_by_a_known_share() -> None:
    """E <g_A, g_B> = |grad J|^2 (1 + 1 / (n - 1)^2) over every group of n = 4, half of it in each."""
    bandit, rloo, signal = bed_of(3), get_method("rloo"), 0.0
    scores = scores_of(bandit)
    for chance, batch, response in every_group(bandit, 4):
        credit = rloo.advantages(batch)[:, 0]
        first, second = ((credit[k][:, None] * scores[response[k]]).mean(0) for k in ([0, 2], [1, 3]))
        signal += float(chance) * float(first @ second)
    truth = float(gradient(objective(bandit), bandit.policy).square().sum())
    assert signal == pytest.approx(truth * (1 + 1 / 9), rel=1e-10)


def trained_on(sizes: tuple[int, ...], same: bool) -> tuple[dict[str, float], Any]:
    """Metrics of one update on groups of these sizes, all alike if `same`, and the optimizer's state."""
    batch = random_batch(sizes[:1] if same else sizes, seed=5)
    if same:
        batch = concatenate([batch] * len(sizes))
    random = torch.Generator().manual_seed(1)
    credit = torch.randn(sizes[0] if same else sum(sizes), generator=random).repeat(len(sizes) if same else 1)
    batch = batch.replace(
        advantages=credit[:, None] * batch.action_mask, elsewhere=torch.ones_like(batch.sampled)
    )  # not sampled from this policy: nothing compares log-probabilities
    method = oblr_po.replace(optimizer=SNRAdamW(memory=0.0, clip_norm=None)).bind()
    updater = Updater(random_policy(), method, 1, 10_000, 9)
    return updater.run(method, batch, 0, Stream(0)), method.optimizer.state


def test_equal_groups_agree_whatever_their_number() -> None:
    """Three groups with one and the same gradient: nothing of it is noise, and the whole rate is taken."""
    metrics, state = trained_on((2, 2, 2), same=True)
    assert state["signal"] == pytest.approx(metrics["gradient_norm"] ** 2, rel=1e-4)
    assert state["signal"] == pytest.approx(state["power"], rel=1e-4)


@pytest.mark.parametrize("sizes", [(2, 3, 2), (4, 2, 3, 2, 2)])
def test_power_is_that_of_the_step_taken_however_the_groups_divide(sizes: tuple[int, ...]) -> None:
    metrics, state = trained_on(sizes, same=False)
    assert state["power"] == pytest.approx(metrics["gradient_norm"] ** 2, rel=1e-4)


def test_power_of_an_odd_number_of_prompts_on_enumerable() -> None:
    loop = EnumerableLoop(get_method("oblr-po"), Enumerable(prompts=3), seeds=[0], steps=3)
    loop.step()
    gradient_now = loop.policy.logits[0].grad
    assert gradient_now is not None and 0 < float(gradient_now.norm()) < 1  # not clipped
    power = loop.methods[0].optimizer.state["power"]
    assert power == pytest.approx(0.1 * float(gradient_now.square().sum()), rel=1e-12)


def test_log_probabilities_are_not_touched(logprobs, make_batch) -> None:
    """The objective is the parent's: -A log pi."""
    batch = make_batch([[1]] * 2).replace(advantages=torch.tensor([[1.0], [-2.0]]))
    said: TokenLogProbs = logprobs([[-0.5], [-1.0]])
    assert get_method("oblr-po").objective(batch, said).tolist() == [[0.5], [-2.0]]

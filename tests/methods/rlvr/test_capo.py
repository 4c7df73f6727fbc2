"""CAPO: its second-order predictions against derivatives, its sparse formulas against dense ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.batches import Head, TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.evaluation.exact import expected_gradient
from etude.loops.bandit import Bandit
from etude.methods.rlvr.capo import CurvatureMask, averaged_shifts, candidates, second_order
from etude.policies.tabular import SoftmaxTree
from language_toys import make_loop

pytestmark = pytest.mark.usefixtures("one_thread")
F64, V, H = torch.float64, 6, 4
OPEN: dict[str, Any] = {"low": None, "high": None, "limit": None}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def bound(**fields: Any) -> CurvatureMask:
    return CurvatureMask(**{"candidates": 0, **fields}).bind()


@pytest.fixture
def problem(make_batch: Callable[..., TokenBatch]) -> tuple[TokenBatch, TokenLogProbs]:
    """4 completions of up to 5 tokens, a random head at temperature 0.8 with a bias."""
    mask = torch.tensor([[0, 1, 1, 1, 1], [0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 1, 1, 1, 0]], dtype=torch.bool)
    batch = make_batch(
        mask, tokens=torch.randint(V, mask.shape, generator=torch.Generator().manual_seed(3)),
        advantages=torch.tensor([[0.75], [-0.25], [0.0], [-0.5]], dtype=F64) * mask, behaviour_logp=random(4, 5) - 2,
    )  # fmt: skip
    head = Head(random(V, H, seed=1), random(V, seed=7), 0.8)
    policy = TokenLogProbs(random(4, 5, seed=4), hidden=random(4, 5, H, seed=2), head=head, learning_rate=0.05)
    return batch, policy


# The second-order model


def derivatives(weight: Tensor, step: Tensor, hidden: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """First and second derivative by t, at 0, of sum_a softmax((W + t D) h)_a A_a."""
    t = torch.zeros((), dtype=F64, requires_grad=True)
    value = (((weight + t * step) @ hidden).softmax(0) * values).sum()
    (first,) = torch.autograd.grad(value, t, create_graph=True)
    return first.detach(), torch.autograd.grad(first, t)[0]


def test_averaged_over_actions_the_objective_shift_is_the_taylor_series() -> None:
    weight, step, hidden, values = random(V, H), random(V, H, seed=1), random(H, seed=2), random(V, seed=3)
    first, second = derivatives(weight, step, hidden, values)
    p, u = (weight @ hidden).softmax(0), step @ hidden
    v = torch.eye(V, dtype=F64) - p
    rate = 0.3
    shift, _ = second_order(p.expand(V, V), v, u.expand(V, V), values, rate)
    torch.testing.assert_close((p * shift).sum(), rate * first + rate**2 / 2 * second, atol=1e-12, rtol=0)
    only_first = second_order(p.expand(V, V), v, u.expand(V, V), values, 1e-9)[0] / 1e-9
    torch.testing.assert_close((p * only_first).sum(), first, atol=1e-8, rtol=0)


def test_averaged_over_actions_the_policy_shift_is_the_divergence_of_the_step() -> None:
    weight, step, hidden = random(V, H), random(V, H, seed=1), random(H, seed=2)
    p, u = (weight @ hidden).softmax(0), step @ hidden
    v = torch.eye(V, dtype=F64) - p
    t = torch.zeros((), dtype=F64, requires_grad=True)
    divergence = (p * (p.log() - ((weight + t * step) @ hidden).log_softmax(0))).sum()
    (first,) = torch.autograd.grad(divergence, t, create_graph=True)
    (second,) = torch.autograd.grad(first, t)
    rate = 0.3
    _, moved = second_order(p.expand(V, V), v, u.expand(V, V), torch.ones(V, dtype=F64), rate)
    torch.testing.assert_close((p * moved).sum(), rate**2 / 2 * second, atol=1e-12, rtol=0)
    fisher = torch.diag(p) - p[:, None] * p
    torch.testing.assert_close(second, u @ fisher @ u, atol=1e-12, rtol=0)
    assert float(first.detach()) == pytest.approx(0, abs=1e-12)


# Sparse and dense


def dense_shifts(
    part: CurvatureMask, hidden: Tensor, token: int, advantage: float, head: Head, rate: float
) -> tuple[float, float]:  # fmt: skip
    """One token's shifts from whole matrices: its gradient in W by autograd, Adam as torch writes it, F in full."""
    weight = head.weight.clone().requires_grad_(True)
    z = (weight @ hidden + (0 if head.bias is None else head.bias)) / head.temperature
    (score,) = torch.autograd.grad(z.log_softmax(0)[token], weight)
    g = advantage * score
    d, p = g, z.softmax(0).detach()
    if part.direction == "adam" and part.state["step"]:
        t = part.state["step"] + 1
        m = part.beta1 * part.state["first"] + (1 - part.beta1) * g
        s = part.beta2 * part.state["second"] + (1 - part.beta2) * g**2
        d = m / (1 - part.beta1**t) / ((s / (1 - part.beta2**t)).sqrt() + part.epsilon)
    u, v = d @ hidden / head.temperature, -p.clone()
    v[token] += 1
    curvature = torch.diag(p) - p[:, None] * p
    objective = rate * (g * d).sum() + rate**2 / 2 * advantage * ((v @ u) ** 2 - u @ curvature @ u)
    return float(objective), float(rate**2 / 2 * (v @ u) ** 2)


@pytest.mark.parametrize("direction", ["sgd", "adam"])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_sparse_formulas_are_the_dense_ones(
    problem: tuple[TokenBatch, TokenLogProbs], direction: Any, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, policy = problem
    monkeypatch.setattr("etude.methods.rlvr.capo.CHUNK_ELEMENTS", 3 * V * H)  # several chunks
    part = bound(direction=direction, **OPEN)
    for _ in range(steps):
        part(batch, policy)
    on = batch.action_mask
    assert policy.hidden is not None and policy.head is not None and batch.advantages is not None
    hidden, tokens, advantages = policy.hidden[on], batch.tokens[on], batch.advantages[on]
    found = torch.stack(part.shifts(hidden, tokens, advantages, policy.head, 0.05), 1)
    wanted = [
        dense_shifts(part, h, int(y), float(a), policy.head, 0.05) for h, y, a in zip(hidden, tokens, advantages)
    ]  # fmt: skip
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=F64), atol=1e-12, rtol=1e-9)
    assert part.state["step"] == (steps if direction == "adam" else 0)


def test_moments_follow_the_mean_gradient_of_the_kept_tokens(problem: tuple[TokenBatch, TokenLogProbs]) -> None:
    """Equal to torch's Adam fed with the gradient of mean_kept A log p by W; the row without advantage counts too."""
    batch, policy = problem
    assert policy.hidden is not None and policy.head is not None and batch.advantages is not None
    part = bound(low=None, high=None, limit=2e-3)
    kept = part(batch, policy) > 0
    assert 0 < int(kept.sum()) < int(batch.action_mask.sum())
    head = policy.head
    weight = torch.nn.Parameter(head.weight.clone())
    z = (policy.hidden @ weight.T + head.bias) / head.temperature
    logp = z.log_softmax(-1).gather(-1, batch.tokens[..., None])[..., 0]
    (logp * batch.advantages)[kept].mean().backward()
    assert weight.grad is not None
    torch.testing.assert_close(part.state["first"], 0.1 * weight.grad, atol=1e-12, rtol=0)
    torch.testing.assert_close(part.state["second"], 0.001 * weight.grad**2, atol=1e-12, rtol=0)
    optimizer = torch.optim.Adam([weight], lr=1.0)
    first = weight.grad.clone()
    optimizer.step()
    before = weight.detach().clone()
    optimizer.step()  # the same gradient again
    torch.testing.assert_close(part.adam(first), before - weight.detach(), atol=1e-9, rtol=0)


def test_candidates_are_the_likeliest_and_the_one_that_was_drawn() -> None:
    head, hidden = Head(random(V, H)), random(5, H, seed=3)
    order = head.logits(hidden).argsort(descending=True)
    for rank in range(V):
        tokens = order[:, rank]
        ids, p, v = candidates(head, hidden, tokens, 3)
        wanted = order[:, :3] if rank < 3 else torch.cat([order[:, :2], tokens[:, None]], 1)
        assert torch.equal(ids.sort().values, wanted.sort().values)
        torch.testing.assert_close(p, head.logits(hidden).gather(1, ids).softmax(1))
        torch.testing.assert_close(v, (ids == tokens[:, None]).double() - p)


def test_restricting_to_all_tokens_changes_nothing(problem: tuple[TokenBatch, TokenLogProbs]) -> None:
    batch, policy = problem
    assert policy.hidden is not None and policy.head is not None and batch.advantages is not None
    on = batch.action_mask
    given = policy.hidden[on], batch.tokens[on], batch.advantages[on], policy.head, 0.05
    parts = [bound(candidates=k, **OPEN) for k in (0, V, V + 9, 3)]
    for part in parts:
        part(batch, policy)
    found = [torch.stack(part.shifts(*given)) for part in parts]
    torch.testing.assert_close(found[0], found[1], atol=1e-14, rtol=0)
    torch.testing.assert_close(found[0], found[2], atol=1e-14, rtol=0)
    assert not torch.allclose(found[0], found[3], atol=1e-6)


# What is kept


def test_the_trust_region(problem: tuple[TokenBatch, TokenLogProbs]) -> None:
    batch, policy = problem
    assert policy.hidden is not None and policy.head is not None and batch.advantages is not None
    on = batch.action_mask & (batch.advantages != 0)
    objective, moved = bound(**OPEN).shifts(
        policy.hidden[on], batch.tokens[on], batch.advantages[on], policy.head, policy.learning_rate
    )
    low, high, limit = (float(x) for x in (objective.quantile(0.2), objective.quantile(0.8), moved.quantile(0.7)))
    inside = (objective >= low) & (objective <= high) & (moved <= limit)
    assert 0 < int(inside.sum()) < len(inside)
    factors = bound(low=low, high=high, limit=limit, mean="all")(batch, policy)
    assert torch.equal(factors[on].bool(), inside)
    assert set(factors.unique().tolist()) == {0.0, 1.0}
    assert bool(factors[2][batch.action_mask[2]].all()), "no advantage, no reason to leave a token out"


def test_a_completion_is_averaged_over_its_kept_tokens(problem: tuple[TokenBatch, TokenLogProbs]) -> None:
    batch, policy = problem
    masks, means = (bound(limit=2e-3, low=None, high=None, mean=m)(batch, policy) for m in ("all", "kept"))
    values, on = random(4, 5, seed=9), batch.action_mask
    for row in range(4):
        kept = on[row] & masks[row].bool()
        wanted = values[row][kept].mean() if kept.any() else torch.tensor(0.0, dtype=F64)
        torch.testing.assert_close((values[row] * means[row])[on[row]].mean(), wanted, atol=1e-12, rtol=0)


@pytest.mark.slow
def test_without_thresholds_it_is_the_base_algorithm(problem: tuple[TokenBatch, TokenLogProbs]) -> None:
    batch, policy = problem
    for _ in range(2):
        assert bool((bound(**OPEN)(batch, policy)[batch.action_mask] == 1).all())
    capo, tree = get_method("capo"), SoftmaxTree(1, 3, 2, ends=True, spread=1.0)
    bandit = Bandit(tree, random(1, len(tree.tokens)).abs())
    wide = capo.replace(token_weights=(CurvatureMask(**OPEN),))
    base = get_method("grpo").replace(advantages=capo.advantages)
    found = [expected_gradient(m, bandit, 2) for m in (wide, base, capo)]
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=0)
    assert torch.equal(found[2], found[1]), "a learning rate of 0 moves nothing, so nothing is left out"


@pytest.mark.slow
def test_it_learns_what_grpo_learns_when_nothing_is_left_out() -> None:
    capo = get_method("capo").replace(problems=3)
    wide = capo.replace(token_weights=(CurvatureMask(**OPEN),))
    plain = capo.replace(token_weights=())
    loops = [make_loop(m) for m in (wide, plain)]
    for _ in range(3):
        reports = [loop.step().metrics for loop in loops]
    assert reports[0]["tokens_kept/curvature-mask"] == 1
    for mine, theirs in zip(*(loop.policy.parameters() for loop in loops)):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)


# Averages


@pytest.mark.parametrize("of", ["completion", "batch"])
def test_shifts_of_mean_gradients(problem: tuple[TokenBatch, TokenLogProbs], of: Any) -> None:
    """Token by token from whole matrices."""
    batch, policy = problem
    assert policy.hidden is not None and policy.head is not None and batch.advantages is not None
    head, part, rate = policy.head, bound(**OPEN), policy.learning_rate
    part(batch, policy)
    part(batch, policy)
    rows = [[r] for r in range(4)] if of == "completion" else [list(range(4))]
    found = averaged_shifts(part, batch, policy, of)
    assert [len(x) for x in found] == [len(rows)] * 2
    for number, chosen in enumerate(rows):
        on = batch.action_mask[chosen]
        h, y, a = policy.hidden[chosen][on], batch.tokens[chosen][on], batch.advantages[chosen][on]
        p = head.logits(h).softmax(1)
        v = torch.nn.functional.one_hot(y, V) - p
        g = torch.stack([a[t] * torch.outer(v[t], h[t]) / head.temperature for t in range(len(h))]).mean(0)
        d = part.adam(g)
        u = [d @ h[t] / head.temperature for t in range(len(h))]
        slope = torch.stack([v[t] @ u[t] for t in range(len(h))])
        spread = torch.stack([u[t] @ (torch.diag(p[t]) - p[t][:, None] * p[t]) @ u[t] for t in range(len(h))])
        objective = rate * (g * d).sum() + rate**2 / 2 * (a * (slope**2 - spread)).mean()
        torch.testing.assert_close(found[0][number], objective, atol=1e-12, rtol=0)
        torch.testing.assert_close(found[1][number], rate**2 / 2 * (slope**2).mean(), atol=1e-12, rtol=0)


def test_contradictions_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"low must be at most high, got 0.1 and -0.1"):
        CurvatureMask(low=0.1, high=-0.1)
    with pytest.raises(ConfigError, match="needs advantages"):
        get_method("capo").replace(advantages=None).check()

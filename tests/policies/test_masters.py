"""float32 masters of bfloat16 weights: small steps count, and what is trained is saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from etude.loops.movement import Movement
from etude.methods.rlvr.grpo import grpo
from etude.optimizers.adam import AdamW
from etude.policies import footprint
from etude.policies.language import LanguagePolicy
from language_toys import Toy, make_loop, random_batch, random_policy

BATCH, BF16 = random_batch((3, 1, 2)), torch.bfloat16


def trained(policy: LanguagePolicy, steps: int, rate: float) -> list[torch.Tensor]:
    """Where some steps of supervised learning led, from where the weights were."""
    start = [p.detach().clone() for p in policy.parameters()]
    optimizer = torch.optim.AdamW(policy.parameters(), rate, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        (-policy.evaluate(BATCH).logp[BATCH.action_mask].mean()).backward()
        optimizer.step()
        policy.updated()
    return [p.detach() - s for p, s in zip(policy.parameters(), start, strict=True)]


@pytest.mark.slow
def test_five_small_steps_lead_where_float32_leads() -> None:
    low, full = random_policy(dtype=BF16), random_policy()
    with torch.no_grad():
        for mine, theirs in zip(full.model.parameters(), low.model.parameters(), strict=True):
            mine.copy_(theirs)
    found, expected = (torch.cat([d.flatten() for d in trained(p, 5, 1e-6)]) for p in (low, full))
    pulled = expected != 0
    assert (found[pulled] != 0).double().mean() > 0.99
    assert torch.cosine_similarity(found, expected, 0) > 0.9
    assert found.norm() == pytest.approx(float(expected.norm()), rel=0.05)


@pytest.mark.slow
def test_the_weights_are_the_masters_rounded() -> None:
    policy = random_policy(dtype=BF16)
    trained(policy, 3, 1e-2)
    names = dict(policy.model.named_parameters())
    assert policy.masters.parameters.keys() == names.keys()
    for name, master in policy.masters.parameters.items():
        assert (master.dtype, names[name].dtype) == (torch.float32, BF16)
        assert torch.equal(names[name], master.to(BF16)) and names[name].grad is None


@pytest.mark.slow
def test_micro_batches_are_summed_in_float32() -> None:
    whole, plain = random_policy(dtype=BF16), random_policy(dtype=BF16)
    pieces = [BATCH.rows(torch.tensor([i])) for i in range(len(BATCH))]
    expected: dict[str, torch.Tensor] = {}
    for piece in pieces:
        plain.evaluate(piece).logp.sum().backward()
        for name, p in plain.model.named_parameters():
            expected[name] = expected.get(name, torch.zeros(())) + p.grad.float()
            p.grad = None
    whole.parameters()
    for piece in pieces:
        whole.evaluate(piece).logp.sum().backward()
    for name, master in whole.masters.parameters.items():
        torch.testing.assert_close(master.grad, expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_weights_are_their_own_masters(dtype: torch.dtype) -> None:
    policy = random_policy(dtype=dtype)
    assert all(a is b for a, b in zip(policy.parameters(), policy.model.parameters(), strict=True))
    assert policy.masters.extra_bytes == 0


@pytest.mark.slow
def test_a_reference_in_bfloat16_moves_by_small_fractions() -> None:
    policy = random_policy(dtype=BF16)
    policy.keep_reference()
    first = [p.detach().clone() for p in policy.reference.parameters()]
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(1.0)
    policy.updated()
    for _ in range(200):
        policy.move_reference(0.001)
    reached = 1 - 0.999**200
    for start, now in zip(first, policy.reference.parameters(), strict=True):
        torch.testing.assert_close(now.float(), start.float() + reached, rtol=0.01, atol=0.01)
    other = random_policy(dtype=BF16, seed=5)
    other.load_tensors({k: v.clone() for k, v in policy.tensors().items()})
    assert all(torch.equal(v, policy.tensors()[k]) for k, v in other.tensors().items())
    assert torch.equal(other.reference_logp(BATCH), policy.reference_logp(BATCH))


def test_masters_count_in_the_estimate_of_memory(tmp_path: Path) -> None:
    policy = LanguagePolicy.load("tiny", device="cpu", dtype="bfloat16")
    count = sum(p.numel() for p in policy.model.parameters())
    model, cache, _ = footprint.estimate(policy, rows=1, length=50, micro_tokens=8192)
    assert model == (2 + 4 + 3 * 4) * count  # weights; masters, their gradients and two moments in float32
    assert cache == 50 * 2 * 3 * 4 * 32 * 2  # tokens, keys and values, layers, heads, width, bytes


# The share of the weights that moved


def test_the_share_counts_weights_that_have_a_gradient() -> None:
    a, b = torch.nn.Parameter(torch.ones(8)), torch.nn.Parameter(torch.ones(2))
    a.grad, b.grad = torch.tensor([1.0] * 4 + [0.0] * 4), torch.ones(2)
    seen = Movement([a, b, torch.nn.Parameter(torch.ones(3))])
    with torch.no_grad():
        a += torch.tensor([1e-3, 1e-3, 1e-3, 1e-9, 0, 0, 0, 0])  # 1 + 1e-9 is 1 in float32
    assert seen.share() == pytest.approx(3 / 6)
    assert Movement([]).share() == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_a_run_reports_the_share_of_weights_that_moved(dtype: torch.dtype) -> None:
    method = grpo.replace(problems=4, optimizer=AdamW(lr=1e-6))
    metrics = make_loop(method, Toy(), random_policy(dtype=dtype)).step().metrics
    assert 0.9 < metrics["weights_moved"] <= 1


@pytest.mark.slow
def test_steps_that_are_lost_to_rounding_are_said_once() -> None:
    method = grpo.replace(problems=4, optimizer=AdamW(lr=1e-9))
    loop = make_loop(method, Toy(), random_policy())
    with pytest.warns(
        UserWarning, match=r"Only \d\.\d% of the weights that have a gradient moved in step 0: at a"
    ) as w:
        loop.step()
        metrics = loop.step().metrics
    assert len(w) == 1 and 0 < metrics["weights_moved"] < 0.1

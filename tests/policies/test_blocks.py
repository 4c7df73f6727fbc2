"""Attention over a shared prompt as one block, and prompts that are held, change no gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from etude.core.batches import TokenBatch
from etude.core.micro_batches import Rows, Sharing
from etude.policies import blocks, prompts
from etude.policies import micro_batches as planned
from etude.policies.blocks import Block, _OverBlocks
from etude.policies.language import LanguagePolicy
from etude.policies.prompts import in_blocks
from language_toys import KINDS, gradients, random_batch, random_model, random_policy, tokenizer

F64 = torch.float64
OWNERS = {
    "sorted": [0, 0, 1, 1], "uneven": [0, 1, 1, 1], "mixed": [1, 0, 1, 0], "one unused": [2, 0, 2, 2], "alone": [0] * 3,
}  # fmt: skip


def inputs(owner: list[int], heads: int, kv: int, dtype: torch.dtype = F64) -> tuple[list[Tensor], Tensor, Tensor]:
    """Queries, own keys and values, prompts' keys and values; lengths of the prompts; owners."""
    random = torch.Generator().manual_seed(0)
    lengths = torch.tensor([5, 3, 7])[: max(owner) + 1]
    shapes = [(len(owner), n, 4, 8) for n in (heads, kv, kv)] + [(len(lengths), kv, int(lengths.max()), 8)] * 2
    tensors = [torch.randn(s, generator=random, dtype=dtype).requires_grad_() for s in shapes]
    return tensors, lengths, torch.tensor(owner)


def plain(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, owner: Tensor) -> Tensor:
    """The same by copies and one mask."""
    width, size = keys.shape[2], q.shape[2]
    real = (torch.arange(width) < lengths[owner][:, None])[:, None, None].expand(-1, 1, size, -1)
    own = torch.ones(size, size, dtype=torch.bool).tril().expand(len(owner), 1, -1, -1)
    k, v = torch.cat([keys[owner], k], 2), torch.cat([values[owner], v], 2)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=torch.cat([real, own], 3), scale=0.3)


def in_calls(tensors: list[Tensor], lengths: Tensor, owner: Tensor) -> Tensor:
    block = Block([(tensors[3], tensors[4])], lengths, owner)
    out: Tensor = _OverBlocks.apply(*tensors, block.calls, 0.3)
    return out


@pytest.fixture(autouse=True)
def long_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """All prompts are long enough."""
    for module in (prompts, planned):
        monkeypatch.setattr(module, "LONG", 1)


@pytest.mark.parametrize("heads", [(4, 2), (2, 2)])
@pytest.mark.parametrize("name", OWNERS)
def test_blocks_equal_plain_attention(name: str, heads: tuple[int, int]) -> None:
    for dtype, bound in ((F64, 1e-12), (torch.float32, 3e-6)):
        tensors, lengths, owner = inputs(OWNERS[name], *heads, dtype=dtype)
        found = []
        for out in (in_calls(tensors, lengths, owner), plain(*tensors, lengths, owner)):
            slopes = torch.autograd.grad((out * torch.arange(out.numel()).view_as(out).sin()).sum(), tensors)
            found.append([out.detach(), *slopes])
        for ours, theirs in zip(*found):
            assert float((ours - theirs).abs().max()) <= bound * float(theirs.abs().max())


@pytest.mark.slow
def test_the_gradient_is_that_of_the_function() -> None:
    tensors, lengths, owner = inputs(OWNERS["uneven"], 4, 2)
    assert torch.autograd.gradcheck(lambda *x: in_calls(list(x), lengths, owner), tensors)


@pytest.mark.parametrize("kind", KINDS)
def test_known_kinds_attend_to_blocks(kind: str) -> None:
    policy = random_policy(kind)
    assert in_blocks(policy.model.base_model, policy.config)
    assert policy.config._attn_implementation == "sdpa", "left as it was"


@pytest.mark.parametrize("change", ["eager", "capped", "another mask"])
def test_other_attention_falls_back_to_copies(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model()
    batch = random_batch((3, 2), low=30, high=40)
    expected = LanguagePolicy(model, tokenizer(), share_prompts=False).evaluate(batch).logp
    if change == "eager":
        model.set_attn_implementation("eager")
    else:
        option = {"capped": {"softcap": 5.0}, "another mask": {"attention_mask": torch.ones(1)}}[change]
        inner = blocks.block_attention

        def odd(module: Any, q: Any, k: Any, v: Any, mask: Any, **options: Any) -> Any:
            given = {"attention_mask": mask, **options, **option}
            return inner(module, q, k, v, given.pop("attention_mask"), **given)

        monkeypatch.setattr(blocks, "block_attention", odd)
    policy = LanguagePolicy(model, tokenizer())
    torch.testing.assert_close(policy.evaluate(batch).logp, expected, rtol=1e-4, atol=1e-4)
    assert not in_blocks(model.base_model, policy.config)


def test_a_model_that_says_something_else_with_blocks_gets_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks._OverBlocks, "apply", lambda q, *rest: torch.zeros_like(q))
    policy = random_policy()
    assert not in_blocks(policy.model.base_model, policy.config)


def test_looking_whether_blocks_serve_draws_no_numbers() -> None:
    policy = random_policy()
    policy.model.train()
    state = torch.random.get_rng_state()
    in_blocks(policy.model.base_model, policy.config)
    assert torch.equal(state, torch.random.get_rng_state()) and all(m.training for m in policy.model.modules())


def whole_gradient(policy: LanguagePolicy, batch: TokenBatch, budget: int) -> tuple[dict[str, Tensor], Tensor, int]:
    """The gradient over all micro-batches, the log-probabilities, and how many micro-batches there were."""
    policy.model.zero_grad()
    logp, count = torch.zeros(batch.tokens.shape, dtype=F64), 0
    weights = torch.arange(logp.numel()).view_as(logp).sin()
    for piece in planned.micro_batches(policy, batch, budget):
        micro = batch.rows(piece, trim=True)
        out = policy.evaluate(micro, {"entropy", "values"})
        width = micro.tokens.shape[1]
        ((out.logp + 0.1 * out.entropy) * weights[piece, :width]).sum().backward()
        logp[piece, :width] = out.logp.detach()
        count += 1
    return gradients(policy), logp, count


@pytest.mark.slow
@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_any_plan_has_the_same_gradient(kind: str, served: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not served:
        for module in (prompts, planned):
            monkeypatch.setattr(module, "in_blocks", lambda backbone, config: False)
    batch = random_batch((7, 1, 5), low=20, high=30, turns=2)
    policy = random_policy(kind, dtype=F64)
    expected, logp, whole = whole_gradient(policy, batch, 10**6)
    assert whole == 1
    counts = []
    for budget in (1, 40, 90, 200):
        found, other, count = whole_gradient(policy, batch, budget)
        counts.append(count)
        torch.testing.assert_close(other, logp, rtol=1e-9, atol=1e-9)
        bound = 1e-10 if kind == "gpt2" else 1e-6  # the others' norms compute in float32 whatever the model's dtype
        for name, slope in expected.items():
            assert (found[name] - slope).norm() <= bound * slope.norm(), (budget, name)
    assert counts[0] == len(batch) and sorted(counts, reverse=True) == counts


def test_a_prompt_that_is_held_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, batch = random_policy(dtype=F64), random_batch((9,), low=40, high=40)
    in_blocks(policy.model.base_model, policy.config)
    widths: list[tuple[int, ...]] = []
    inner = policy.model.base_model.forward

    def spy(*args: Any, **kwargs: Any) -> Any:
        widths.append(tuple(kwargs["input_ids"].shape))
        return inner(*args, **kwargs)

    monkeypatch.setattr(policy.model.base_model, "forward", spy)
    *_, count = whole_gradient(policy, batch, 55)
    assert count > 1 and widths.count((1, 40)) == 1 and sum(w == 40 for _, w in widths) == 1
    assert policy.held is None


def test_a_failure_leaves_no_prompt_held() -> None:
    policy, batch = random_policy(), random_batch((9,), low=40, high=40)
    pieces = planned.micro_batches(policy, batch, 55)
    next(pieces)
    assert policy.held is not None
    pieces.close()
    assert policy.held is None


def bytes_held(policy: LanguagePolicy, batch: TokenBatch) -> int:
    """Bytes that autograd saves in a forward pass, the weights' own left out."""
    weights = {p.untyped_storage().data_ptr() for p in policy.model.parameters()}
    found: dict[int, Any] = {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        policy.evaluate(batch).logp.sum()
    return sum(storage.nbytes() for storage in found.values())


@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_is_what_the_plan_counts(kind: str, served: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not served:
        for module in (prompts, planned):
            monkeypatch.setattr(module, "in_blocks", lambda backbone, config: False)
    policy = random_policy(kind, context=1024)
    alone = random_batch((1,), low=300, high=300)
    each = bytes_held(policy, alone) / int(alone.lengths.sum())
    for size, low in ((8, 512), (32, 200), (32, 64)):
        batch = random_batch((size, size), low=low, high=low + 20)
        counted = Rows.of(batch, planned.sharing(policy) or Sharing()).held(np.arange(2 * size))
        assert bytes_held(policy, batch) <= 1.1 * each * counted, (size, low)
        repeated = len(batch) * int(batch.lengths.max())
        assert counted < 0.5 * repeated, "a prompt is counted once"

"""The training forward: shared prompts, plain batches and Hugging Face's own logits agree, gradients included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from etude.core import micro_batches
from etude.core.batches import TokenBatch
from etude.policies import forward, prompts
from etude.policies.language import LanguagePolicy
from language_toys import KINDS, gradients, random_batch, random_model, random_policy, tokenizer

F64 = torch.float64


def plain_logp(model: Any, batch: TokenBatch) -> Tensor:
    """[B, T] from Hugging Face's own forward, one row at a time and without padding."""
    out = torch.zeros(batch.tokens.shape, dtype=model.dtype)
    for row, length in enumerate(batch.lengths.tolist()):
        ids = batch.tokens[row : row + 1, :length]
        logp = (model(input_ids=ids).logits[0] / batch.temperature).log_softmax(-1)
        out[row, 1:length] = logp[:-1].gather(1, ids[0, 1:, None])[:, 0]
    return out * batch.action_mask


@pytest.fixture(autouse=True, params=["copies", "blocks"])
def always_share(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batches, "MIN_SHARED", 0.0)
    if request.param == "blocks":
        monkeypatch.setattr(prompts, "LONG", 1)


BATCHES = {
    "groups of different sizes": random_batch((3, 1, 4)),
    "one long prompt among short ones": random_batch((2, 2), low=1, high=40, seed=3),
    "three turns": random_batch((2, 3), turns=3),
    "every prompt its own": random_batch((1,) * 5, turns=2, seed=5),
    "one token completions": random_batch((4,), seed=2).rows(torch.arange(4)),
    "temperature": random_batch((2, 2), temperature=0.6),
}


@pytest.mark.slow
@pytest.mark.parametrize("cut", [1, 10**6])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BATCHES)
def test_shared_plain_and_hugging_face_agree(kind: str, name: str, cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batches, "MIN_CUT", cut)
    batch, model = BATCHES[name], random_model(kind).double()
    weights = torch.rand(batch.tokens.shape, dtype=F64)
    found = []
    for share in (True, False, None):
        model.zero_grad()
        policy = LanguagePolicy(model, tokenizer(), share_prompts=bool(share))
        logp = plain_logp(model, batch) if share is None else policy.evaluate(batch).logp
        (logp * weights).sum().backward()
        found.append((logp.detach(), gradients(policy)))
    (shared, d_shared), (unshared, d_unshared), (plain, d_plain) = found
    torch.testing.assert_close(unshared, plain, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(shared, plain, rtol=1e-9, atol=1e-9)
    assert d_shared.keys() == d_unshared.keys() == d_plain.keys()
    bound = 1e-10 if kind == "gpt2" else 1e-6  # the others' norms compute in float32 whatever the model's dtype
    for key, expected in d_plain.items():
        assert (d_unshared[key] - expected).norm() <= bound * expected.norm(), key
        assert (d_shared[key] - expected).norm() <= bound * expected.norm(), key


def test_pieces_are_cut_where_padding_is_saved() -> None:
    lengths = np.array([60, 5, 64, 6, 4, 62])
    assert [p.tolist() for p in micro_batches.by_length(lengths // 2)] == [[0, 1, 2, 3, 4, 5]]
    pieces = micro_batches.by_length(lengths * 10)
    assert [p.tolist() for p in sorted(pieces, key=len)] == [[0, 2, 5], [1, 3, 4]]


def test_float32_gradients_agree_to_1e_5() -> None:
    batch = random_batch((4, 4))
    found = []
    for share in (True, False):
        policy = random_policy(share_prompts=share)
        policy.evaluate(batch).logp.mean().backward()
        found.append(gradients(policy))
    for name, expected in found[1].items():
        assert (found[0][name] - expected).norm() <= 1e-5 * expected.norm(), name


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 3), st.integers(0, 10**6), st.integers(1, 20)
)
@settings(max_examples=25, deadline=None)
def test_sharing_never_changes_anything(sizes: list[int], turns: int, seed: int, high: int) -> None:
    batch = random_batch(sizes, turns=turns, seed=seed, low=1, high=high)
    outs = [random_policy(dtype=F64, share_prompts=share).evaluate(batch, {"entropy", "hidden"}) for share in (1, 0)]
    for name in ("logp", "entropy", "hidden"):
        torch.testing.assert_close(getattr(outs[0], name), getattr(outs[1], name), rtol=1e-9, atol=1e-9)


def test_padding_changes_nothing_and_rows_permute() -> None:
    batch, policy = random_batch((3, 2), turns=2), random_policy(dtype=F64)
    logp = policy.evaluate(batch).logp
    wide = batch.replace(
        **{k: torch.nn.functional.pad(getattr(batch, k), (0, 5)) for k in ("tokens", "attention_mask", "action_mask")}
    )
    torch.testing.assert_close(policy.evaluate(wide).logp[:, :-5], logp, rtol=1e-10, atol=1e-10)
    order = torch.randperm(len(batch))
    torch.testing.assert_close(policy.evaluate(batch.rows(order)).logp, logp[order], rtol=1e-10, atol=1e-10)
    one = batch.rows(torch.tensor([3]), trim=True)
    torch.testing.assert_close(policy.evaluate(one).logp[0], logp[3, : one.tokens.shape[1]], rtol=1e-10, atol=1e-10)


def test_entries_outside_the_mask_are_zero() -> None:
    batch, policy = random_batch((2, 2), turns=2), random_policy()
    out = policy.evaluate(batch, {"entropy", "values", "hidden"})
    for tensor in (out.logp, out.entropy, out.values, out.hidden):
        assert not tensor[~batch.action_mask].any()
    assert (out.logp[batch.action_mask] < 0).all() and (out.entropy[batch.action_mask] > 0).all()


def test_entropy_is_that_of_the_distribution() -> None:
    batch, model = random_batch((2, 1), temperature=0.8), random_model().double()
    out = LanguagePolicy(model, tokenizer()).evaluate(batch, {"entropy"})
    logp = (model(input_ids=batch.tokens[:1]).logits[0] / 0.8).log_softmax(-1)
    entropy = -(logp.exp() * logp).sum(-1)
    mask = batch.action_mask[0]
    torch.testing.assert_close(out.entropy[0][mask], entropy[:-1][mask[1:]], rtol=1e-9, atol=1e-9)


def test_sharing_happens_only_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []
    policy, batch = random_policy(), random_batch((4, 4), low=20, high=20)
    policy.evaluate(batch)  # which looks once whether the model attends to blocks
    inner = policy.model.base_model.forward

    def spy(*args: Any, **kwargs: Any) -> Any:
        calls.append(tuple(kwargs["input_ids"].shape))
        return inner(*args, **kwargs)

    monkeypatch.setattr(policy.model.base_model, "forward", spy)
    policy.evaluate(batch)
    assert calls[0] == (2, 20), "each of the two prompts is computed once"
    assert len(calls) == 2 and calls[1][0] == 8
    calls.clear()
    monkeypatch.setattr(micro_batches, "MIN_SHARED", 0.15)
    policy.evaluate(batch.rows(torch.tensor([0, 4])))
    assert len(calls) == 1, "two rows with prompts of their own share nothing"


@pytest.mark.parametrize("masked", [False, True])
def test_attention_under_autocast_equals_float32_attention_bit_for_bit(masked: bool) -> None:
    random = torch.Generator().manual_seed(0)
    module = torch.nn.Module()
    module.num_key_value_groups = 2
    mask = torch.ones(3, 1, 5, 9, dtype=torch.bool).tril(4) if masked else None
    found = []
    tensors = [torch.randn(3, heads, size, 16, generator=random) for heads, size in ((4, 5), (2, 9), (2, 9))]
    tensors[2] = tensors[2].bfloat16()
    for autocast in (True, False):
        q, k, v = (x.clone().requires_grad_() for x in tensors)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out, _ = forward.float32_attention(module, q, k, v if autocast else v.float(), mask)
        out.square().sum().backward()
        found.append([out.detach(), q.grad, k.grad, v.grad])
    assert found[0][0].dtype == torch.float32
    for under_autocast, float32 in zip(*found):
        assert torch.equal(under_autocast, float32)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_every_attention_of_the_training_forward_under_autocast_is_float32(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, kernel, seen = BATCHES["groups of different sizes"], torch.nn.functional.scaled_dot_product_attention, []

    def record(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        seen.append((q.dtype, k.dtype, v.dtype, torch.is_autocast_enabled("cpu")))
        return kernel(q, k, v, **options)

    policy, exact = random_policy(kind, autocast=True), random_policy(kind)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", record)
    policy.evaluate(batch).logp.square().sum().backward()
    assert set(seen) == {(torch.float32, torch.float32, torch.float32, False)}
    exact.evaluate(batch).logp.square().sum().backward()
    for name, expected in gradients(exact).items():  # the linear layers are bfloat16, which alone gives up to 7 %
        assert (gradients(policy)[name] - expected).norm() <= 0.15 * expected.norm(), name


def test_float32_attention_without_autocast_is_transformers_own_and_is_not_saved() -> None:
    policy = random_policy(autocast=True)
    assert policy.model.config._attn_implementation == forward.FLOAT32_ATTENTION
    assert "attn_implementation" not in policy.model.config.to_json_string()
    policy.autocast = False
    batch = BATCHES["one long prompt among short ones"]
    assert torch.equal(policy.evaluate(batch).logp, random_policy().evaluate(batch).logp)


@pytest.mark.parametrize("dtype", [F64, torch.bfloat16])
def test_float32_attention_takes_other_dtypes(dtype: torch.dtype) -> None:
    model, batch = random_model("llama").to(dtype), BATCHES["groups of different sizes"]
    logp = LanguagePolicy(model, tokenizer(), autocast=True).evaluate(batch).logp
    logp.sum().backward()
    assert logp.isfinite().all() and all(p.grad.dtype == dtype for p in model.parameters())

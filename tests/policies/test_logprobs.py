"""Chunked log-probabilities against the plain formula, values and gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from etude.policies import logprobs
from etude.policies.logprobs import token_logprobs

N, H, V = 7, 5, 11


def inputs(seed: int = 0, dtype: torch.dtype = torch.float64, bias: bool = True, n: int = N) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype).requires_grad_()

    return normal(n, H), normal(V, H), normal(V) if bias else None, torch.randint(V, (n,), generator=random)


def plain(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float, cap: float | None
) -> tuple[Tensor, Tensor]:
    z = hidden @ weight.T + (0 if bias is None else bias)
    z = z if cap is None else cap * torch.tanh(z / cap)
    logp = torch.log_softmax(z / temperature, -1)
    return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


CASES = list(itertools.product([1, 2, 3, 7, 100], [1.0, 0.7], [None, 2.0], [True, False]))


@pytest.mark.parametrize(("chunk", "temperature", "cap", "bias"), CASES)
def test_values_and_gradients(
    chunk: int, temperature: float, cap: float | None, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", chunk * V)
    results = []
    for function in (token_logprobs, plain):
        hidden, weight, b, targets = inputs(bias=bias)
        more = {"entropy": True} if function is token_logprobs else {}
        logp, entropy = function(hidden, weight, b, targets, temperature, cap, **more)
        (logp * torch.arange(1.0, N + 1) + entropy * torch.arange(N, 0, -1.0)).sum().backward()
        results.append([logp, entropy, hidden.grad, weight.grad] + ([b.grad] if bias else []))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.first
@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("entropy", [False, True])
def test_gradcheck(cap: float | None, entropy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 2 * V)
    hidden, weight, bias, targets = inputs(3)

    def outputs(*xs: Tensor) -> Any:
        found = token_logprobs(*xs, targets, 0.8, cap, entropy)
        return found if entropy else found[0]

    assert torch.autograd.gradcheck(outputs, (hidden, weight, bias))


def test_by_hand() -> None:
    """Logits (ln 1, ln 3): the second has probability 3/4, the entropy is ln 4 - 3/4 ln 3."""
    weight = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    logp, entropy = token_logprobs(torch.tensor([[3.0]]).double().log(), weight, None, torch.tensor([1]), entropy=True)
    assert logp.item() == pytest.approx(-0.2876820724517809, abs=1e-12)
    assert entropy.item() == pytest.approx(0.5623351446188083, abs=1e-12)


@pytest.mark.slow
@given(st.floats(0.05, 20), st.integers(1, 9), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_probabilities_of_all_tokens_sum_to_one(temperature: float, n: int, seed: int) -> None:
    hidden, weight, bias, _ = inputs(seed, n=n)
    every = torch.stack(
        [token_logprobs(hidden, weight, bias, torch.full((n,), v), temperature)[0] for v in range(V)], 1
    )
    torch.testing.assert_close(every.exp().sum(1), torch.ones(n, dtype=torch.float64))


def test_no_rows() -> None:
    hidden, weight, bias, targets = inputs(n=0)
    logp, entropy = token_logprobs(hidden, weight, bias, targets, entropy=True)
    assert logp.shape == entropy.shape == (0,)
    logp.sum().backward()
    assert not weight.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_precision_states_give_float32_results(dtype: torch.dtype) -> None:
    hidden, weight, bias, targets = inputs(dtype=dtype)
    logp, entropy = token_logprobs(hidden, weight, bias, targets, entropy=True)
    exact = plain(*(x.double() for x in (hidden, weight, bias)), targets, 1.0, None)
    assert logp.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logp.double(), exact[0], rtol=0, atol=1e-5 if dtype is torch.float32 else 0.05)
    (logp + entropy).sum().backward()
    assert hidden.grad.dtype == weight.grad.dtype == bias.grad.dtype == dtype


def test_large_logits_stay_finite() -> None:
    hidden = torch.tensor([[1e4], [-1e4]], dtype=torch.float32, requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], dtype=torch.float32, requires_grad=True)
    logp, entropy = token_logprobs(hidden, weight, None, torch.tensor([0, 0]), entropy=True)
    assert logp.tolist() == [0.0, -2e4] and entropy.tolist() == [0.0, 0.0]
    (logp + entropy).sum().backward()
    assert torch.isfinite(hidden.grad).all() and torch.isfinite(weight.grad).all()


class _Largest(TorchDispatchMode):
    """Remembers the most elements that any tensor with a vocabulary axis had, in the backward pass too."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.dim() == 2 and out.shape[1] == V:
            self.elements = max(self.elements, out.numel())
        return out


@pytest.mark.parametrize("chunk", [H + 1, 20])  # more than the head itself
def test_no_tensor_holds_logits_of_all_tokens(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", chunk * V)
    hidden, weight, bias, targets = inputs(n=50)
    with _Largest() as seen:
        logp, entropy = token_logprobs(hidden, weight, bias, targets, 0.9, 2.0, True)
    forward, seen.elements = seen.elements, 0
    with seen:
        (logp + entropy).sum().backward()
    assert forward == seen.elements == chunk * V

"""Log-probability and entropy of chosen tokens without ever holding logits for all of them.

With hidden states h [N, H] and head W [V, H], z = (h W' + b) / temperature:

    logp_n = z_n[y_n] - logsumexp(z_n),   entropy_n = logsumexp(z_n) - sum_v softmax(z_n)_v z_nv

are computed chunk by chunk; the backward pass computes each chunk's logits again and uses

    d logp / d z = onehot(y) - p,   d entropy / d z = -p (log p + entropy)

so that memory is one [chunk, V] buffer, whatever N is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS, CHUNK_QUEUED = 1 << 23, 1 << 26
"""Logits held at a time: 32 MB in float32. Less makes every chunk read a large head again, more gains nothing on a CPU;
elsewhere it is the second, for chunks that are not too small for the device."""


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float = 1.0,
    softcap: float | None = None,
    entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities [N] of `targets` [N] and, if asked, entropies [N], both float32 (float64 for float64 input).

    Args:
        hidden: [N, H] states that predict the targets.
        weight, bias: the output head, [V, H] and [V] or None.
        softcap: c in z -> c tanh(z / c), for models that cap their logits.
    """
    logp, ent = _TokenLogProbs.apply(hidden, weight, bias, targets, temperature, softcap, entropy)  # type: ignore[no-untyped-call]  # torch's
    return logp, ent if entropy else None


def voiced_logprobs(
    logits: Tensor, targets: Tensor, voices: Tensor, count: int, temperature: float = 1.0, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The same of a policy whose outputs [N, K V] are words by voice: of `targets` [N] by `voices` [N], jointly.

    Of voice -1 nobody knows who it was: the log-probability is that of the word by any. Entropies are of both together.

    Two voices of two words, the first of which has 3/4 of the say and says the first word alone:

    >>> said = torch.tensor([[0.75, 0.0, 0.125, 0.125]]).log().expand(3, -1)
    >>> logp, _ = voiced_logprobs(said, torch.tensor([0, 0, 1]), torch.tensor([0, 1, -1]), count=2)
    >>> [round(x, 6) for x in logp.exp().tolist()]
    [0.75, 0.125, 0.125]
    """
    logp = (logits / temperature).log_softmax(-1)
    own = logp.unflatten(1, (count, -1)).gather(2, targets[:, None, None].expand(-1, count, 1))[..., 0]
    known = own.gather(1, voices.clamp(min=0)[:, None])[:, 0]
    found = torch.where(voices >= 0, known, own.logsumexp(1))
    return found, -(logp.exp() * logp.nan_to_num(neginf=0)).sum(-1) if entropy else None


def allowed_logprobs(
    logits: Tensor, allowed: Tensor, targets: Tensor, temperature: float = 1.0, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The same where only some tokens could be drawn: of logits [N, V], and `allowed` [N, V] True on those.

    Of three tokens that are alike two could be drawn:

    >>> logp, entropy = allowed_logprobs(torch.zeros(1, 3), torch.tensor([[True, False, True]]), torch.tensor([2]))
    >>> round(logp.exp().item(), 6), entropy
    (0.5, None)
    """
    logp = (logits / temperature).masked_fill(~allowed, -torch.inf).log_softmax(-1)
    surprise = torch.where(allowed, logp.exp() * logp.masked_fill(~allowed, 0.0), 0.0)
    return logp.gather(1, targets[:, None])[:, 0], -surprise.sum(-1) if entropy else None


def chunk_elements(device: torch.device) -> int:
    """How many logits are held at a time."""
    return CHUNK_ELEMENTS if device.type == "cpu" else CHUNK_QUEUED


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, cap: float | None) -> Tensor:
    z = torch.nn.functional.linear(hidden, weight, bias)
    z = z if z.dtype == torch.float64 else z.float()
    z = cap * torch.tanh(z / cap) if cap else z
    return z if temperature == 1.0 else z / temperature


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor,
        temperature: float, cap: float | None, want_entropy: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logp = torch.empty(len(hidden), dtype=dtype, device=hidden.device)
        normaliser, entropy = torch.empty_like(logp), torch.zeros_like(logp)
        ctx.chunk = max(1, chunk_elements(hidden.device) // weight.shape[0])
        for start in range(0, len(hidden), ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            z = _logits(hidden[rows], weight, bias, temperature, cap)
            normaliser[rows] = z.logsumexp(-1)
            logp[rows] = z.gather(1, targets[rows, None])[:, 0] - normaliser[rows]
            if want_entropy:
                p = (z - normaliser[rows, None]).exp_()
                entropy[rows] = normaliser[rows] - p.mul_(z).sum(-1)
                del p
            del z  # before the next chunk's
        ctx.save_for_backward(hidden, weight, bias, targets, normaliser, entropy)
        ctx.temperature, ctx.cap, ctx.want_entropy = temperature, cap, want_entropy
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, grad_logp: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, _, normaliser, _ = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        d_hidden = torch.empty_like(hidden) if wants_hidden else None
        d_weight = torch.zeros_like(weight, dtype=normaliser.dtype) if wants_weight else None
        d_bias = torch.zeros_like(bias, dtype=normaliser.dtype) if wants_bias else None
        for start in range(0, len(hidden), ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            d_z = _TokenLogProbs._slopes(ctx, rows, grad_logp[rows, None], grad_entropy[rows, None])
            if d_hidden is not None:
                d_hidden[rows] = d_z @ weight.to(hidden.dtype)
            if d_weight is not None:
                if d_weight.dtype == d_z.dtype:
                    d_weight.addmm_(d_z.T, hidden[rows])
                else:
                    d_weight += d_z.T @ hidden[rows]
            if d_bias is not None:
                d_bias += d_z.sum(0)
            del d_z  # before the next chunk's logits
        d_weight = None if d_weight is None else d_weight.to(weight.dtype)
        d_bias = None if d_bias is None else d_bias.to(bias.dtype)
        return d_hidden, d_weight, d_bias, None, None, None, None

    @staticmethod
    def _slopes(ctx: Any, rows: slice, grad_logp: Tensor, grad_entropy: Tensor) -> Tensor:
        """d loss / d (h W' + b) of some rows [N, V], in the dtype of the hidden states."""
        hidden, weight, bias, targets, normaliser, entropy = ctx.saved_tensors
        z = _logits(hidden[rows], weight, bias, ctx.temperature, ctx.cap)
        slope = 1 - (z * ctx.temperature / ctx.cap) ** 2 if ctx.cap else None
        logp = z.sub_(normaliser[rows, None])
        d_z = logp.exp()
        if ctx.want_entropy:
            d_z.mul_(logp.add_(entropy[rows, None]).mul_(grad_entropy).add_(grad_logp).neg_())
        else:
            d_z.mul_(-grad_logp)
        d_z.scatter_add_(1, targets[rows, None], grad_logp)
        if slope is not None:
            d_z *= slope
        return d_z.div_(ctx.temperature).to(hidden.dtype)

"""What a run will need, said before it starts (so that the out-of-memory killer is no surprise).

What tokens keep between a forward pass and its backward pass is measured on a few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.policies.logprobs import chunk_elements
from etude.runtime.memory import available, shown

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

WIDTHS = (16, 32, 64)
"""Tokens of the rows that are tried: three tell what is constant, linear and quadratic in a row's length."""
MICRO_TOKENS, MOST_TOKENS = 8192, 1 << 16
"""Tokens of a micro-batch on a CPU, the fewest and the most on a GPU if nobody says."""
SHARE, ROW = 0.6, 512
"""Of a GPU's memory, what weights and a micro-batch may take together then, and how long its rows are taken to be."""
BUFFERS = 2
"""Chunks of logits that a backward pass holds at its most: these and their slopes (`policies/logprobs.py`)."""


class Footprint(NamedTuple):
    """Bytes that rows of T tokens keep: `constant`, and for each `linear` T + `quadratic` T^2.

    The constant are copies of weights in another dtype; the quadratic part is there where attention keeps its weights.
    """

    constant: float
    linear: float
    quadratic: float

    def of(self, rows: float, length: int) -> float:
        """Bytes of some rows of so many tokens.

        >>> Footprint(7.0, 100.0, 2.0).of(rows=3, length=10)
        3607.0
        """
        return self.constant + rows * length * (self.linear + self.quadratic * length)


def footprint(policy: LanguagePolicy) -> Footprint:
    """What rows keep for a policy's backward pass, by torch's own account of what autograd saves."""
    a, b, c = WIDTHS
    short, middle, long = (_saved(policy, width) for width in WIDTHS)
    first, second = (middle - short) / (b - a), (long - middle) / (c - b)
    quadratic = max(0.0, (second - first) / (c - a))  # the divided difference
    linear = second - quadratic * (b + c)
    return Footprint(max(0.0, long - c * (linear + quadratic * c)), linear, quadratic)


def micro_tokens(policy: LanguagePolicy, memory: int | None = None) -> int:
    """Tokens of a micro-batch where nobody says how many, the same on every machine of a kind.

    On a GPU a pass takes as long for few tokens as for ten thousand, since its kernels are put into a queue one by one:
    there it is the largest power of two for which there is room.

    Args:
        memory: bytes that the GPU has, if it is not asked.
    """
    if memory is None:
        if policy.device.type != "cuda":
            return MICRO_TOKENS
        memory = torch.cuda.get_device_properties(policy.device).total_memory
    room, kept, tokens = SHARE * memory - model_bytes(policy), footprint(policy), MICRO_TOKENS
    while tokens < MOST_TOKENS and update_bytes(policy, tokens, ROW, 2 * tokens, kept) <= room:
        tokens *= 2
    return tokens


def update_bytes(policy: LanguagePolicy, rows: int, length: int, budget: int, kept: Footprint | None = None) -> int:
    """Bytes that the largest micro-batch of an update takes beside weights and gradients: as its backward pass begins.

    Args:
        rows: of the step, of `length` tokens each, no two of which share a prompt: sharing takes no more.
        budget: tokens of a micro-batch; a row that is longer has one of its own.
        kept: the policy's footprint, where it is known.
    """
    held = max(1, min(rows, budget // length))
    head, tokens = policy.model.get_output_embeddings().weight, held * length
    size, half = max(4, head.element_size()), head.element_size() == 2  # logits are float32, as a head's gradient is
    buffers = (BUFFERS * size + 2 * half) * min(chunk_elements(head.device), tokens * head.shape[0])
    return int((kept or footprint(policy)).of(held, length) + buffers + (head.numel() + tokens * head.shape[1]) * size)


class Needed(NamedTuple):
    """Bytes that a run takes.

    Args:
        model: weights, masters, gradients, Adam's moments and copies.
        cache: keys and values of the completions that are sampled at a time.
        update: what the largest micro-batch keeps for its backward pass.
    """

    model: int
    cache: int
    update: int

    @property
    def most(self) -> int:
        """At a time: sampling and learning take turns."""
        return self.model + max(self.cache, self.update)


def estimate(policy: LanguagePolicy, rows: int, length: int, micro_tokens: int) -> Needed:
    """What a run takes at its most.

    Args:
        policy: the language model, as it will be trained.
        rows: completions sampled at a time.
        length: tokens of the longest row that is to be expected.
        micro_tokens: tokens of a micro-batch.
    """
    update = update_bytes(policy, rows, length, micro_tokens)
    return Needed(model_bytes(policy), rows * policy.cache_bytes(length), update)


def model_bytes(policy: LanguagePolicy) -> int:
    """Bytes of weights, masters, gradients, Adam's moments and copies."""
    weights = sum(p.numel() * p.element_size() for p in policy.model.parameters())
    trained = sum(p.numel() * p.element_size() for p in policy.parameters())
    copies = (weights if policy.reference is not None else 0) + (weights // 2 if policy.shadow else 0)
    return weights + policy.masters.extra_bytes + 3 * trained + copies


def sentence(policy: LanguagePolicy, rows: int, length: int, micro_tokens: int) -> str:
    """The estimate for people, with a warning if it is more than the machine has free."""
    needed = estimate(policy, rows, length, micro_tokens)
    millions = sum(p.numel() for p in policy.model.parameters()) / 1e6
    text = (
        f"{millions:,.2f} million parameters; about {shown(needed.model)} for weights, gradients and optimizer, "
        f"beside them {shown(needed.cache)} for the keys and values of {rows} completions, then {shown(needed.update)} "
        f"for an update's micro-batches"
    )
    free = available()
    if policy.device.type == "cpu" and free is not None and needed.most > free:
        return (
            f"{text}. That is more than the {shown(free)} that are free: the system may end the run. Lower problems "
            "(--set problems=...), experience.size or --micro-tokens, or train an adapter (--adapter lora)."
        )
    return f"{text}."


def _saved(policy: LanguagePolicy, width: int) -> int:
    """Bytes of all that one row's graph keeps, each storage once, but the model's own."""
    own = {_key(x) for x in (*policy.model.parameters(), *policy.model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(x: Tensor) -> Tensor:
        if _key(x) not in own:
            kept.setdefault(_key(x), x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        said = policy.evaluate(_row(width, policy.device))
    del said
    return sum(x.untyped_storage().nbytes() for x in kept.values())


def _key(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _row(width: int, device: torch.device) -> TokenBatch:
    """One row [1, T] of the first token, all but which is said."""
    tokens, one = torch.zeros(1, width, dtype=torch.long, device=device), torch.ones(1, device=device)
    said = torch.arange(width, device=device)[None] > 0
    nothing = torch.zeros(1, width, device=device)
    return TokenBatch(
        tokens, torch.ones_like(said), said, nothing, nothing, one.long(), one, one, torch.zeros_like(one).bool()
    )  # fmt: skip

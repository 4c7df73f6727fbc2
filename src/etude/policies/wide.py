"""A wider model that says what another one says: `wide:2x4:NAME` is twice as wide, its feed-forward layers four times.

Every hidden number stands there twice, and so does every head; what reads a number that stands there n times has n
weights for it, which add up to the one that it had. So the logits are those of NAME, to rounding, and pass@k of the
start is the same whatever the width (Net2Net, arXiv:1511.05641). Copies are told apart by how the weight is divided,
at random but the same way in every run: with equal parts all copies would have equal gradients, and stay copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.core.errors import ConfigError

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedModel

SEED = 0


def widened(model: PreTrainedModel, name: str, hidden: int, inner: int) -> LlamaForCausalLM:
    """The wider model, in float32.

    Args:
        model: a Llama-type decoder without biases.
        name: what it is called, for what is said.
        hidden: factor of the hidden width and of the number of heads, which stay as wide as they are.
        inner: factor of the width of feed-forward layers.

    Raises: ConfigError for another kind of model.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    if not isinstance(model, LlamaForCausalLM) or any(key.endswith("bias") for key in model.state_dict()):
        raise ConfigError(
            f"wide:... can widen Llama-type decoders without biases, and {name} is a {type(model).__name__}: name "
            "'tiny', 'tiny-agent', a blank one or a run that began with one of these."
        )
    old, attention = model.config, model.model.layers[0].self_attn
    groups = old.num_key_value_heads or old.num_attention_heads
    config = LlamaConfig.from_dict({
        **old.to_dict(), "dtype": "float32", "hidden_size": hidden * old.hidden_size,
        "intermediate_size": inner * old.intermediate_size, "num_attention_heads": hidden * old.num_attention_heads,
        "num_key_value_heads": hidden * groups, "head_dim": attention.head_dim,
        "tie_word_embeddings": False,
    })  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        wide = LlamaForCausalLM(config)
    random = torch.Generator().manual_seed(SEED)
    weights = {**model.state_dict(), "lm_head.weight": model.lm_head.weight}
    copies = {key: _wider(key, weights[key].detach().float(), hidden, inner, random) for key in wide.state_dict()}
    wide.load_state_dict(copies)
    return wide


def _wider(key: str, weight: Tensor, hidden: int, inner: int, random: torch.Generator) -> Tensor:
    """A parameter of the wider model, by its name."""
    if "norm" in key:
        return weight.repeat(hidden)
    if "embed_tokens" in key:
        return weight.repeat(1, hidden)
    if "lm_head" in key:
        return divided(weight, 1, hidden, random)
    if "down_proj" in key:
        return divided(weight, hidden, inner, random)
    return divided(weight, inner if "gate_proj" in key or "up_proj" in key else hidden, hidden, random)


def divided(weight: Tensor, outputs: int, inputs: int, random: torch.Generator) -> Tensor:
    """Weights of copies: each output there `outputs` times, each weight in `inputs` random parts that add up to it.

        W'[i, j] = W / n + e[i, j] - mean_j e[i, j],    n = inputs,  e normal with the deviation of W over sqrt(n)

    Shapes: `weight` [out, in]; returns [outputs * out, inputs * in].

    >>> parts = divided(torch.ones(1, 2), 3, 2, torch.Generator())
    >>> parts.shape, parts.reshape(3, 2, 2).sum(1).allclose(torch.ones(3, 2))
    (torch.Size([3, 4]), True)
    """
    rows, columns = weight.shape
    spread = float(weight.std(correction=0)) / inputs**0.5
    noise = spread * torch.randn(outputs, rows, inputs, columns, generator=random, dtype=weight.dtype)
    parts: Tensor = weight[:, None] / inputs + noise - noise.mean(2, keepdim=True)
    return parts.reshape(outputs * rows, inputs * columns)

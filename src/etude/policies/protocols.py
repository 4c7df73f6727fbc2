"""What etude asks of transformers' models, where their own types do not say it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, TypeAlias

from torch import Tensor, nn

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
    from typing_extensions import TypeIs

Model: TypeAlias = "PreTrainedModel | PeftModel"
"""A causal language model, or peft's wrapper around one."""


class Speaker(Protocol):
    """What texts are encoded by: a policy, or its tokenizer alone."""

    tokenizer: PreTrainedTokenizerBase

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, no special tokens added."""
        ...


class States(Protocol):
    """What a backbone returns."""

    last_hidden_state: Tensor


class Backbone(Protocol):
    """A causal language model without its head: tokens to hidden states."""

    training: bool
    config: PreTrainedConfig

    def __call__(self, **inputs: object) -> States:
        """Hidden states [B, T, H] of `input_ids` [B, T]."""
        ...

    def forward(self, **inputs: object) -> States:
        """What the call does."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """Its weights."""
        ...


def adapted(model: Model) -> TypeIs[PeftModel]:
    """Whether only adapters inside the model are trained."""
    return hasattr(model, "disable_adapter")


def embedded(causal: PreTrainedModel) -> int:
    """How many tokens the model has an embedding for."""
    weight = causal.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return weight.shape[0]

"""A policy's weights as plain tensors by name: the one place that reads them whole, sets them, and writes them down.

What compares, copies or saves weights asks here: the fingerprint, the copy that decodes, snapshots for samplers, the
reference, checkpoints.
"""

from __future__ import annotations

import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from etude.core.errors import ConfigError
from etude.policies import adapters, quantized
from etude.policies.fingerprint import fingerprint
from etude.policies.masters import Masters
from etude.policies.protocols import Model, adapted
from etude.policies.shards import Evaluate, Shards, check
from etude.runtime.ranks import Ranks

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VALUE_HEAD = "value_head.safetensors"
"""Beside a model's files, where it has one."""


class Weights:
    """Those of a model that is trained, of the value head on it, and of its frozen reference.

    Args:
        model: what is trained.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.value_head: nn.Linear | None = None
        self.reference: Model | None = None
        self.reference_masters: Masters | None = None

    @cached_property
    def masters(self) -> Masters:
        """The trained weights as the optimizer knows them, made on first use: most policies are never trained."""
        return Masters((k, p) for k, p in self.model.named_parameters() if p.requires_grad)

    def parameters(self) -> list[nn.Parameter]:
        """What is trained: of weights in 16 bits their float32 masters."""
        extra = [] if self.value_head is None else list(self.value_head.parameters())
        return [*self.masters.parameters.values(), *extra]

    def trained(self) -> dict[str, Tensor]:
        """What training changes of the model, as the model has it."""
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}

    def mark(self) -> tuple[float, ...]:
        """The fingerprint of what is trained."""
        return (*self.masters.mark(), *fingerprint([] if self.value_head is None else self.value_head.parameters()))

    def merged(self) -> PreTrainedModel:
        """The causal LM with adapters folded in."""
        if not adapted(self.model):
            return self.model
        quantized.check_folding(self.model)
        merged: PreTrainedModel = copy.deepcopy(self.model).merge_and_unload()
        return merged

    # Divided among ranks

    @property
    def shards(self) -> Shards | None:
        """The model that computes with the shards of all ranks, where weights are divided."""
        return self.masters if isinstance(self.masters, Shards) else None

    def divide(self, evaluate: Evaluate, ranks: Ranks) -> None:
        """Divide what is trained among ranks, all of which do so at once, and before an optimizer is built.

        Raises: ConfigError for weights that cannot be.
        """
        check(self.model)
        shards = Shards(cast("PreTrainedModel", self.model), evaluate, ranks)
        self.masters = shards  # in place of those that are made on first use
        self.model = self.model if shards.weights else shards.model

    # The reference

    def keep_reference(self) -> None:
        """Freeze the weights as they are as the reference; with an adapter, switching it off is the reference."""
        if not adapted(self.model) and self.reference is None:
            self.reference = copy.deepcopy(self.model).requires_grad_(False).eval()

    @torch.no_grad()
    def move_reference(self, fraction: float, towards: dict[str, Tensor] | None = None) -> None:
        """reference <- (1 - fraction) reference + fraction policy, or towards other weights by name."""
        if adapted(self.model):
            raise ConfigError("A reference that moves needs full weights: with an adapter the reference is the base.")
        assert self.reference is not None
        if self.reference_masters is None:  # of a 16-bit reference a small fraction would be lost to rounding
            self.reference_masters = Masters(self.reference.named_parameters())
        exact = towards or self.masters.whole()
        for name, mine in self.reference_masters.parameters.items():
            mine.lerp_(exact[name], fraction)
        self.reference_masters.publish()

    # As files

    def tensors(self) -> dict[str, Tensor]:
        """Every trained tensor and the reference, by name: what an exact resume needs."""
        everything: dict[str, Tensor] = {f"model.{k}": v for k, v in self.masters.parameters.items()}
        if self.value_head is not None:
            everything |= {f"value_head.{k}": v for k, v in self.value_head.named_parameters()}
        if self.reference is not None:
            exact = self.reference_masters
            named = self.reference.named_parameters() if exact is None else exact.parameters.items()
            everything |= {f"reference.{k}": v for k, v in named}
        return {k: v.detach() for k, v in everything.items()}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `tensors` returned; a value head and a reference that it has are there already."""
        kept = next((v for k, v in tensors.items() if k.startswith("reference.")), None)
        if kept is not None and self.reference is not None and kept.dtype != self.reference.dtype:
            self.reference_masters = Masters(self.reference.named_parameters())
        self.masters.load({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
        for name, mine in self.tensors().items():
            if not name.startswith("model."):
                mine.copy_(tensors[name])
        if self.reference_masters is not None:
            self.reference_masters.publish()

    def save(self, folder: Path, base: str) -> None:
        """Write the model in Hugging Face's format, and the value head; with an adapter, that alone in peft's.

        Args:
            base: what an adapter is of.
        """
        if adapted(self.model):
            adapters.save(self.model, folder, base)
        else:
            self.model.save_pretrained(folder)
        if self.value_head is not None:
            from safetensors.torch import save_file

            save_file(self.value_head.state_dict(), folder / VALUE_HEAD)

    def saved_value_head(self, folder: Path) -> dict[str, Tensor] | None:
        """The value head that `save` wrote, if there was one."""
        if not (path := folder / VALUE_HEAD).is_file():
            return None
        from safetensors.torch import load_file

        return load_file(path)

"""Weights divided among ranks, by FSDP2 (arXiv:2304.11277; `torch.distributed.fsdp.fully_shard`).

Every rank holds its rows of each weight, in float32 where the model has 16 bits, with their gradients and moments. A
layer is whole only while it computes, the embeddings and the head from a pass until its gradient is known. The first
rank has all weights beside that, as the model has them, for whatever it does alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError
from etude.policies.fingerprint import fingerprint
from etude.policies.masters import LOW, Masters
from etude.policies.protocols import Model, adapted
from etude.runtime.ranks import Ranks
from etude.runtime.shards import Shard

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from transformers import PreTrainedModel

Evaluate = Callable[["PreTrainedModel", TokenBatch, frozenset[str]], TokenLogProbs]


class Shards(Masters):
    """This rank's shards of a model's weights, and the model that computes with those of all ranks.

    Args:
        model: what is trained, as `check` has let through: on the first rank it stays as it is and is kept up to date,
            on others it is divided.
        evaluate: what the model says of a batch, in the middle of a pass.
        ranks: who has the other shards; all of them make theirs at once.
    """

    def __init__(self, model: PreTrainedModel, evaluate: Evaluate, ranks: Ranks) -> None:
        first = ranks.rank == 0
        self.weights = dict(model.named_parameters()) if first else {}
        self.dtype, self.ranks = model.dtype, ranks
        self._mark = fingerprint(_exact(p) for p in model.parameters())
        self.model = copy.deepcopy(model) if first else model
        self.parts = _divided(_Pass(self.model, evaluate), layers(self.model), self.dtype, ranks.count)
        self.shards = {k: _shard(p, ranks) for k, p in self.model.named_parameters()}
        self.parameters = {**self.shards}

    def __call__(self, batch: TokenBatch, needs: frozenset[str]) -> TokenLogProbs:
        """What the model says of this rank's rows, while the others ask the same of theirs: one pass of all."""
        try:
            return TokenLogProbs(**self.parts(batch, needs))
        finally:
            if not torch.is_grad_enabled():
                cast("FSDPModule", self.parts).reshard()

    @torch.no_grad()
    def publish(self) -> None:
        """Bring the first rank's weights up to date, one after another; all ranks call it at once."""
        marks: list[float] = []
        for name, shard in self.shards.items():
            now = shard.joined(shard)
            marks += fingerprint([now])
            if name in self.weights:
                self.weights[name].copy_(now)
        self._mark = tuple(marks)

    @property
    def exact(self) -> bool:
        """Whether the first rank's weights are the shards to the last bit."""
        return self.dtype not in LOW

    def whole(self) -> Mapping[str, Tensor]:
        """The first rank's weights. Raises ConfigError where they are rounded."""
        if not self.exact:
            raise ConfigError(
                "A reference that moves, or a copy that lags, is made of exact weights, and with --shard the first "
                "rank has them in 16 bits alone: train in --dtype float32, or leave --shard out."
            )
        return self.weights

    def mark(self) -> tuple[float, ...]:
        """The fingerprint of the masters, whole, as of the last `publish` or `load`."""
        return self._mark

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take this rank's rows of other numbers, which are given whole."""
        for name, shard in self.shards.items():
            shard.copy_(shard.cut(tensors[name]))
            if name in self.weights:
                self.weights[name].copy_(tensors[name])
        self._mark = fingerprint(_exact(tensors[name]) for name in self.parameters)

    @property
    def extra_bytes(self) -> int:
        """Memory that the shards take: beside the weights on the first rank."""
        return sum(shard.nbytes for shard in self.parameters.values())


class _Pass(nn.Module):
    """A pass through a model and its head: FSDP2 gathers its weights where it begins."""

    def __init__(self, model: PreTrainedModel, evaluate: Evaluate) -> None:
        super().__init__()
        self.model, self.evaluate = model, evaluate

    def forward(self, batch: TokenBatch, needs: frozenset[str]) -> dict[str, Tensor]:
        """Every tensor of `TokenLogProbs` by name: FSDP2 finds in a dict what has a gradient, and wants no views."""
        said = {k: v for k, v in vars(self.evaluate(self.model, batch, needs)).items() if isinstance(v, Tensor)}
        return {name: value.clone() if value._is_view() else value for name, value in said.items()}


def check(model: Model) -> None:
    """Raise ConfigError for a model whose weights cannot be divided."""
    if adapted(model):
        raise ConfigError("--shard divides weights, and those of an adapter are few: leave one of them out.")
    if (device := next(model.parameters()).device).type != "cpu":
        raise ConfigError(
            f"--shard divides weights over gloo, and so on a CPU alone for now, not on {device}: give --device cpu, or "
            "leave --shard out."
        )
    if not all(p.requires_grad for p in model.parameters()):
        raise ConfigError("--shard divides weights that are all trained, and some of these are frozen: leave it out.")
    layers(model)


def layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers, each of which is gathered by itself. Raises ConfigError where they cannot be found."""
    count = model.config.get_text_config().num_hidden_layers
    found = [m for m in model.base_model.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    if len(found) != 1:
        raise ConfigError(
            f"--shard gathers one layer after another, and {type(model).__name__} has no one list of {count} layers: "
            "leave it out."
        )
    return list(found[0])


def _divided(whole: nn.Module, layers: list[nn.Module], dtype: torch.dtype, count: int) -> nn.Module:
    """The model as FSDP2 divides it: gradients are sums over ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh, low = init_device_mesh("cpu", (count,)), dtype in LOW
    if low:
        for parameter in whole.parameters():
            parameter.data = parameter.data.float()
    precision = MixedPrecisionPolicy(
        param_dtype=dtype if low else None, reduce_dtype=torch.float32 if low else None, cast_forward_inputs=False
    )
    for module in (*layers, whole):
        unit = fully_shard(module, mesh=mesh, mp_policy=precision)
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)  # gloo has no sum that is scaled on the way
    return whole


def _shard(parameter: nn.Parameter, ranks: Ranks) -> Shard:
    """What the optimizer steps on: this rank's rows, which take their gradient over as it arises."""
    from torch.distributed.tensor import DTensor

    assert isinstance(parameter, DTensor)
    shard = Shard.of(parameter.to_local(), parameter.shape, ranks)

    def hand_over(divided: Tensor) -> None:
        assert isinstance(divided.grad, DTensor)
        rows = divided.grad.to_local()
        shard.grad = rows if shard.grad is None else shard.grad.add_(rows)
        divided.grad = None

    parameter.register_post_accumulate_grad_hook(hand_over)  # type: ignore[no-untyped-call]
    return shard


def _exact(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in LOW else tensor

"""A critic of tokens with a network of its own."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError
from etude.core.fields import Positive, WholeNumber
from etude.core.learners import Learning, OwnCritic
from etude.core.part import Need
from etude.core.worlds import World
from etude.learners.token import value_loss
from etude.optimizers.adam import AdamW
from etude.policies.forward import predictive_states
from etude.runtime.checkpoints import newest_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from etude.core.method import Method
    from etude.policies.language import LanguagePolicy


class ValueModel(OwnCritic):
    """A model of its own, the policy's as it was when the critic began, with a value head; squared error.

        loss = 1/2 mean_t (V_t - R_t)^2    over the tokens of rows that do not go on in a later step

    or, with a clip, that of `TokenCritic`, half of the larger of the squared errors of V_t and of V_t held within the
    clip of what it was. V at token t is the value of the text before t, R_t the advantages' returns. Of a row that
    began in an earlier step the tokens said then are learned too. An adapter of the policy is folded in, and all of the
    model is trained, in float32: it takes the memory of a second policy. The head begins at 0.

    Args:
        learning: when and how it learns.
        lead: training steps at its beginning in which it learns alone and the policy waits.
        clip: how far values may move in a step before the error says so, in rewards; None: as far as they like.
        model: what it begins as, with its value head: the run or the folder of a reward model; empty: the policy.

    Raises: ConfigError for a model whose tokens are not the policy's.

    Shapes: values, returns [B, T] -> [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(returns=torch.tensor([[1.0, 1.0]]), values=torch.tensor([[0.0, 1.0]]))
    >>> ValueModel().loss(rows, torch.tensor([[0.0, 3.0]])).tolist()
    [[0.5, 2.0]]
    >>> ValueModel(clip=0.5).loss(rows, torch.tensor([[1.5, 1.25]])).tolist()
    [[0.125, 0.03125]]
    """

    needs: ClassVar[frozenset[Need]] = frozenset()
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})  # it begins as a language model
    learning: Learning = Learning(optimizer=AdamW())
    lead: WholeNumber = 0
    clip: Positive | None = None
    model: str = ""

    def check(self) -> None:
        object.__setattr__(self, "model", newest_model(self.model))  # named as it is now: a run may go on

    @property
    def label(self) -> str:
        return "value"

    def objection(self, method: Method) -> str | None:
        users = [part for path, part in method.parts().items() if path.split(".")[0] == "advantages"]
        if not any(Need.VALUES in part.needs for part in users):
            return "has no returns to learn from: they come with advantages that use values (--with gae)."
        return super().objection(method)

    def build(self, policy: LanguagePolicy) -> Valued:
        return Valued(policy, self.model)

    def taught(self, batch: TokenBatch) -> Tensor:
        return batch.said & batch.finished[:, None]

    def loss(self, batch: TokenBatch, values: Tensor) -> Tensor:
        return value_loss(batch, TokenLogProbs(values, values=values), 1.0, self.clip)


class Valued:
    """A copy of a policy's model that says values: `ValueNetwork`; or another one, with its value head."""

    def __init__(self, policy: LanguagePolicy, name: str = "") -> None:
        from etude.policies.language import LanguagePolicy

        named = _named(name, policy) if name else None
        model = silent_copy(policy if named is None else named, policy.head_dtype)
        self.policy = LanguagePolicy(
            model, policy.tokenizer, share_prompts=policy.share_prompts, autocast=policy.autocast, shadow=False
        )
        head = self.policy.add_value_head()
        if named is not None and named.value_head is not None:
            head.load_state_dict(named.value_head.state_dict())

    def values(self, batch: TokenBatch) -> Tensor:
        """[B, T] of the text before each action token."""
        own, head = self.policy, self.policy.add_value_head()
        with torch.autocast(own.device.type, torch.bfloat16) if own.autocast else nullcontext():
            hidden = predictive_states(own.backbone(own.merged()), own.config, batch, own.share_prompts, own.held)
        flat: Tensor = head(hidden.to(head.weight.dtype))[:, 0]
        return flat.new_zeros(batch.action_mask.shape).masked_scatter(batch.action_mask, flat)

    def parameters(self) -> list[nn.Parameter]:
        """What is trained."""
        return self.policy.parameters()

    def updated(self) -> None:
        """A step changed the parameters."""
        self.policy.updated()

    def tensors(self) -> dict[str, Tensor]:
        """Weights by name."""
        return self.policy.tensors()

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Undo `tensors`."""
        self.policy.load_tensors(tensors)


def silent_copy(policy: LanguagePolicy, dtype: torch.dtype) -> PreTrainedModel:
    """A copy of a policy's model, adapters folded in, all of which is trained but its last layer: it says no tokens."""
    from etude.policies.loading import move

    model = copy.deepcopy(policy.merged())
    model.requires_grad_(True)
    move(model, dtype=dtype)
    last, first = model.get_output_embeddings(), model.get_input_embeddings()
    if last.weight is not first.weight:
        last.requires_grad_(False)  # nobody asks what the next token is
    return model


def _named(name: str, policy: LanguagePolicy) -> LanguagePolicy:
    """A model from outside of the run, where the policy is and with the same tokens."""
    from etude.policies.language import LanguagePolicy

    found = LanguagePolicy.load(name, device=str(policy.device))
    if found.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise ConfigError(
            f"{name!r} has other tokens than the policy, so it cannot value the policy's: set ValueModel.model to a "
            "model with the same tokenizer, or leave it empty."
        )
    return found

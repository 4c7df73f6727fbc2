"""What a policy says of the tokens of a batch, from the states that predict them: among all tokens, or among some.

Where only some tokens could be drawn (`TokenBatch.allowed`) the others have no part in it; what was added to logits
(`TokenBatch.tilts`) is added; where a policy has several voices (`selective.py`) a token is scored together with the
voice that said it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn

from etude.core.batches import Head, TokenBatch, TokenLogProbs
from etude.policies.forward import spread_over
from etude.policies.logprobs import allowed_logprobs, token_logprobs, voiced_logprobs

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


class Output(NamedTuple):
    """The last layer of a model, as its configuration says that it is read.

    Args:
        layer: a linear one, or what has the like of its `weight`.
        softcap: c of models whose logits z are c tanh(z / c).
        voices: by how many voices a word can be said, each an output of its own.
    """

    layer: nn.Linear
    softcap: float | None = None
    voices: int = 1

    @classmethod
    def of(cls, causal: PreTrainedModel, config: PreTrainedConfig) -> Output:
        """That of a causal language model."""
        cap = getattr(config, "final_logit_softcapping", None)
        return cls(cast("nn.Linear", causal.get_output_embeddings()), cap, int(getattr(config, "voices", 1)))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] of hidden states [N, H], in float32 (float64 for float64 states)."""
        z: Tensor = self.layer(hidden)
        z = z if z.dtype == torch.float64 else z.float()
        return self.softcap * torch.tanh(z / self.softcap) if self.softcap else z

    def copied(self, temperature: float) -> Head:
        """The layer as it is now, without gradient: a copy, which later updates leave alone."""
        weight, bias = (None if x is None else x.detach().clone() for x in (self.layer.weight, self._bias))
        assert weight is not None
        return Head(weight, bias, temperature, self.softcap)

    def logprobs(
        self, hidden: Tensor, batch: TokenBatch, places: Tensor, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Log-probabilities [N] of the batch's tokens at these places [N] of its flat [B T], and entropies [N]."""
        targets = batch.tokens.flatten()[places]
        allowed = None if batch.allowed is None else batch.allowed.flatten(0, 1)[places]
        tilts = None if batch.tilts is None else batch.tilts.flatten(0, 1)[places]
        if self.voices > 1:
            voices = torch.full_like(targets, -1) if batch.voices is None else batch.voices.flatten()[places]
            logits = tilted(self.logits(hidden), tilts, self.voices)
            if allowed is not None:
                logits = logits.masked_fill(~allowed.repeat(1, self.voices), -torch.inf)
            return voiced_logprobs(logits, targets, voices, self.voices, batch.temperature, entropy)
        if allowed is not None or tilts is not None:
            logits = tilted(self.logits(hidden), tilts)
            free = torch.ones_like(logits, dtype=torch.bool) if allowed is None else allowed
            return allowed_logprobs(logits, free, targets, batch.temperature, entropy)
        weight = self.layer.weight.to(hidden.dtype)
        return token_logprobs(hidden, weight, self._bias, targets, batch.temperature, self.softcap, entropy)

    @property
    def _bias(self) -> Tensor | None:
        return getattr(self.layer, "bias", None)


def tilted(logits: Tensor, tilts: Tensor | None, voices: int = 1) -> Tensor:
    """Logits [N, K V] with what is added to those of each word, [N, V], by whichever of the K voices it is said."""
    return logits if tilts is None else logits + tilts.to(logits.dtype).repeat(1, voices)


def scored(
    output: Output, hidden: Tensor, batch: TokenBatch, needs: Collection[str], values: nn.Linear | None = None
) -> TokenLogProbs:
    """What the states [N, H] that predict a batch's action tokens, in row-major order, come to.

    Args:
        needs: what is wanted beside log-probabilities: 'entropy', 'values', 'hidden', 'logits'.
        values: the value head, where values are.
    """
    mask = batch.action_mask
    places = torch.nonzero_static(mask.flatten(), size=len(hidden))[:, 0]  # how many they are is known
    logp, entropy = output.logprobs(hidden, batch, places, "entropy" in needs)

    def spread(flat: Tensor) -> Tensor:
        return spread_over(mask, places, flat)

    return TokenLogProbs(
        spread(logp),
        None if entropy is None else spread(entropy),
        None if values is None else spread(values(hidden.to(values.weight.dtype))[:, 0]),
        spread(hidden) if "hidden" in needs else None,
        logits=spread(output.logits(hidden)) if "logits" in needs else None,
    )

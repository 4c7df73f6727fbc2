"""Models whose word about a text is asked for: one kind of value, wherever they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from etude.core.batches import TokenBatch
from etude.core.errors import ConfigError
from etude.core.part import Need, Part
from etude.core.worlds import World
from etude.runtime.checkpoints import check_shapes, newest_model

if TYPE_CHECKING:
    from torch import Tensor

    from etude.core.method import Method
    from etude.policies.language import LanguagePolicy


class Model(Part, abstract=True):
    """A model that says how likely tokens are."""

    slot = "whose"
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    learns: ClassVar[bool] = False
    """Whether what it says has a gradient for the policy's weights."""

    def speaker(self, policy: LanguagePolicy) -> LanguagePolicy:
        """Whose tokens, window and memory count; `policy` is the one that is trained."""
        return policy

    def logp(self, speaker: LanguagePolicy, batch: TokenBatch) -> Tensor:
        """[B, T] log-probabilities of the action tokens."""
        raise NotImplementedError


class CurrentPolicy(Model):
    """The policy that is trained, as it is now.

    Shapes: rows [B, T] -> [B, T].

    >>> from types import SimpleNamespace as Policy
    >>> CurrentPolicy().logp(Policy(evaluate=lambda rows: Policy(logp=-0.5), reference_logp=lambda rows: -1.5), None)
    -0.5
    """

    learns: ClassVar[bool] = True

    def logp(self, speaker: LanguagePolicy, batch: TokenBatch) -> Tensor:
        return speaker.evaluate(batch).logp


class KeptReference(Model):
    """What the method's slot `reference` keeps of the policy beside it.

    The first policy with `reference=frozen` (or none), that of some steps ago with `periodic`, an average over all
    steps with `moving-average`; of an adapter its base. Shapes: rows [B, T] -> [B, T].

    >>> from types import SimpleNamespace as Policy
    >>> KeptReference().logp(Policy(evaluate=lambda rows: Policy(logp=-0.5), reference_logp=lambda rows: -1.5), None)
    -1.5
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE})

    def logp(self, speaker: LanguagePolicy, batch: TokenBatch) -> Tensor:
        return speaker.reference_logp(batch)


class SavedModel(Model):
    """A model from outside of the run, which stays as it is: a folder, a hub name, or what a recipe's run made.

    Args:
        model: a run, of which the newest whole checkpoint is taken; a model's folder; a hub name; in a run of a recipe
            `{NAME}`.

    Shapes: rows [B, T] -> [B, T].

    Raises: ConfigError for a model whose tokens are not the policy's.

    >>> from types import SimpleNamespace as Policy
    >>> SavedModel(model="tiny").logp(Policy(evaluate=lambda rows: Policy(logp=-2.5)), None)
    -2.5
    """

    model: str = ""

    def check(self) -> None:
        object.__setattr__(self, "model", newest_model(self.model))

    def objection(self, method: Method) -> str | None:
        return None if self.model else "names no model: set its field model to a run, a folder or a hub name."

    def speaker(self, policy: LanguagePolicy) -> LanguagePolicy:
        if "speaker" not in self.made:
            self.made["speaker"] = _loaded(self.model, policy)
        speaker: LanguagePolicy = self.made["speaker"]
        return speaker

    def logp(self, speaker: LanguagePolicy, batch: TokenBatch) -> Tensor:
        return speaker.evaluate(batch).logp


class AverageModel(Model):
    """The average of the weights of models from outside of the run, coordinate by coordinate; it stays as it is.

        theta = sum_k w_k theta_k / sum_k w_k

    Models of which an average means anything began from one checkpoint. With all of the weight on one it is that model,
    to the last bit, and so it is where all are equal. The average that a method's `reference` keeps is `soup`.

    Args:
        models: each as of `SavedModel`.
        weights: of each, at least 0; (): as much of each.

    Shapes: rows [B, T] -> [B, T].

    Raises: ConfigError for weights that are not one for each model, or that add up to nothing; for models of different
        shapes, or whose tokens are not the policy's.

    >>> import torch
    >>> both = AverageModel(models=("RUN", "OTHER"), weights=(3.0, 1.0))
    >>> both.averaged([{"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}])["w"].item()
    1.25
    """

    models: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()

    def check(self) -> None:
        object.__setattr__(self, "models", tuple(map(newest_model, self.models)))
        if self.weights and (len(self.weights) != len(self.models) or min(self.weights) < 0 or sum(self.weights) <= 0):
            raise ConfigError(
                f"AverageModel takes a weight of at least 0 for each of its {len(self.models)} models, and one above "
                f"0; got {self.weights}."
            )

    def objection(self, method: Method) -> str | None:
        return None if self.models else "averages no models: set its field models to runs, folders or hub names."

    def averaged(self, found: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The weights by name: the model that counts most, and what the others differ from it."""
        weights = self.weights or (1.0,) * len(found)
        most = max(range(len(found)), key=lambda k: weights[k])
        others = [(w / sum(weights), one) for k, (w, one) in enumerate(zip(weights, found)) if k != most and w > 0]
        return {name: own + sum(w * (one[name] - own) for w, one in others) for name, own in found[most].items()}

    def speaker(self, policy: LanguagePolicy) -> LanguagePolicy:
        if "speaker" not in self.made:
            first, *others = (_loaded(model, policy) for model in self.models)
            found = [one.model.state_dict() for one in (first, *others)]  # adapters are folded in
            for model, one in zip(self.models[1:], found[1:]):
                check_shapes(model, found[0], one, repr(self.models[0]))
            first.model.load_state_dict(self.averaged(found))
            self.made["speaker"] = first
        speaker: LanguagePolicy = self.made["speaker"]
        return speaker

    def logp(self, speaker: LanguagePolicy, batch: TokenBatch) -> Tensor:
        return speaker.evaluate(batch).logp


def read_once(part: Part, model: str, policy: LanguagePolicy | None) -> LanguagePolicy:
    """A model that a part asks in words, with tokens of its own, beside the policy; loaded once in a run."""
    from etude.policies.language import LanguagePolicy

    if "model" not in part.made:
        part.made["model"] = LanguagePolicy.load(model, device=str(getattr(policy, "device", "auto")))
    found: LanguagePolicy = part.made["model"]
    return found


def _loaded(model: str, policy: LanguagePolicy) -> LanguagePolicy:
    """A model beside the policy. Raises ConfigError for one whose tokens are not the policy's."""
    from etude.policies.language import LanguagePolicy

    dtype = str(policy.model.dtype).removeprefix("torch.")
    found = LanguagePolicy.load(model, device=str(policy.device), dtype=dtype)
    if found.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise ConfigError(
            f"{model!r} has other tokens than the policy, so it has no likelihood of the policy's: name a model with "
            "the same tokenizer."
        )
    return found

"""Models whose word about a text is asked for: one kind of value, wherever they come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from etude.core.batches import TokenBatch
from etude.core.errors import ConfigError
from etude.core.part import Need, Part
from etude.core.worlds import World
from etude.runtime.checkpoints import newest

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
        if (runs := Path(self.model) / "checkpoints").is_dir():  # named as it is now: a run may go on
            object.__setattr__(self, "model", str(newest(runs)[0] / "model"))

    def objection(self, method: Method) -> str | None:
        return None if self.model else "names no model: set its field model to a run, a folder or a hub name."

    def speaker(self, policy: LanguagePolicy) -> LanguagePolicy:
        from etude.policies.language import LanguagePolicy

        if "speaker" not in self.made:
            dtype = str(policy.model.dtype).removeprefix("torch.")
            found = LanguagePolicy.load(self.model, device=str(policy.device), dtype=dtype)
            if found.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
                raise ConfigError(
                    f"{self.model!r} has other tokens than the policy, so it has no likelihood of the policy's: name a "
                    "model with the same tokenizer."
                )
            self.made["speaker"] = found
        speaker: LanguagePolicy = self.made["speaker"]
        return speaker

    def logp(self, speaker: LanguagePolicy, batch: TokenBatch) -> Tensor:
        return speaker.evaluate(batch).logp

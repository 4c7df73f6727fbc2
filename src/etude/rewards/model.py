"""Scores by a learned model of what people prefer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch

from etude.core.episodes import Episode
from etude.core.errors import ConfigError
from etude.core.part import Part
from etude.core.rows import last_action, to_batch
from etude.core.slots import Context, Reward
from etude.policies.showing import TEXT
from etude.policies.written import written
from etude.runtime.checkpoints import newest_model

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.policies.language import LanguagePolicy

TOKENS = 8192
"""Padded tokens that are scored at a time."""


class SavedScorer(Part, abstract=True):
    """A part that asks a model with a value head, one that was trained before and stays as it is.

    Args:
        model: what `trained_by` trained: its run, of which the newest whole checkpoint is taken, or a folder `model`.

    Raises: ConfigError if the folder holds no model with a value head.
    """

    trained_by: ClassVar[str] = "reward-model"
    """The method that trains such a model."""
    model: str = ""

    def check(self) -> None:
        object.__setattr__(self, "model", newest_model(self.model))  # named as it is now: a run may go on

    def objection(self, method: Method) -> str | None:
        if self.model:
            return None
        return (
            f"has no model to score with: train one with `etude train {self.trained_by}` and name its folder with "
            f"--set rewards.{self.name}.model=RUN."
        )

    def scorer(self, policy: LanguagePolicy) -> LanguagePolicy:
        """The model; as an adapter over the policy's base it shares that, in the same dtype."""
        from etude.policies.adapters import is_adapter
        from etude.policies.language import LanguagePolicy

        if "scorer" in self.made:
            found: LanguagePolicy = self.made["scorer"]
            return found
        if not (Path(self.model) / "value_head.safetensors").is_file():
            raise ConfigError(
                f"{type(self).__name__}.model must be the folder of a trained reward model; {self.model!r} has no "
                f"value_head.safetensors. Train one with `etude train {self.trained_by}` and name its run."
            )
        device, dtype = "auto", "auto"
        if is_adapter(Path(self.model)):
            device, dtype = str(policy.device), str(policy.model.dtype).removeprefix("torch.")
        scorer = self.made["scorer"] = LanguagePolicy.load(self.model, device=device, dtype=dtype, fold=False)
        return scorer


class RewardModel(SavedScorer, Reward):
    """weight * v(x, y): the value of a reward model at the last action token.

    The sampled token ids are scored as they are when both models have the same vocabulary. Otherwise the text is
    encoded again with the reward model's tokenizer, for the scorer's eyes only.

    Args:
        model: what `reward-model` trained: its run, of which the newest whole checkpoint is taken, or a folder `model`.

    Raises: ConfigError if the folder holds no reward model.

    A completion of which the model says 3.0 is worth

    >>> RewardModel(model="runs/reward-model/checkpoints/step-100/model", weight=0.5).weight * 3.0
    1.5
    """

    weight: float = 1.0

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        scorer = self.scorer(context.policy)
        if scorer.tokenizer.get_vocab() != context.policy.tokenizer.get_vocab():
            episodes = [_rewritten(e, scorer) for e in episodes]
        return [self.weight * v for v in values(scorer, episodes)]


@torch.no_grad()
def values(scorer: LanguagePolicy, episodes: Sequence[Episode]) -> list[float]:
    """The scorer's value of each episode at its last action token."""
    from etude.policies.micro_batches import micro_batches

    batch = to_batch(episodes, scorer.tokenizer.pad_token_id, 1.0, scorer.device)
    last_values = torch.zeros(len(batch), device=scorer.device)
    for piece in micro_batches(scorer, batch, TOKENS):
        rows = batch.rows(piece, trim=True)
        out = scorer.evaluate(rows, {"values"}).values
        assert out is not None
        last_values[piece] = out.gather(1, last_action(rows)[:, None])[:, 0]
    return last_values.tolist()


def _rewritten(episode: Episode, scorer: LanguagePolicy) -> Episode:
    """The episode's text in the scorer's tokens."""
    copies = [replace(s, tokens=[], action_mask=[], behaviour_logp=[]) for s in episode.segments]
    if not scorer.tokenizer.chat_template:
        copies = [replace(s, info={}) if s.info.get("message") == TEXT else s for s in copies]
    return written(episode.problem, copies, episode.group, scorer)

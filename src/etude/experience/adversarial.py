"""Worked answers beside answers of another model, for a scorer to tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from etude.core.episodes import Episode, Problem
from etude.core.slots import Context, TokenExperience
from etude.core.task import Task
from etude.experience.data import Demonstrations
from etude.experience.groups import Groups
from etude.policies.texts.models import SavedModel


class DemonstrationsAndSamples(TokenExperience):
    """Two rows for each problem, in one group: its worked answer, paid 1, and one that a saved model says, paid 0.

    What learns from them need not be what said them: a scorer whose loss is that of two classes learns
    log p_demonstrations - log p_model, the reward of adversarial imitation, and one that compares two answers an
    increasing function of it.

    Args:
        whose: who says the answers that are paid 0, as it is and for good: the policy that is to be improved.

    Raises: DataError for a problem without a worked answer, ConfigError for a model with other tokens.

    >>> DemonstrationsAndSamples(whose=SavedModel(model="tiny")).rows_per_problem
    2
    """

    samples: ClassVar[bool] = False
    whose: SavedModel = SavedModel()

    @property
    def rows_per_problem(self) -> int:
        return 2

    def lacks(self, task: Task) -> str | None:
        return Demonstrations().lacks(task)

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        speaker = replace(context, policy=self.whose.speaker(context.policy), samplers=None)
        shown, said = Demonstrations().collect(problems, context), Groups(size=1).collect(problems, speaker)
        return [paid(e, reward) for pair in zip(shown, said, strict=True) for e, reward in zip(pair, (1.0, 0.0))]


def paid(episode: Episode, reward: float) -> Episode:
    """The episode with this reward on what was answered, whatever the task would say."""
    last = max((i for i, s in enumerate(episode.segments) if any(s.action_mask)), default=None)
    segments = [replace(s, reward=reward if i == last else 0.0) for i, s in enumerate(episode.segments)]
    return replace(episode, segments=segments)

"""How well a policy foresees what comes next in a text, with a thought and without one (arXiv:2510.01265)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from etude.core.errors import DataError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.thoughts import THOUGHT, Thoughts
from etude.policies.texts.likelihood import logp
from etude.policies.texts.models import CurrentPolicy

if TYPE_CHECKING:
    from etude.core.task import LanguageTask
    from etude.policies.language import LanguagePolicy


@dataclass(frozen=True)
class Foresight:
    """log p of what comes next, in nats.

    Shapes: thought [P, S] after each of S thoughts at P contexts, plain [P] without one.

    >>> found = Foresight(np.log([[0.5, 0.5], [0.2, 0.8]]), np.log([0.5, 0.25]))
    >>> [round(float(np.exp(x)), 3) for x in (found.with_thought, found.without, found.gain)]
    [0.447, 0.354, 1.265]
    """

    thought: NDArray[np.float64]
    plain: NDArray[np.float64]

    @property
    def with_thought(self) -> float:
        """Mean log p(x | context, thought) over contexts and thoughts."""
        return float(self.thought.mean())

    @property
    def without(self) -> float:
        """Mean log p(x | context)."""
        return float(self.plain.mean())

    @property
    def gain(self) -> float:
        """Mean information gain of thoughts, the policy its own baseline."""
        return self.with_thought - self.without

    @property
    def mixture(self) -> float:
        """Mean log of the mean probability over a context's thoughts: at least `with_thought`, by Jensen."""
        most = self.thought.max(1, keepdims=True)
        return float((most[:, 0] + np.log(np.exp(self.thought - most).mean(1))).mean())


def foresight(
    policy: LanguagePolicy, task: LanguageTask, *, split: str = "test", problems: int = 200, samples: int = 4,
    seed: int = 0, experience: Thoughts | None = None,
) -> Foresight:  # fmt: skip
    """Of the first `problems` of a split, with `samples` thoughts at each.

    Args:
        experience: how thoughts come about; temperature 1 by default.

    Raises: DataError for a context that leaves no room for a thought and what comes next.
    """
    asked = list(task.problems(split)[i] for i in range(problems))
    part = (experience or Thoughts()).replace(size=samples)
    context = Context(task, policy, Stream(seed), max_tokens=part.max_tokens or task.max_tokens)
    episodes = part.collect(asked, context)
    if full := next((e for e in episodes if THOUGHT not in e.info), None):
        raise DataError(f"The context of problem {full.problem.id!r} fills the model's window: leave it out.")
    before = [[t for s in e.segments[:-1] for t in s.tokens] for e in episodes]
    texts = [policy.encode(str(e.problem.answer)) for e in episodes]
    thoughts = [e.info[THOUGHT] for e in episodes]
    said = logp(CurrentPolicy(), [[*c, *t] for c, t in zip(before, thoughts)], texts, policy).sum(1)
    plain = logp(CurrentPolicy(), before[::samples], texts[::samples], policy).sum(1)
    return Foresight(said.double().view(problems, samples).cpu().numpy(), plain.double().cpu().numpy())

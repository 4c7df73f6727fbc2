"""How hard problems are for a policy, measured before training on them: what to keep and what to leave out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from etude.core.episodes import Problem
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.experience.rollout import fresh, rollout

if TYPE_CHECKING:
    from etude.core.task import LanguageTask
    from etude.policies.language import LanguagePolicy


def pass_rates(
    policy: LanguagePolicy, task: LanguageTask, problems: Sequence[Problem], *, samples: int = 10, seed: int = 0,
    experience: Groups | None = None,
) -> list[float]:  # fmt: skip
    """Share of `samples` completions that solve each problem; difficulty is 1 less that (arXiv:2501.12599, 2.1).

    T1 (arXiv:2501.11651) keeps problems with at most 0.3 in 16 samples.

    Args:
        experience: how completions come about (`Groups`); temperature 1 by default.
    """
    how = experience or Groups()
    context = Context(task, policy, Stream(seed).split("difficulty"), max_tokens=how.max_tokens or task.max_tokens)
    starts = fresh(problems, samples, context.stream)
    solved = [0] * len(problems)
    for episode in rollout(starts, context, how.sampling(context), how.view):
        solved[episode.group] += bool(task.success(episode))
    return [n / samples for n in solved]


def guessable(
    policy: LanguagePolicy, task: LanguageTask, problems: Sequence[Problem], closing: Callable[[Problem], str], *,
    tries: int = 8, tokens: int = 8, seed: int = 0,
) -> list[bool]:  # fmt: skip
    """Whether an answer that is given at once, without any thought, is right within `tries` (arXiv:2501.12599, 2.1).

    Args:
        closing: what is put after the prompt so that the next words are the answer.
        tokens: limit of an answer.
    """
    from etude.evaluation.budget import forced

    starts = fresh(problems, tries, Stream(seed).split("guesses"))
    asked = [(start.problem, closing(start.problem)) for start in starts]
    right = forced(policy, task, asked, tokens=tokens, draws=[start.draw for start in starts])
    return [any(right[i * tries : (i + 1) * tries]) for i in range(len(problems))]

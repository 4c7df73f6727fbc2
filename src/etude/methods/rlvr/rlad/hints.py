"""Hints: a writer's short texts behind a problem, and what a solver makes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from etude.core.draws import Draw, uniforms
from etude.core.episodes import Episode, Problem
from etude.core.errors import ConfigError
from etude.core.fields import Count, Probability
from etude.core.slots import Context
from etude.core.worlds import World
from etude.experience.groups import Groups
from etude.experience.rollout import Start, fresh, rollout
from etude.policies.sampling import Sampling
from etude.policies.texts.models import Model, SavedModel
from etude.rewards.judges import prompt_of

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy

IN_VIEW, ASKED = "hint_in_view", "asked_about"
"""In `Problem.info`: the hint that a solver is shown, '' for none; and the prompt that a writer is asked about."""
ASK, SHOW = "{prompt}?", "{prompt}{hint}:"
"""How a writer is asked for a hint, and how a solver is shown one."""


def asking(problem: Problem, ask: str = ASK) -> Problem:
    """The problem as a writer sees it.

    >>> asking(Problem("1", "734:0>")).prompt
    '734:0>?'
    """
    asked = ask.replace("{prompt}", prompt_of(problem))
    return dataclasses.replace(problem, prompt=asked, info={**problem.info, ASKED: problem.prompt})


def hinted(problem: Problem, hint: str, show: str = SHOW) -> Problem:
    """The problem as a solver sees it: with a hint in view, or as it is where the hint is empty.

    >>> [hinted(Problem("1", "734:0>"), hint).prompt for hint in ("+*", "")]
    ['734:0>+*:', '734:0>']
    """
    prompt = show.replace("{prompt}", prompt_of(problem)).replace("{hint}", hint) if hint else problem.prompt
    return dataclasses.replace(problem, prompt=prompt, info={**problem.info, IN_VIEW: hint})


def said_by(policy: LanguagePolicy, starts: Sequence[Start], context: Context, limit: int) -> list[Episode]:
    """What another policy says there, in this process, from its whole distribution."""
    lent = dataclasses.replace(context, policy=policy, samplers=None, record=frozenset())
    return rollout(starts, lent, Sampling(1.0, 1.0, 0, limit, tuple(context.task.stop))) if starts else []


def hints_of(
    writer: LanguagePolicy, places: Sequence[tuple[Problem, Draw]], context: Context, tokens: int, ask: str = ASK
) -> list[str]:  # fmt: skip
    """One hint of a writer for each of these; '' where it says nothing."""
    starts = [Start(asking(problem, ask), i, draw.child("hint")) for i, (problem, draw) in enumerate(places)]
    return [episode.completion.strip() for episode in said_by(writer, starts, context, tokens)]


def accuracies(
    solver: LanguagePolicy, problems: Sequence[Problem], draws: Sequence[Draw], samples: int, context: Context
) -> NDArray[np.float64]:
    """What each of `samples` solutions of each problem is paid by the task, [problems, samples]."""
    starts = [
        Start(problem, place, draw.child("solution", k))
        for place, (problem, draw) in enumerate(zip(problems, draws, strict=True))
        for k in range(samples)
    ]
    paid = [episode.reward for episode in said_by(solver, starts, context, context.max_tokens)]
    return np.array(paid, dtype=np.float64).reshape(len(problems), samples)


class HintedGroups(Groups):
    """`size` solutions to each of `hints` hints of a writer, some of which are left out.

    The writer is sampled from and never trained. Solutions to a problem with one hint are a group. With one hint that
    is never left out they are those of plain groups on the problems with their hints, draw for draw.

    Args:
        writer: whose hints they are.
        hints: to a problem.
        bare: chance of a hint to be left out, so that the problem stands as it is.
        tokens: of a hint, at most.
        ask, show: how the writer is asked, and how a hint is shown.

    Raises: ConfigError for an `ask` or a `show` that leaves the problem or the hint out.

    >>> HintedGroups(size=8, hints=2).rows_per_problem
    16
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    writer: Model = SavedModel()
    hints: Count = 2
    bare: Probability = 0.25
    tokens: Count = 8
    ask: str = ASK
    show: str = SHOW

    def check(self) -> None:
        check_texts(type(self).__name__, self.ask, self.show)

    @property
    def rows_per_problem(self) -> int:
        return self.hints * self.size

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        places = fresh(problems, self.hints * self.size, context.stream)
        texts = self._hints(places[:: self.size], context)
        starts = [
            place._replace(problem=hinted(place.problem, texts[i // self.size], self.show), group=i // self.size)
            for i, place in enumerate(places)
        ]
        return rollout(starts, context, self.sampling(context))

    def _hints(self, places: Sequence[Start], context: Context) -> list[str]:
        """A hint for each group, '' where it is left out."""
        keys = torch.tensor([place.draw.child("bare").key for place in places])
        left_out = (uniforms(keys, first=0, count=1)[0] < self.bare).tolist()
        wanted = [(place.problem, place.draw) for place, bare in zip(places, left_out, strict=True) if not bare]
        written = iter(hints_of(self.writer.speaker(context.policy), wanted, context, self.tokens, self.ask))
        return ["" if bare else next(written) for bare in left_out]


class HintGroups(Groups):
    """`size` hints to each problem, as a writer is asked for them.

    Args:
        ask: how it is asked.

    Raises: ConfigError for an `ask` that leaves the problem out.

    >>> HintGroups(size=4).rows_per_problem
    4
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    size: Count = 4
    ask: str = ASK

    def check(self) -> None:
        check_texts(type(self).__name__, self.ask)

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        return super().collect([asking(problem, self.ask) for problem in problems], context)


def check_texts(owner: str, ask: str = ASK, show: str = SHOW) -> None:
    """Raise ConfigError for texts in which the problem or the hint has no place."""
    if "{prompt}" not in ask:
        raise ConfigError(f"{owner}.ask must have {{prompt}} in it, where the problem stands, got {ask!r}.")
    if "{prompt}" not in show or "{hint}" not in show:
        raise ConfigError(f"{owner}.show must have {{prompt}} and {{hint}} in it, got {show!r}.")


def spend(
    writer: LanguagePolicy, solver: LanguagePolicy, problems: Sequence[Problem], context: Context, *, hints: int,
    samples: int, tokens: int = 8, ask: str = ASK, show: str = SHOW,
) -> NDArray[np.float64]:  # fmt: skip
    """What a budget of hints x samples solutions is paid by the task: [problems, hints, samples].

    Its mean is the accuracy with hints; the maximum over hints of the mean over samples that of the best hint.
    """
    draws = [context.stream.draw("spent", p.id, h) for p in problems for h in range(hints)]
    places = list(zip([p for p in problems for _ in range(hints)], draws, strict=True))
    texts = hints_of(writer, places, context, tokens, ask)
    shown = [hinted(p, text, show) for (p, _), text in zip(places, texts, strict=True)]
    return accuracies(solver, shown, draws, samples, context).reshape(len(problems), hints, samples)

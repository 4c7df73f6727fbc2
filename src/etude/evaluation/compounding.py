"""How mistakes add up: at which token texts leave the valid beginnings for good, on one's own and on shown ones.

    e_t = P(left at t | not left before),    P(valid up to t) = prod_{s <= t} (1 - e_s)

A policy that was cloned knows the states that its teacher visits. On its own rollouts it meets others, so that e_t
grows there, where on worked answers it stays what it was (arXiv:2310.06147, section 3; arXiv:1011.0686). Where nothing
can be repaired and every token errs alike, P(valid) = (1 - e)^H. To end before all is said is an error too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from etude.core.draws import Draw
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import DataError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.experience.groups import Groups
from etude.experience.rollout import Start, rollout
from etude.policies.sampling import Sampling

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy


class Leavable(Protocol):
    """A task that knows of every beginning of an answer whether it can still become valid."""

    def left(self, problem: Problem, completion: str) -> int | None:
        """The place (character) at which a completion left the valid beginnings for good; None if it has not."""
        ...


@dataclass
class Hazard:
    """Of tokens at place t that were still valid, how many there were, and how many of them left: [T] each."""

    tried: NDArray[np.int64]
    left: NDArray[np.int64]

    @property
    def rate(self) -> NDArray[np.float64]:
        """[T] e_t; nan where nobody came."""
        with np.errstate(invalid="ignore"):
            return np.where(self.tried > 0, self.left / self.tried, np.nan)

    @property
    def valid(self) -> NDArray[np.float64]:
        """[T] the chance to be valid still after token t, had every place been tried at the rates of `rate`.

        >>> Hazard(np.array([8, 4, 2]), np.array([4, 2, 0])).valid.tolist()
        [0.5, 0.25, 0.25]
        """
        return np.asarray(np.cumprod(1 - self.rate), dtype=np.float64)

    @property
    def mean(self) -> float:
        """e over all places: the tokens that left among those tried.

        >>> Hazard(np.array([8, 4]), np.array([4, 2])).mean
        0.5
        """
        return float(self.left.sum() / self.tried.sum())


def own_rollouts(
    policy: LanguagePolicy, task: LanguageTask, problems: Sequence[Problem], *, samples: int = 4, seed: int = 0
) -> Hazard:  # fmt: skip
    """Where the policy's own texts leave the valid beginnings; of texts that left nothing more is counted.

    Raises: DataError for a task that does not know which beginnings are valid.
    """
    context = Context(task, policy, Stream(seed).split("own"), max_tokens=task.max_tokens)
    found = []
    for episode in Groups(size=samples).collect(problems, context):
        tokens = _said(episode)
        place = left_at(tokens, episode.problem, task, policy)
        found.append((len(tokens) if place is None else place + 1, place))
    return counted(found, task.max_tokens)


def shown_prefixes(
    policy: LanguagePolicy, task: LanguageTask, problems: Sequence[Problem], *, samples: int = 1, seed: int = 0
) -> Hazard:  # fmt: skip
    """Where the policy leaves the valid beginnings with the next token after every beginning of a worked answer.

    Raises: DataError for a problem without a worked answer, or a task that does not know which beginnings are valid.
    """
    context = Context(task, policy, Stream(seed).split("shown"), max_tokens=task.max_tokens)
    starts = [
        prefixed(problem, tokens[:count], policy, context.stream.draw("prefix", problem.id, count, sample))
        for problem in problems
        for tokens in [_worked(problem, task, policy)]
        for count in range(min(len(tokens) + 1, task.max_tokens))
        for sample in range(samples)
    ]
    tried, left = (np.zeros(task.max_tokens, np.int64) for _ in range(2))
    for start, episode in zip(starts, rollout(starts, context, Sampling(1.0, 1.0, 0, 1, ())), strict=True):
        tried[start.begun] += 1
        left[start.begun] += left_at(_said(episode), episode.problem, task, policy) is not None
    return Hazard(tried, left)


def counted(found: Sequence[tuple[int, int | None]], width: int) -> Hazard:
    """Of texts of so many tokens that left at a place, or never: their tokens up to there.

    >>> counted([(3, 2), (2, None), (1, 0)], width=4)
    Hazard(tried=array([3, 2, 1, 0]), left=array([1, 0, 1, 0]))
    """
    tried, left = (np.zeros(width, np.int64) for _ in range(2))
    for size, place in found:
        tried[:size] += 1
        if place is not None:
            left[place] += 1
    return Hazard(tried, left)


def left_at(tokens: Sequence[int], problem: Problem, task: LanguageTask, policy: LanguagePolicy) -> int | None:
    """The token with which a text left the valid beginnings for good, its end included; None if it has not.

    Raises: DataError for a task that does not know which beginnings are valid.
    """
    if not hasattr(task, "left"):
        raise DataError(f"{task.id} does not say of a beginning whether it can still become valid: take checksums.")
    said = [policy.decode([token]) for token in tokens if token not in policy.end_ids]
    place = cast(Leavable, task).left(problem, text := "".join(said))
    if place is not None:
        return int(np.searchsorted(np.cumsum([len(piece) for piece in said]), place, side="right"))
    ended = len(said) < len(tokens)
    return len(said) if ended and task.score(problem, text) < 1 else None


def prefixed(problem: Problem, tokens: Sequence[int], policy: LanguagePolicy, draw: Draw) -> Start:
    """An episode that goes on behind the first tokens of an answer: a reset to that prefix, exactly."""
    where = Start(problem, 0, draw)
    if not tokens:
        return where
    begun = Segment("assistant", policy.decode(list(tokens)), list(tokens), [0] * len(tokens), [0.0] * len(tokens))
    return where._replace(segments=(begun,), open=True)


def _worked(problem: Problem, task: LanguageTask, policy: LanguagePolicy) -> list[int]:
    shown = task.demonstration(problem)
    if shown is None:
        raise DataError(f"Problem {problem.id!r} has no worked answer whose beginnings could be gone on from.")
    return policy.encode(shown)


def _said(episode: Episode) -> list[int]:
    return [token for s in episode.segments if s.role == "assistant" for token in s.tokens]

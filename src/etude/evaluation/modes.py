"""How well a policy of two modes chooses between them: hybrid accuracy (arXiv:2505.14631, 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from etude.core.slots import Context
from etude.core.streams import Stream
from etude.evaluation.language import BATCH, evaluate_split
from etude.experience.groups import Groups
from etude.experience.modes import DIRECT, THINK, BothModes, Modes, mode_of

if TYPE_CHECKING:
    from etude.core.episodes import Episode
    from etude.core.task import LanguageTask
    from etude.policies.language import LanguagePolicy


@dataclass(frozen=True)
class Choices:
    """What a policy chose freely, and which mode would have been better.

    Shapes: better [P] for P problems; chosen, correct, lengths [P, S] for S free completions of each. Mode 0 thinks,
    mode 1 does not; what was chosen is -1 where a completion begins with neither.

    Args:
        lengths: tokens of the completions, the mode's included.
        levels: [P] `Problem.level`.

    >>> chosen, ones = np.array([[0, 1], [1, -1]]), np.ones((2, 2))
    >>> found = Choices(np.array([0, 1]), chosen, ones, 4 * ones, ["a", "b"])
    >>> found.accuracy, found.thinking(), found.thinking("a"), found.per_token
    (0.5, 0.25, 0.5, 0.25)
    """

    better: NDArray[np.int_]
    chosen: NDArray[np.int_]
    correct: NDArray[np.float64]
    lengths: NDArray[np.float64]
    levels: list[str]

    @property
    def accuracy(self) -> float:
        """Hybrid accuracy: the share of free completions whose mode is the better one."""
        return float((self.chosen == self.better[:, None]).mean())

    def thinking(self, level: str | None = None) -> float:
        """Share of free completions that think, of the problems of one level if given."""
        rows = [i for i, name in enumerate(self.levels) if level in (None, name)]
        return float((self.chosen[rows] == THINK).mean())

    @property
    def per_token(self) -> float:
        """Right completions per token that was sampled for them."""
        return float(self.correct.sum() / self.lengths.sum())


def better_modes(scores: ArrayLike, lengths: ArrayLike, margin: float = 0.0) -> NDArray[np.int_]:
    """[P] the mode with the higher mean score; where they are no more than `margin` apart, the shorter one.

    Where they are equally long as well it is not to think.

    Args:
        scores, lengths: [P, 2, n] of n completions in each mode.

    >>> scores = [[[1.0, 1.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]]
    >>> lengths = [[[9, 9], [2, 2]], [[9, 9], [2, 2]], [[2, 2], [9, 9]]]
    >>> better_modes(scores, lengths).tolist(), better_modes(scores, lengths, margin=0.5).tolist()
    ([0, 1, 0], [1, 1, 0])
    """
    mean, long = (np.asarray(x, float).mean(-1) for x in (scores, lengths))
    gap = mean[:, THINK] - mean[:, DIRECT]
    shorter = np.where(long[:, THINK] < long[:, DIRECT], THINK, DIRECT)
    return np.where(gap > margin, THINK, np.where(gap < -margin, DIRECT, shorter))


def hybrid_accuracy(
    policy: LanguagePolicy, task: LanguageTask, *, split: str = "test", problems: int = 100, samples: int = 4,
    margin: float = 0.0, seed: int = 0, experience: Groups | None = None, modes: Modes | None = None,
) -> Choices:  # fmt: skip
    """`samples` completions that choose their mode, and as many in each mode, of the first `problems` of a split.

    Args:
        margin: mean scores in the two modes that are no further apart count as equal, and the shorter mode is better.
        experience: how completions come about; temperature 1 by default.
        modes: how completions begin in each; None: as the task has it.

    Raises: ConfigError for modes that cannot be told apart, or leave no room for an answer.
    """
    how, modes = experience or Groups(), modes or task.modes
    free = evaluate_split(policy, task, split, problems=problems, samples=samples, seed=seed, experience=how)
    asked = [row[0].problem for row in free.episodes]
    stream = Stream(seed).split("modes", split)
    context = Context(task, policy, stream, max_tokens=how.max_tokens or task.max_tokens)
    both = BothModes(
        2 * samples, temperature=how.temperature, top_p=how.top_p, top_k=how.top_k, max_tokens=how.max_tokens,
        modes=modes,
    )  # fmt: skip
    forced: list[Episode] = []
    at_once = max(1, BATCH // both.size)
    for place in range(0, len(asked), at_once):
        forced += both.collect(asked[place : place + at_once], context)
    shape = len(asked), 2, samples
    return Choices(
        better_modes(
            np.reshape([e.reward for e in forced], shape), np.reshape([e.action_count for e in forced], shape), margin
        ),
        np.array([[_place(e, modes, policy) for e in row] for row in free.episodes]),
        free.correct.astype(float),
        np.array([[e.action_count for e in row] for row in free.episodes], float),
        [p.level for p in asked],
    )


def _place(episode: Episode, modes: Modes, policy: LanguagePolicy) -> int:
    found = mode_of(episode, modes, policy)
    return -1 if found is None else found

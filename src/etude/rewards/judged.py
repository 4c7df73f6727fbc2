"""Rewards by judges: what of an episode they see, whom is asked, and what it is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from etude.core.episodes import Episode
from etude.core.errors import ConfigError, RewardError
from etude.core.fields import NonNegative, PositiveProbability, Probability
from etude.core.method import Method
from etude.core.part import Part
from etude.core.slots import Context, Reward
from etude.core.worlds import World
from etude.rewards.judges import Case, Judge, SameAnswer, answer_of, prompt_of
from etude.rewards.outcome import TaskReward

BAD_AFTER = 100
"""Episodes that judges were asked about before the share of those without an answer is looked at."""
FAILED = "judge failed"
"""What `episode.info["dropped"]` says of an episode about which a judge had no answer."""


class View(Part, abstract=True):
    """What of an episode a judge sees, and what that is compared with."""

    slot = "sees"

    def case(self, episode: Episode, context: Context) -> Case | None:
        """What is asked about it; None where there is nothing to judge, which is worth 0."""
        raise NotImplementedError


class FinalAnswer(View):
    """The answer in a completion, as the task finds it, beside the problem's own; nothing if the completion was cut.

    >>> from types import SimpleNamespace as Run
    >>> from etude.core.episodes import Problem, Segment
    >>> said = Episode(Problem("sum/1", "1+2+3=", 6), [Segment("assistant", "3,6")])
    >>> FinalAnswer().case(said, Run(task=Run(answer=lambda text: text[-1:])))
    Case(prompt='1+2+3=', given='6', wanted=('6',))
    """

    def case(self, episode: Episode, context: Context) -> Case | None:
        given = "" if episode.stop.cut else context.task.answer(episode.completion).strip()
        return Case(asked(episode), given, (wanted(episode),), episode.problem) if given else None


class WholeCompletion(View):
    """All that was said, beside the problem's answer.

    >>> from etude.core.episodes import Problem, Segment
    >>> WholeCompletion().case(Episode(Problem("sum/1", "1+2+3=", 6), [Segment("assistant", "3,6")]), None).given
    '3,6'
    """

    def case(self, episode: Episode, context: Context) -> Case | None:
        given = episode.completion.strip()
        return Case(asked(episode), given, (wanted(episode),), episode.problem) if given else None


class AfterThinking(View):
    """What was said behind the delimiter that ends a thought, beside the problem's answer.

    Args:
        delimiter: what ends a thought; the last one counts.
        strict: whether a completion without it is nothing to judge; else it is seen whole.

    >>> from etude.core.episodes import Problem, Segment
    >>> said = Episode(Problem("sum/1", "1+2+3=", 6), [Segment("assistant", "3, then</think>6")])
    >>> AfterThinking().case(said, None).given
    '6'
    """

    delimiter: str = "</think>"
    strict: bool = False

    def check(self) -> None:
        if not self.delimiter:
            raise ConfigError("AfterThinking.delimiter must be what ends a thought, got ''.")

    def case(self, episode: Episode, context: Context) -> Case | None:
        _, found, answer = episode.completion.rpartition(self.delimiter)
        given = "" if self.strict and not found else answer.strip()
        return Case(asked(episode), given, (wanted(episode),), episode.problem) if given else None


class Beginning(View):
    """The first characters of a completion, rounded up, beside the problem's answer.

    Args:
        share: of its characters.

    >>> from etude.core.episodes import Problem, Segment
    >>> Beginning(share=0.5).case(Episode(Problem("sum/1", "1+2+3=", 6), [Segment("assistant", "3,6")]), None).given
    '3,'
    """

    share: PositiveProbability = 0.5

    def case(self, episode: Episode, context: Context) -> Case | None:
        text = episode.completion
        given = text[: math.ceil(self.share * len(text))].strip()
        return Case(asked(episode), given, (wanted(episode),), episode.problem) if given else None


class Predicted(View):
    """The text between the last pair of marks, beside the segments that really follow (`info["following"]`).

    Nothing between marks is nothing to judge.

    Args:
        opening, closing: the marks.

    Raises: RewardError for a problem that does not say what follows.

    >>> from etude.core.episodes import Problem, Segment
    >>> problem = Problem("text/1", "7+5=12;?", info={"following": ("12*2=24;", "24-3=21;")})
    >>> Predicted().case(Episode(problem, [Segment("assistant", "so [12*2=24;]")]), None)
    Case(prompt='7+5=12;?', given='12*2=24;', wanted=('12*2=24;', '24-3=21;'))
    """

    opening: str = "["
    closing: str = "]"

    def check(self) -> None:
        if not (self.opening and self.closing):
            raise ConfigError(
                f"Predicted.opening and closing must be marks, got {self.opening!r} and {self.closing!r}."
            )

    def case(self, episode: Episode, context: Context) -> Case | None:
        if "following" not in episode.problem.info:
            raise RewardError(
                f"Problem {episode.problem.id!r} does not say which segments follow (info['following']): ask for "
                "segments, as derivations does with asks=next,middle."
            )
        given = between(episode.completion, self.opening, self.closing).strip()
        return Case(asked(episode), given, tuple(episode.problem.info["following"]), episode.problem) if given else None


def between(text: str, opening: str = "[", closing: str = "]") -> str:
    """What stands between the last pair of marks; '' without one.

    >>> between("no [1], rather [2] it is"), between("[1"), between("1]")
    ('2', '', '')
    """
    before, closed, _ = text.rpartition(closing)
    _, opened, inside = before.rpartition(opening)
    return inside if closed and opened else ""


class JudgeReward(Reward):
    """weight * max over a panel of judges, asked in turn: each only about what none before it accepted.

    With a rule first and a model after it that is max(rule, judge), and the model is asked where the rule said no
    (arXiv:2505.17667, eq. 8). What an episode is worth of which the panel has no whole answer is not known: it is left
    out of the step, as `failed_reward` counts.

    Args:
        panel: who is asked, in this order.
        sees: what they see.
        pays: 'accepted', 1 or 0; or the largest 'score'.
        on_failure: what happens where a judge that was asked has no answer: 'drop' the episode, or 'stop' the run.
        bad_share: the run stops all the same once more than this share of at least 100 episodes had none; 1 for never.

    Raises: RewardError, naming the problem.

    >>> from types import SimpleNamespace as Run
    >>> from etude.core.episodes import Problem, Segment
    >>> from etude.rewards.judges import Contained
    >>> said = [Episode(Problem("sum/1", "2+5=", "7"), [Segment("assistant", text)]) for text in ("7", "seven", "8")]
    >>> run = Run(task=Run(answer=str.strip), policy=None)
    >>> [JudgeReward(panel=panel).bind().score(said, run) for panel in ((Contained(),), (Contained(), SameAnswer()))]
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})  # it reads text

    panel: tuple[Judge, ...] = (SameAnswer(),)
    sees: View = FinalAnswer()
    weight: NonNegative = 1.0
    pays: Literal["accepted", "score"] = "accepted"
    on_failure: Literal["drop", "stop"] = "drop"
    bad_share: Probability = 0.01

    def objection(self, method: Method) -> str | None:
        return None if self.panel else "has nobody to ask: give it a panel, such as panel=same-answer."

    def initial_state(self) -> dict[str, Any]:
        return {"episodes": 0, "failed": 0}

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        found = self.best(episodes, [0.0] * len(episodes), context)
        return [self.weight * value for value in found]

    def best(self, episodes: Sequence[Episode], so_far: Sequence[float], context: Context) -> list[float]:
        """The most that anybody says of each episode, or that there was before; nan where that is not known."""
        cases = [self.sees.case(e, context) for e in episodes]
        best, failed = list(so_far), [False] * len(episodes)
        for judge in self.panel:
            open_ = [i for i, case in enumerate(cases) if case is not None and best[i] < 1]
            said = judge.score([case for i in open_ if (case := cases[i]) is not None], context)
            for i, value in zip(open_, said, strict=True):
                failed[i] |= value is None
                best[i] = max(best[i], 0.0 if value is None else self._worth(judge, value))
        return self._known(episodes, best, [f and b < 1 for f, b in zip(failed, best)])

    def _worth(self, judge: Judge, value: float) -> float:
        return value if self.pays == "score" else float(value >= judge.least)

    def _known(self, episodes: Sequence[Episode], best: list[float], failed: Sequence[bool]) -> list[float]:
        """The same, nan for those that a judge failed at, and marked; or an error."""
        lost = [e for e, bad in zip(episodes, failed) if bad]
        self.state["episodes"] += len(episodes)
        self.state["failed"] += len(lost)
        count, bad, share = self.state["episodes"], self.state["failed"], self.bad_share
        if lost and self.on_failure == "stop":
            raise self._error(lost[0], "Mend the judge, or set on_failure='drop'.")
        if lost and count >= BAD_AFTER and bad > share * count:
            raise self._error(lost[-1], f"That makes {bad} of {count} episodes, more than bad_share={share:g}.")
        for episode in lost:
            episode.info["dropped"] = FAILED
        return [math.nan if bad else value for value, bad in zip(best, failed)]

    def _error(self, episode: Episode, then: str) -> RewardError:
        names = ", ".join(judge.name for judge in self.panel)
        then = " ".join([*(judge.why for judge in self.panel if judge.why), then])
        error = RewardError(
            f"{type(self).__name__}: a judge of its panel ({names}) had no answer for problem {episode.problem.id!r}, "
            f"whose completion was {episode.completion!r}. {then}"
        )
        error.completion = episode.completion
        return error


class SecondOpinion(JudgeReward):
    """Tops up what the task paid to max(task, judge): the panel is asked only where that is less than 1.

    It stands beside `task-reward`, whose weight ought to be its own: r = weight * max(r_task, r_judge).

    >>> from types import SimpleNamespace as Run
    >>> from etude.core.episodes import Problem, Segment
    >>> paid = [("7", 1.0), ("seven", 0.0), ("seven", 0.25)]
    >>> said = [Episode(Problem("sum/1", "2+5=", "7"), [Segment("assistant", t, reward=r)]) for t, r in paid]
    >>> SecondOpinion().bind().score(said, Run(task=Run(answer=str.strip), policy=None))
    [0.0, 1.0, 0.75]
    """

    def objection(self, method: Method) -> str | None:
        if any(isinstance(part, TaskReward) for part in method.slots()["rewards"]):
            return super().objection(method)
        return "tops up what the task pays, and no task-reward is there: add it, or use judge-reward alone."

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        paid = [e.reward for e in episodes]
        return [self.weight * (value - before) for value, before in zip(self.best(episodes, paid, context), paid)]


def asked(episode: Episode) -> str:
    """A problem's prompt as text."""
    return prompt_of(episode.problem)


def wanted(episode: Episode) -> str:
    """A problem's answer as text."""
    return answer_of(episode.problem)

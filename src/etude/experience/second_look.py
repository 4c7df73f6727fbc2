"""A second look: problems are tried again with something in view, and what came of it takes part in the step.

`LookAgain` is made of three answers: which problems (`Which`), what is shown (`Shown`), and what becomes of the new
episodes (`Kept`); and of whether they are learned under the prompt that they saw or under the plain one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from etude.core.episodes import Episode, StopReason
from etude.core.fields import WholeNumber
from etude.core.part import Part
from etude.core.slots import Context, SecondLook, TokenExperience
from etude.core.task import LanguageTask, SingleTurn, Task
from etude.experience.groups import Groups
from etude.experience.rollout import rollout
from etude.experience.shown import Shown, SolutionInPrompt

if TYPE_CHECKING:
    from etude.core.method import Method


# Which problems


class Which(Part, abstract=True):
    """Which problems are looked at again."""

    slot = "which"

    def chosen(self, right: int, attempts: int) -> bool:
        """Whether one is, so many attempts at which are right now."""
        raise NotImplementedError


class UnsolvedProblems(Which):
    """Those of which no attempt is right.

    >>> UnsolvedProblems().chosen(0, attempts=8), UnsolvedProblems().chosen(1, attempts=8)
    (True, False)
    """

    def chosen(self, right: int, attempts: int) -> bool:
        return not right


class AllProblems(Which):
    """All of them.

    >>> AllProblems().chosen(8, attempts=8)
    True
    """

    def chosen(self, right: int, attempts: int) -> bool:
        return True


# What is kept


class Kept(Part, abstract=True):
    """What becomes of the attempts at a problem and of the new ones."""

    slot = "keeps"

    def merged(
        self, old: Sequence[Episode], new: Sequence[Episode], task: LanguageTask
    ) -> tuple[Sequence[Episode], Sequence[Episode]]:
        """The attempts at one problem, as many as before, and what joins them. `new`: one for each of them."""
        raise NotImplementedError


class NewAttempts(Kept):
    """The new attempts take the place of the old ones, prompt included (GHPO).

    >>> NewAttempts().merged(["old 1", "old 2"], ["new 1", "new 2"], None)
    (['new 1', 'new 2'], [])
    """

    def merged(
        self, old: Sequence[Episode], new: Sequence[Episode], task: LanguageTask
    ) -> tuple[Sequence[Episode], Sequence[Episode]]:
        return new, []


class BestJoins(Kept):
    """The first new attempt that is right joins the old ones; one that is paid best if none is (Critique-GRPO).

    >>> from etude.core.episodes import Problem
    >>> tried = [Episode(Problem("p", "?"), info={"success": n == 2}) for n in range(4)]
    >>> [tried.index(e) for e in BestJoins().merged([], tried, LanguageTask())[1]]
    [2]
    """

    def merged(
        self, old: Sequence[Episode], new: Sequence[Episode], task: LanguageTask
    ) -> tuple[Sequence[Episode], Sequence[Episode]]:
        right = [e for e in new if task.success(e)]
        best = right[:1] or sorted(new, key=lambda e: -e.reward)[:1]  # of equals the first: sorting is stable
        return old, best


# The look


class LookAgain(SecondLook):
    """Tries some problems again with something in view.

    Args:
        which: which problems.
        shows: what is in view.
        keeps: what becomes of both.
        plain: whether new episodes are learned as answers to the plain prompt. Their log-probabilities are those of
            the prompt that they saw, so they are marked (`Episode.elsewhere`) and not compared with the trainer's.
        after: training steps before the first look.

    Only attempts that the policy sampled are looked at. A problem keeps the attempts that it had where its new prompt
    leaves no room in the context, what is said already no room in a completion, or where its environment failed.
    `state` counts since the run began: `problems` that were attempted, and by stage those that were looked at again
    (`looked`), those of them of which a new attempt was right (`solved`), those that had no room (`no_room`), and the
    tokens that were sampled (`tokens`).

    >>> LookAgain().shows.shares, LookAgain(plain=True).plain
    ((0.25, 0.5, 0.75), True)
    """

    which: Which = UnsolvedProblems()
    shows: Shown = SolutionInPrompt()
    keeps: Kept = NewAttempts()
    plain: bool = False
    after: WholeNumber = 0

    def objection(self, method: Method) -> str | None:
        if isinstance(method.slots().get("experience"), Groups):
            return None
        return "tries again what an experience has sampled: set experience=groups, or another that samples groups."

    def lacks(self, task: Task) -> str | None:
        if not isinstance(task, LanguageTask):
            return None
        if not isinstance(task.played_in(), SingleTurn):
            return (
                f"LookAgain writes what it shows into the prompt, and the environment of task {task.id!r} says what is "
                "seen: choose a task of one turn."
            )
        if task.judged_by_reward:
            return (
                f"LookAgain asks which attempts are right, and of task {task.id!r} only rewards can tell, which come "
                "later: give its problems answers."
            )
        return None

    @property
    def stages(self) -> int:
        return self.shows.stages

    def initial_state(self) -> dict[str, Any]:
        counts = ("looked", "solved", "no_room", "tokens")
        return {"problems": 0, **{name: [0] * self.stages for name in counts}}

    def again(self, episodes: Sequence[Episode], experience: TokenExperience, context: Context) -> list[Episode]:
        assert isinstance(experience, Groups)
        sampling, task = dataclasses.replace(experience.sampling(context), whole_turns=True), context.task
        now, joined = list(episodes), list[Episode]()
        groups: dict[int, list[int]] = {}
        for i, e in enumerate(episodes):
            if _is_attempt(e):
                groups.setdefault(e.group, []).append(i)
        self.state["problems"] += len(groups)
        for stage in range(self.stages if context.step >= self.after else 0):
            left = [g for g in groups.values() if self.which.chosen(sum(task.success(now[i]) for i in g), len(g))]
            begun = self.shows.starts([episodes[i] for g in left for i in g], stage, context)
            numbered = zip((i for g in left for i in g), begun)
            starts = {i: s for i, s in numbered if s is not None and s.begun < sampling.max_tokens}
            new = dict(zip(starts, rollout(list(starts.values()), context, sampling))) if starts else {}
            for group in left:
                tried = [new[i] for i in group if i in new]
                if self._count(tried, len(group), stage, task):
                    rows = [self._row(new[i], episodes[i], stage) for i in group]
                    stay, join = self.keeps.merged([now[i] for i in group], rows, task)
                    for i, e in zip(group, stay, strict=True):
                        now[i] = e
                    joined += join
        return now + joined

    def _count(self, tried: Sequence[Episode], size: int, stage: int, task: LanguageTask) -> bool:
        """Count the new attempts at a problem; whether there is one for each of the old ones."""
        if not tried:
            return False
        whole = len(tried) == size and all(_is_attempt(e) for e in tried)
        counts = {"looked": 1, "solved": any(map(task.success, tried)), "no_room": not whole}
        for name, count in {**counts, "tokens": sum(e.action_count for e in tried)}.items():
            self.state[name][stage] += int(count)
        return whole

    def _row(self, new: Episode, attempt: Episode, stage: int) -> Episode:
        """What is learned of a new attempt."""
        info = {**new.info, "look": stage}
        if not self.plain:
            return dataclasses.replace(new, info=info)
        opening = takewhile(lambda s: not any(s.action_mask), attempt.segments)
        said = [s for s in new.segments if any(s.action_mask)]
        return dataclasses.replace(new, problem=attempt.problem, segments=[*opening, *said], elsewhere=True, info=info)


def _is_attempt(e: Episode) -> bool:
    return not e.written and not e.auxiliary and e.stop is not StopReason.FAULT and bool(e.action_count)

"""Runs of a recipe that record dialogues with rewards: games as somebody plays them, kept as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from etude.core.errors import DataError
from etude.core.fields import Count, Positive
from etude.core.streams import Stream
from etude.experience.dialogues import Dialogue, recorded
from etude.stages.chain import Derive, DeriveByPolicy

if TYPE_CHECKING:
    from etude.core.episodes import Episode, Problem
    from etude.core.task import LanguageTask
    from etude.policies.language import LanguagePolicy


class RecordScript(Derive):
    """Games as the task's own script plays them, with what each turn is paid: `task.data={NAME}` learns from them.

    How well it plays is the task's to say, as in `set=("task.slips=0.8",)`.

    Raises: DataError for a task that has no script.

    >>> from etude.tasks.agents.text_maze import TextMaze
    >>> maze = TextMaze(size=3, slips=0.5)
    >>> [row] = RecordScript(called="games").rows([maze.problems("train")[0]], maze, 0)
    >>> sorted(row), row["segments"][-1]["reward"]
    (['id', 'level', 'segments', 'stop', 'success'], 1.0)
    """

    def rows(self, problems: Sequence[Problem], task: LanguageTask, seed: int) -> list[dict[str, Any]]:
        if (script := getattr(task, "script", None)) is None:
            raise DataError(f"{self.called} records the script of {task.id}, which has none: record a policy instead.")
        found = []
        for number, problem in enumerate(problems):
            said = script(problem, Stream(seed).split("recorded", problem.id, number))
            won = sum(s.reward for s in said) >= 1.0 or any(s.reward >= 1.0 for s in said)
            found.append(recorded(said, id=problem.id, level=problem.level, success=won).to_json())
        return found


class RecordPlay(DeriveByPolicy):
    """Games as the policy that it begins from plays them, `samples` of each problem, with what each turn is paid.

    Raises: DataError where no game ended.

    >>> RecordPlay(called="games", begins="bc", problems=200, samples=4).samples
    4
    """

    samples: Count = 1
    temperature: Positive = 1.0

    def rows_by(
        self, problems: Sequence[Problem], task: LanguageTask, policy: LanguagePolicy, seed: int
    ) -> list[dict[str, Any]]:
        from etude.core.slots import Context
        from etude.experience.groups import Groups

        stream = Stream(seed).split("recorded")
        how = Groups(size=self.samples, temperature=self.temperature)
        episodes = how.collect(problems, Context(task, policy, stream, max_tokens=task.max_tokens))
        return [of_episode(e, task).to_json() for e in episodes if e.turns and e.segments[0].role != "assistant"]


def of_episode(episode: Episode, task: LanguageTask) -> Dialogue:
    """An episode that was played, as a dialogue."""
    problem = episode.problem
    return Dialogue(episode.segments, episode.stop.truncated, task.success(episode), problem.id, problem.level)

"""Self-play of a searcher: what its questions have to be, and what its answers are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from etude.core.episodes import Episode, Problem
from etude.core.fields import WholeNumber
from etude.core.slots import Context, Reward
from etude.curricula.rules import Rule
from etude.experience.proposing import PosedProblems
from etude.rewards.search_tags import same_words

if TYPE_CHECKING:
    from etude.core.task import Task

MOST_ANSWERS = 10


class LookedUp(Rule):
    """A question was looked up: 'uninformed' if nothing was found, 'few_queries', 'repeated_query' for two alike.

    Args:
        queries: at least so many searches.

    >>> info = {"queries": ["boss", "x"], "documents": ["x's boss is y"]}
    >>> [LookedUp(queries=n).refuses(Problem("1", "who is x's boss?", "y", info=info)) for n in (2, 3)]
    [None, 'few_queries']
    """

    queries: WholeNumber = 2

    def refuses(self, problem: Problem) -> str | None:
        queries = problem.info.get("queries", ())
        told = {
            "uninformed": not problem.info.get("documents"),
            "few_queries": len(queries) < self.queries,
            "repeated_query": len({*queries}) < len(queries),
        }
        return next((why for why, holds in told.items() if holds), None)


class SelfPlay(PosedProblems):
    """Questions whose answers their proposers found, if they have that answer for whoever reads what was found.

    The reader has the documents of a question's proposer, mixed with those of `noise` others of the step, and no
    search; a question that it answers otherwise is counted as `proposals/wrong`. All else is as in `PosedProblems`.

    Args:
        verified: whether questions are verified by their documents.
        noise: how many proposers' documents are mixed with a question's own.

    >>> SelfPlay(size=5).rows_per_problem, SelfPlay(verified=False).doubted({0: Problem("1", "")}, None)
    (6, {0: 'no_question'})
    """

    verified: bool = True
    noise: WholeNumber = 4

    def lacks(self, task: Task) -> str | None:
        if sentence := super().lacks(task):
            return sentence
        if self.verified and not hasattr(task, "read"):
            return (
                f"SelfPlay has questions read, and task {task.id!r} does not say how (`read`): set "
                "experience.verified=false."
            )
        if getattr(task, "tools", None) is None:
            return f"SelfPlay is for players that search, and task {task.id!r} has no tools: set task.tools=tag-search."
        return None

    def earned(self, episode: Episode) -> float:
        return answer_reward(episode)

    def doubted(self, proposals: Mapping[int, Problem], context: Context) -> dict[int, str]:
        found = super().doubted(proposals, context)
        for number in [n for n in proposals if self.verified and n not in found]:
            if not self._read(number, proposals, context):
                found[number] = "wrong"
        return found

    def _read(self, number: int, proposals: Mapping[int, Problem], context: Context) -> bool:
        """Whether a question has its answer for whoever reads the documents."""
        task: Any = context.task
        random = context.stream.split("noise", number).numpy
        others = [n for n in proposals if n != number]
        mixed = [number, *random.permutation(others)[: self.noise]] if others else [number]
        documents = [text for n in random.permutation(mixed) for text in proposals[int(n)].info["documents"]]
        question = proposals[number]
        return same_words(task.read(question.prompt, documents), [str(question.answer)])


def answer_reward(episode: Episode) -> float:
    """What the environment paid for the last answer, a quarter of it where more than ten were printed."""
    printed = episode.completion.count("<answer>")
    return episode.reward / 4 if printed > MOST_ANSWERS else episode.reward


class SearchAnswer(Reward):
    """r = 1 if the last answer is right, a quarter of that where more than ten were printed, else 0.

    >>> from etude.core.episodes import Segment
    >>> said = Episode(Problem("1", "?"), [Segment("assistant", "<answer>a</answer>" * 11, reward=1.0)])
    >>> SearchAnswer().score([said], Context(None, None, None))
    [0.25]
    """

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [answer_reward(e) for e in episodes]

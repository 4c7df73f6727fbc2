"""RewardAnything: a judge that reads a principle and ranks a list of answers, trained by GRPO (arXiv:2506.03637).

Changes GRPO in two places, on a task whose problems are lists to be ranked (`principles`, or data files with the
columns 'asked', 'candidates' and 'targets'):

1. the reward of a verdict, a thought in tags and then JSON with scores by name and names from best to worst, is

       r = 0.1 F + 0.9 A

   F in [0, 1] says how well it is formed (`formed`), and A how far its scores order the candidates as the targets g do,
   over all pairs:

       A = max(0, 1 - sum p / sum w),   w = 1 + |g_a - g_b|,   p = w reversed, w / 2 wrongly equal, else 0

   A is 1 in the right order, 0 in the opposite one, 1/2 for equal scores where no targets are; any increasing
   transformation of the scores and any other names leave it as it is;
2. which candidate has which name is drawn anew whenever a list is met, by the run's seed; a group sees the same names.

Where the released code is silent or differs: it has neither the mix of F and A nor how far an order and scores agree
(here the share of pairs of the order that scores do not contradict). For fewer than two candidates with a score its A
is 1, with which saying nothing is the best verdict of all: here it is 0, and
`--set rewards.listwise-reward.unranked=1` is as released. Where no pair has two numbers A is 0, there too. It shuffles
names with one fixed seed, and mends some broken JSON, which is not mended here. The paper starts from an instructed
model; a blank one is shown verdicts first (`etude train sft --task principles`).

What the judge is for is another run, of any method that compares the completions of a problem:

    etude train grpo --task TASK --set rewards=ranked-by-judge --set rewards.ranked-by-judge.judge=listwise-judge
        --set rewards.ranked-by-judge.judge.model=RUN --set "rewards.ranked-by-judge.judge.asked=PRINCIPLE {prompt}"

One verdict, under a principle in words, on all completions of a prompt at once, is all that is paid there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode, Problem, occurrences
from etude.core.errors import DataError
from etude.core.fields import NonNegative, Probability
from etude.core.slots import Context, Reward
from etude.core.task import Task
from etude.core.worlds import World
from etude.experience.groups import Groups
from etude.methods.rlvr.grpo import grpo
from etude.rewards.lists import drawn_order
from etude.rewards.verdicts import candidates_of, formed, listed, listwise_accuracy, verdict_of


class ListwiseReward(Reward):
    """format F + accuracy A of a verdict on a list, both in [0, 1] (arXiv:2506.03637).

    Args:
        format: weight of how well a verdict is formed.
        accuracy: weight of how far its scores are in the order of the targets.
        unranked: A where fewer than two candidates have a score.

    Raises: DataError for a problem without a list.

    >>> from etude.core.episodes import Segment
    >>> problem = Problem("p/1", "", info={"asked": "", "candidates": ["x", "y"], "targets": [1.0, 4.0]})
    >>> texts = ('{"scores":{"A":1,"B":2},"best-to-worst":["B","A"]}', '{"scores":{"A":1,"B":1}}', "B")
    >>> said = [Episode(problem, [Segment("assistant", text)]) for text in texts]
    >>> [round(r, 3) for r in ListwiseReward().score(said, None)]
    [0.98, 0.5, 0.0]
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})  # it reads text

    format: NonNegative = 0.1
    accuracy: NonNegative = 0.9
    unranked: Probability = 0.0

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [self.worth(episode.completion, episode.problem) for episode in episodes]

    def worth(self, text: str, problem: Problem) -> float:
        """What a verdict on a problem's list is worth."""
        wanted = candidates_of(problem).wanted
        agreed = listwise_accuracy(verdict_of(text).scores, wanted, self.unranked)
        return self.format * formed(text, list(wanted)) + self.accuracy * agreed


class ShuffledNames(Groups):
    """Groups on lists whose candidates change names, and with them places, whenever a list is met.

    The new order is drawn at the address of the problem in this step, so all of a group see the same one.

    Raises: DataError for a problem without a list.

    >>> ShuffledNames(size=4).rows_per_problem
    4
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})

    def lacks(self, task: Task) -> str | None:
        try:
            candidates_of(task.problems("train")[0])
        except DataError as error:
            return str(error)
        return super().lacks(task)

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        numbered = zip(problems, occurrences(problems))
        return super().collect([renamed(problem, number, context) for problem, number in numbered], context)


def renamed(problem: Problem, number: int, context: Context) -> Problem:
    """The problem with its candidates under other names: the `number`-th time that this step meets it."""
    asked, answers, targets = candidates_of(problem)
    order = drawn_order(problem, number, len(answers), context)
    answers, targets = [answers[i] for i in order], [targets[i] for i in order]
    info = {**problem.info, "candidates": answers, "targets": targets}
    return dataclasses.replace(problem, prompt=listed(asked, answers), info=info)


reward_anything = grpo.replace(
    id="reward-anything",
    title="RewardAnything: Generalizable Principle-Following Reward Models",
    paper="arXiv:2506.03637",
    experience=ShuffledNames(size=8),
    rewards=(ListwiseReward(),),
    claim=Claim(
        statement="On principles that it never saw a judge that reads them, trained by GRPO to rank lists, orders more "
        "pairs rightly than a reward model of equal size that learned the same answers without the principle, and than "
        "the judge that was shown verdicts alone.",
        task="principles",
        setting="4,000 lists of four answers; three layers of width 96; 600 steps on 64 verdicts, then 60 of 16 x 8 by "
        "GRPO or 60 more on verdicts; the reward model takes as many steps, on 64 pairs",
        measures=(
            Measure(name="pairs", smallest=0.02, bounds=(0.0, 1.0)),
            Measure(name="pairs-beyond-sft", smallest=0.02, bounds=(0.0, 1.0)),
            Measure(name="tau", role="mechanism", bounds=(-1.0, 1.0)),
        ),
        equal=("updates",),
        sweep={"optimizer.lr": (3e-4, 1e-3)},
        learned_on="pairs",
        paper_effect="86.4 on RM-Bench (84.4 on its hard part) and the best on RABench, of principles that are unseen",
    ),
)

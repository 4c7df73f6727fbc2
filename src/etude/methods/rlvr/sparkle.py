"""SparkleRL-PSS: problems that are too hard are learned from partway (arXiv:2506.04723).

Changes GRPO in four places:

1. partial step scaffolding: a worked answer is cut into four blocks, and a problem comes with the first 0, 1, 2, 3 or 4
   of them already said; what goes on from there is sampled, and it alone is learned (`ScaffoldedGroups`);
2. rewards are 2 for a right answer in the right form, 1 for a right one in another, -1 for all else (`GradedReward`);
3. 0.01 KL (k3) to the policy that the stage begins from;
4. 32 completions at temperature 0.6.

This is the second stage of two, and `sparkle-two-stages` is the chain of both: `first`, GRPO on all problems with 0.001
of the KL and the same rewards; `rates`, how many of 20 completions it gets right; and `second`, this one from where the
first ended, on the problems of which that was none (`of-difficulty`). In the paper each of them becomes five; here one
of the five is drawn whenever a problem comes. Its other arms are hard problems alone

    etude train sparkle-two-stages --set experience.shown=0

and SFT on the worked answers (`--set runs.second.method=sft`). Blocks are cut where steps end:
`experience.separator=,` for running totals, `>` for chains.

The paper's three axes (plans, knowledge, subproblems) are measured by `etude evaluate --axes`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from etude.core.claims import Claim, Measure
from etude.core.draws import Draw, uniforms
from etude.core.episodes import Episode, Problem, Segment
from etude.core.fields import Count, WholeNumber
from etude.core.recipe import Recipe
from etude.core.slots import Context
from etude.core.task import LanguageTask, Task
from etude.experience.groups import Groups
from etude.experience.rollout import Start, fresh, rollout
from etude.experience.said import check_blocks, said, solution_blocks
from etude.experience.shown import without_answers
from etude.methods.rlvr.grpo import grpo
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference
from etude.rewards.patterns import GradedReward
from etude.stages.chain import Train
from etude.stages.rates import Rates


class ScaffoldedGroups(Groups):
    """Groups of which each goes on from the first blocks of its problem's worked answer, how many is drawn.

    What was already said counts towards the limit, is scored with the rest, and is never learned. With no block it is a
    plain group. Blocks that would leave no room are not shown. Tasks with a single turn and worked answers.

    Args:
        blocks: into how many a worked answer is cut. shown: how many of them are said; each is as likely.
        separator: text that ends a step, so that no block ends inside of one; empty: blocks of characters.

    Raises: ConfigError for nothing to show, or more blocks than there are.

    >>> ScaffoldedGroups(blocks=2, shown=(0, 1, 2)).rows_per_problem
    8
    """

    blocks: Count = 4
    shown: tuple[WholeNumber, ...] = (0, 1, 2, 3, 4)
    separator: str = ""

    def check(self) -> None:
        check_blocks("ScaffoldedGroups", self.shown, self.blocks)

    def lacks(self, task: Task) -> str | None:
        if isinstance(task, LanguageTask) and task.max_turns > 1:
            return f"ScaffoldedGroups goes on inside of one turn, and task {task.id!r} has several: choose groups."
        return without_answers(task) or super().lacks(task)

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        starts, chosen = fresh(problems, self.size, context.stream), list[int]()
        for first in range(0, len(starts), self.size):
            own = starts[first : first + self.size]
            count, begun = self._scaffold(own[0], self._drawn(own[0].draw), context)
            chosen += [count] * len(own)
            if begun is not None:
                starts[first : first + self.size] = [
                    s._replace(segments=(begun,), open=True, draw=s.draw.child("blocks", count)) for s in own
                ]
        sampling = dataclasses.replace(self.sampling(context), whole_turns=True)
        episodes = rollout(starts, context, sampling)
        for count, episode in zip(chosen, episodes):
            episode.info["blocks"] = count
        return episodes

    def _drawn(self, draw: Draw) -> int:
        """How many blocks the group of this draw is shown."""
        number = float(uniforms(torch.tensor([draw.child("shown").key]), 0, 1)[0, 0])
        return self.shown[int(number * len(self.shown))]

    def _scaffold(self, start: Start, count: int, context: Context) -> tuple[int, Segment | None]:
        """The first blocks, as many of them as leave room, as what was said; None where that is nothing."""
        worked = context.task.demonstration(start.problem)
        if worked is None:
            return 0, None
        blocks = solution_blocks(worked, self.blocks, self.separator)
        for shown in range(count, 0, -1):
            begun = said("".join(blocks[:shown]), context)
            if 0 < len(begun.tokens) < (self.max_tokens or context.max_tokens):
                context.policy.work["shown_tokens"] += len(begun.tokens)
                return shown, begun
        return 0, None


sparkle = grpo.replace(
    id="sparkle",
    title="Beyond Accuracy: Dissecting Mathematical Reasoning for LLMs Under Reinforcement Learning",
    paper="arXiv:2506.04723",
    row="analysis",
    experience=ScaffoldedGroups(size=32, temperature=0.6, blocks=4, shown=(0, 1, 2, 3, 4)),
    rewards=(GradedReward(right=2.0, malformed=1.0, wrong=-1.0),),
    regularizers=(KLToReference(coefficient=0.01, estimator="k3"),),
    reference=Frozen(),
    claim=Claim(
        statement="With the first blocks of worked answers already said, problems that are hardly ever solved teach "
        "more than without.",
        bed="language/compose-hard",
        baseline="sparkle",
        changes={"problems": 16, "experience.size": 8, "experience.separator": ">"},
        baseline_changes={"problems": 16, "experience.size": 8, "experience.shown": "0"},
        measures=(Measure(name="end"), Measure(name="area", role="mechanism")),
        equal=("steps", "completions"),
        sweep={"optimizer.lr": (5e-5, 1e-4, 2e-4)},
        paper_effect="67.03 against 63.59 on hard problems alone, over five benchmarks",
    ),
)

sparkle_two_stages = Recipe(
    id="sparkle-two-stages",
    title=f"{sparkle.title}, both stages",
    paper=sparkle.paper,
    runs=(
        Train(
            called="first", method="grpo+kl-to-reference", steps=300,
            set=("regularizers.kl-to-reference.coefficient=0.001", "rewards=graded-reward", "rewards.0.right=2.0"),
        ),
        Rates(called="rates", problems=1000, samples=20),
        Train(
            called="second", method="sparkle", steps=300,
            set=("curriculum=of-difficulty", "curriculum.rates={rates}", "curriculum.above=none", "curriculum.most=0"),
        ),
    ),
)  # fmt: skip

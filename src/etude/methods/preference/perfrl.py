"""PerfRL: programs that are made faster, by ranking candidates with unit tests in the loop (arXiv:2312.05657).

Changes SFT in five places:

1. after SFT on slow programs x and faster ones y (the first three quarters of the steps) each gets a set of candidates:
   four samples, the greedy answer and that of a beam of four, x itself and the worked y (`candidate-sets`);
2. the task runs them all and says what each is worth: on `stack-machine` -1 where it is no program, -0.5 where it stops
   in the middle, 0 where it comes to something else than x, else 1 + the share of x's time that it saves. Time is the
   number of executed opcodes, so that it is exact. The levels are ours; the paper's order is invalid, wrong, correct,
   correct and faster;
3. of equal candidates one is kept, and problems count alike however many they have (`distinct-candidates`);
4. RRHF (arXiv:2304.05302): with p_i = 1/|y_i| sum_t log pi(y_{i,t} | x, y_{i,<t}),

       loss = sum_{r_i < r_j} max(0, p_i - p_j) - sum_t log pi(y_{best,t} | x, y_{best,<t}),

   a mean over problems (`ranked-candidates`). Only the order of the r_i matters; whoever said a candidate, there is no
   ratio, no critic, no reference and no KL;
5. the latter term is left out where even the best candidate fails its tests (`objective.least`).

    etude train perfrl --task stack-machine --model blank:2x64x4 --steps 800

Success is what the paper calls %OPT: right, and at least 10 % faster. Here a round is a step; rounds of 500 programs
are `problems=500 minibatches=8`. RRHF's release divides the likelihood term by the length of the padded row, prompt
included. p_i without a division by length: `objective.of.per_token=false`. There is no code of PerfRL's authors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode, Problem
from etude.core.fields import Count, NonNegative
from etude.core.slots import Context, Filter
from etude.core.task import LanguageTask, Task
from etude.experience.groups import Groups
from etude.experience.scored import answered
from etude.methods.foundation.sft import sft
from etude.objectives.links import Hinge, Link
from etude.objectives.pairs import (
    AllPairs,
    Choice,
    Compared,
    ImplicitReward,
    LogRatio,
    PairLoss,
    answers_of,
    extremes,
    lengths,
    mean_logp,
)
from etude.planners.search import Search
from etude.planners.token_beam import TokenBeam
from etude.planners.trees import Trees
from etude.rewards.outcome import TaskReward
from etude.stages.phases import Phase

CANDIDATES = "candidates"
"""Of a problem: texts that are candidates whoever answers, as the program that is to be made faster."""


class CandidateSets(Groups):
    """Candidates for each problem, in one group: samples, and what others say, each paid by the task.

    Behind `size` samples come the answer of each decoder, the texts that the problem itself has
    (`info["candidates"]`), and its worked answer, if it has one. All but the samples are rows as written: nothing is
    said of who is how likely to say them. Some may be equal. Decoders work in the process that trains.

    Args:
        size: samples.
        decoders: further ways in which the policy answers, as a search does; `experience.decoders=token-beam`.

    >>> CandidateSets(size=4).rows_per_problem
    8
    """

    size: Count = 4
    decoders: tuple[Search, ...] = (TokenBeam(width=1), TokenBeam(width=4))

    @property
    def rows_per_problem(self) -> int:
        return self.size + len(self.decoders) + 2

    def lacks(self, task: Task) -> str | None:
        if isinstance(task, LanguageTask) and task.max_turns > 1:
            return f"CandidateSets are answers of one turn, and task {task.id!r} has several: choose experience=groups."
        if isinstance(task, LanguageTask) and task.judged_by_reward:
            return f"CandidateSets asks the task what candidates are worth, and task {task.id!r} has no answers."
        return super().lacks(task)

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        sampled, decoded = super().collect(problems, context), self._decoded(problems, context)
        rows = [
            answered(problem, text, context.task.score(problem, text), group, context)
            for group, problem in enumerate(problems)
            for text in [*(texts[group] for texts in decoded), *given(problem, context.task)]
        ]
        return sampled + rows

    def _decoded(self, problems: Sequence[Problem], context: Context) -> list[list[str]]:
        """What each decoder says to each problem."""
        whole, alone = self.sampling(context), replace(context, samplers=None)
        ends, texts = {*context.policy.end_ids}, list[list[str]]()
        for decoder in self.decoders:
            trees = Trees(problems, alone, whole, decoder.step(whole))
            said = [[t for t in node.tokens if t not in ends] for node in decoder.find(trees)]
            texts.append([context.policy.decode(tokens) for tokens in said])
        return texts


def given(problem: Problem, task: LanguageTask) -> list[str]:
    """Candidates that nobody has to say: those of the problem, and its worked answer.

    >>> given(Problem("p/1", "n+>", info={"candidates": ["n+"], "demonstration": "+"}), LanguageTask())
    ['n+', '+']
    """
    worked = task.demonstration(problem)
    return [*problem.info.get(CANDIDATES, ()), *([] if worked is None else [worked])]


class DistinctCandidates(Filter):
    """Of equal answers to a problem the first alone; weights are such that problems count alike, 1 on average.

    Shapes: group [B] -> weights [B].

    Two candidates to one problem that are equal, and one to another:

    >>> from types import SimpleNamespace as Rows
    >>> said = [Rows(completion=text) for text in ("n+", "n+", "+", "-", "*")]
    >>> rows = Rows(episodes=said, group=torch.tensor([0, 0, 0, 0, 1]), scores=torch.zeros(5))
    >>> [round(x, 4) for x in DistinctCandidates().weigh(rows).tolist()]
    [0.6667, 0.0, 0.6667, 0.6667, 2.0]
    """

    def weigh(self, batch: TokenBatch) -> Tensor:
        said = list(zip(batch.group.tolist(), [e.completion for e in batch.episodes]))
        first = [said.index(pair) == row for row, pair in enumerate(said)]
        counts = Counter(group for group, _ in {*said})
        share = sum(counts.values()) / len(counts)
        return batch.scores.new_tensor([kept * share / counts[group] for kept, (group, _) in zip(first, said)])


class RankedCandidates(PairLoss):
    """RRHF (arXiv:2304.05302): weight sum_{r_i < r_j} max(0, p_i - p_j), plus nll times -log pi of the best candidate.

    p_i is the mean log-probability of a candidate's tokens. A pair that is in order has no loss, so that where all are
    the first sum is 0; scores matter by their order alone. Of one candidate it is SFT.

    Shapes: returns [B], each problem's loss on all its rows.

    Args:
        link, of, choice: as of `pair-loss`, with a sum in place of its mean over pairs.
        weight: of the sum over pairs.
        nll: of the best candidate's -log pi, summed over its tokens; of equals the last one's.
        least: the lowest score that is worth imitating.

    A wrong answer that is likelier than the right one, by half a nat per token:

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([1.5, 0.0]), group=torch.zeros(2), action_mask=torch.ones(2, 2))
    >>> rows.action_counts, rows.episode, rows.once = torch.tensor([2, 2]), None, lambda: None
    >>> said = TokenLogProbs(torch.tensor([[-1.0, -1.0], [-0.5, -0.5]]))
    >>> RankedCandidates()(rows, said).tolist(), RankedCandidates(least=2.0)(rows, said).tolist()
    ([2.5, 2.5], [0.5, 0.5])
    """

    fresh_rows: ClassVar[bool] = False  # whoever said a candidate
    link: Link = Hinge()
    of: ImplicitReward = LogRatio(denominators=(), per_token=True)
    choice: Choice = AllPairs()
    nll: NonNegative = 1.0
    least: float = 1.0

    def _of_pairs(self, compared: Compared, loss: Tensor) -> Tensor:
        return compared.total(loss, self.link.orders)

    def _of_best(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """[G] -log pi of each problem's best candidate; 0 where that is worth less than `least`."""
        whole = mean_logp(batch, policy) * lengths(batch)
        (logp, scores, group), number, _ = answers_of(batch, whole, batch.scores, batch.group)
        best = extremes(scores, group, number).better
        return torch.where(scores[best] >= self.least, -logp[best], 0.0)


perfrl = sft.replace(
    id="perfrl",
    title="Leveraging Reinforcement Learning and Large Language Models for Code Optimization",
    paper="arXiv:2312.05657",
    stages=(Phase(like="sft", end=0.75), Phase(optimizer="reset")),
    experience=CandidateSets(size=4, decoders=(TokenBeam(width=1), TokenBeam(width=4))),
    rewards=(TaskReward(),),
    filters=(DistinctCandidates(),),
    objective=RankedCandidates(),
    problems=32,
    claim=Claim(
        statement="After as many updates programs are made faster more often, and by more, where candidates are run "
        "and ranked than by imitation of faster programs alone, and they are right no less often.",
        task="stack-machine",
        setting="4,000 slow programs of 8 to 16 opcodes whose worked answers keep 70 % of what is needless; two layers "
        "of width 64 after 400 supervised steps from a blank model, then 30 steps of 32 programs",
        measures=(
            Measure(name="optimised", smallest=0.05),
            Measure(name="speedup", smallest=0.05, bounds=(1.0, None)),
            Measure(name="right", margin=-0.05, smallest=0.05),
            Measure(name="best of 2", role="mechanism", smallest=0.05, bounds=(1.0, None)),
        ),
        equal=("updates",),
        sweep={"optimizer.lr": (2e-4, 5e-4, 1e-3)},
        learned_on="optimised",
        paper_effect="PIE, CodeT5 with 60 M parameters: 5.6 points more programs optimised and 2.2 more speedup than "
        "the models that it began from, near much larger ones",
    ),
)

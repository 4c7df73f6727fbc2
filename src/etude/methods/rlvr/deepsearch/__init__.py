"""DeepSearch: what is trained on was found by a tree search (arXiv:2509.25454).

Changes DAPO in six places:

1. experience: eight answers of each problem are found by Monte Carlo tree search, 8 ways at every step of up to 1/64 of
   the length limit; a right answer, where there is one, is kept of each expansion, and what is gone on from next is
   chosen among all steps of the tree, not from the root (`SearchedGroups`, `GlobalFrontier`);
2. advantages: every token of step j has, with q what the search found of the step and v the outcome of the answer,

       A = tanh(q_j) + (r - v) - mean of r over the problem's answers,    r - mean of r on the last step,

   r being the reward, 1 or -1 and the overlong penalty (`TreeValueAdvantage`); nothing is divided by a deviation;
3. rewards are 1 and -1, and the overlong penalty begins at three quarters of the limit;
4. groups whose answers are all alike stay: their steps are not worth the same. Wrong answers that repeat themselves are
   left out (`UnrepeatedFailures`);
5. right answers to problems that are solved in at most a quarter of a search are used again instead of searching
   (`experience.replayed`);
6. problems of which a quarter or more was right the last time are not drawn again (`SeldomSolved`). In the paper that
   is an outer loop, four completions of every problem before each round; here the record is kept as training goes.

    loss = -1/(sum |y_i|) sum_i sum_t min(rho A, clip(rho, 1 - 0.2, 1 + 0.28) A)

As the released code (smiles724/DeepSearch) has it, which differs from the paper: a step that was not visited has no UCT
bonus instead of an infinite one; the entropy term of the frontier is off (`experience.onward.entropy=0.4`); the prompt
is never gone on from again. It can draw the way from a softmax, as here by default, but takes the argmax unless it is
told to, and its scripts do not tell it: `experience.greedy=true` is the published setting. It also takes 8 minibatches
of a batch of 256, clips at 10 where A < 0 (dual clip), decays weights by 0.1 and warms up for 10 steps; here it is as
in `dapo`. There the buffer is made between rounds from all that was generated. Tokens of steps that several answers
share are learned with each of them.
Search from the root is `experience.onward=from-the-root`. Tasks whose steps have a mark: `experience.separator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from etude.advantages.group import Centre, GroupMean
from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.episodes import Problem
from etude.core.fields import Count, Positive, Probability
from etude.core.slots import Curriculum, Filter, TokenAdvantages
from etude.core.streams import Stream
from etude.curricula.uniform import Uniform
from etude.methods.rlvr.dapo import dapo
from etude.methods.rlvr.deepsearch.trees import SearchedGroups
from etude.rewards.outcome import OverlongPenalty
from etude.rewards.patterns import GradedReward, repetition, sampled

if TYPE_CHECKING:
    from etude.core.method import Method


class TreeValueAdvantage(TokenAdvantages):
    """A = r - b + (largest tanh(q / temperature) - v) on the tokens of a step, r - b on those of the last.

    r is the row's score, b the baseline of the group's, q what the search found of the step, v the outcome of the whole
    answer (`info["worth"]`). Rows that no search made have r - b on all tokens.

    Shapes: scores, group [B], step [B, T] -> [B, T].

    Args:
        centre: b.
        temperature, largest: how q is bounded.

    An answer of two steps, right and a little too long, and a wrong one:

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([0.9, -1.0]), group=torch.zeros(2), step=torch.tensor([[-1, 0, 1], [-1, 0, 0]]))
    >>> rows.episodes = [Rows(info={"worth": [0.5, 1.0]}), Rows(info={"worth": [-1.0]})]
    >>> [[round(x, 3) for x in row] for row in TreeValueAdvantage()(rows).tolist()]
    [[0.95, 0.412, 0.95], [-0.95, -0.95, -0.95]]

    Source: arXiv:2509.25454, section 3.3, with the tokens of the overlong penalty as in the released code.
    """

    centre: Centre = GroupMean()
    temperature: Positive = 1.0
    largest: Positive = 1.0

    def objection(self, method: Method) -> str | None:
        if isinstance(method.slots().get("experience"), SearchedGroups):
            return None
        return "reads what a search found, and nothing searches: choose experience=searched-groups."

    def __call__(self, batch: TokenBatch) -> Tensor:
        centred = self.centre.centred(batch.scores, batch.group)[:, None]
        assert batch.step is not None
        return centred + self.shift(batch, batch.step)

    def shift(self, batch: TokenBatch, step: Tensor) -> Tensor:
        """[B, T] by how much a step is worth another thing than the answer that it is a step of."""
        found = torch.zeros_like(step, dtype=batch.scores.dtype)
        for row, episode in enumerate(batch.episodes):
            if worth := episode.info.get("worth"):
                q = torch.tensor(worth, dtype=torch.float64)
                shifts = self.largest * (q / self.temperature).tanh() - q[-1]
                shifts[-1] = 0.0
                found[row] = torch.where(step[row] >= 0, shifts.to(found)[step[row].clamp(min=0)], 0.0)
        return found


class UnrepeatedFailures(Filter):
    """Leaves out wrong completions of which more than a share of the pieces of `size` tokens occurred before.

    Shapes: solved [B] -> weights [B].

    A right and a wrong answer, both a b a b a b, of whose four triples two are repeated:

    >>> from types import SimpleNamespace as Rows
    >>> from etude.core.episodes import Episode, Segment
    >>> said = Episode(Problem("sum/1", "1+1="), [Segment("assistant", tokens=[1, 2] * 3, action_mask=[1] * 6)])
    >>> rows = Rows(solved=torch.tensor([True, False]), episodes=[said] * 2, scores=torch.zeros(2))
    >>> [UnrepeatedFailures(share=x, size=3).weigh(rows).tolist() for x in (0.4, 0.5)]
    [[1.0, 0.0], [1.0, 1.0]]
    """

    share: Probability = 0.5
    size: Count = 4

    def weigh(self, batch: TokenBatch) -> Tensor:
        assert batch.solved is not None
        kept = [
            bool(right) or repetition(sampled(e), self.size) <= self.share
            for right, e in zip(batch.solved.tolist(), batch.episodes)
        ]
        return batch.scores.new_tensor([float(k) for k in kept])


class SeldomSolved(Curriculum):
    """Problems of another curriculum without those of which `below` or more was right the last time that they came.

    Where `rounds` draws do not find enough of them the others come, too.

    Shapes: learns from solved and group [B] of every scored batch.

    >>> part = SeldomSolved().bind()
    >>> part.state["rates"].update({"a": 0.25, "b": 0.2})
    >>> [p.id for p in part.choose([Problem(name, "?") for name in "ab"], 1, Stream(0))]
    ['b']
    """

    below: Probability = 0.25
    rounds: Count = 4
    rest: Curriculum = Uniform()

    def initial_state(self) -> dict[str, Any]:
        return {"rates": {}}

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        rates, chosen, passed = self.state["rates"], list[Problem](), list[Problem]()
        for number in range(self.rounds):
            for problem in self.rest.choose(pool, count - len(chosen), stream.split("round", number)):
                (chosen if rates.get(problem.id, 0.0) < self.below else passed).append(problem)
            if len(chosen) == count:
                break
        return chosen + passed[: count - len(chosen)]

    def before_update(self, batch: TokenBatch) -> None:
        assert batch.solved is not None
        found: dict[str, list[bool]] = {}
        for episode, right, own in zip(batch.episodes, batch.solved.tolist(), batch.sampled.tolist()):
            if own and not episode.info.get("replayed"):
                found.setdefault(episode.problem.id, []).append(right)
        self.state["rates"] |= {problem: sum(right) / len(right) for problem, right in found.items()}


deepsearch = dapo.replace(
    id="deepsearch",
    title="DeepSearch: Overcome the Bottleneck of Reinforcement Learning with Verifiable Rewards via Monte Carlo Tree "
    "Search",
    paper="arXiv:2509.25454",
    curriculum=SeldomSolved(below=0.25),
    experience=SearchedGroups(size=8, width=8, depth=64, replayed=0.25),
    rewards=(GradedReward(right=1.0, malformed=1.0, wrong=-1.0), OverlongPenalty(buffer=0.25)),
    filters=(UnrepeatedFailures(),),
    advantages=TreeValueAdvantage(centre=GroupMean(), temperature=1.0, largest=1.0),
    claim=Claim(
        statement="Of as many generated tokens, answers that a tree search found teach more than going on with DAPO.",
        bed="language/countdown-medium",
        baseline="dapo",
        changes={"problems": 24, "experience.width": 4, "experience.depth": 4, "experience.step_tokens": 3},
        baseline_changes={"problems": 16, "experience.size": 16},
        measures=(
            Measure(name="end"),
            Measure(name="area", role="mechanism"),
            Measure(
                name="mean:sampled_tokens", role="mechanism", direction="equal", smallest=150.0, bounds=(0.0, None)
            ),
        ),
        equal=("steps", "updates"),
        sweep={"optimizer.lr": (1e-4, 2e-4, 4e-4)},
        paper_effect="62.95 against 62.02 after 1,875 more steps of DAPO, for a sixth of the GPU hours",
    ),
)

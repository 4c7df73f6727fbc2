"""What answers are worth under constraints: which a task's judges accept, and how far they may be from the start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from etude.advantages.group import episode_sum, group_max, group_min
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError, RewardError
from etude.core.fields import NonNegative, Positive, Probability
from etude.core.part import Need, Part
from etude.core.slots import Context, Filter, GroupReward, TokenAdvantages, TokenObjective
from etude.core.worlds import World
from etude.objectives.sequence import sequence_sum
from etude.policies.micro_batches import micro_batches
from etude.rewards.judged import BAD_AFTER, View, WholeCompletion
from etude.rewards.judges import Judge, NoRepeats
from etude.rewards.model import TOKENS


class TaskJudges(Part):
    """Who has to accept answers to a task's problems, all of them.

    Args:
        level: `Problem.level` of the task's problems; '' for all that no other one names.
        panel: the judges; nobody accepts everything.
        sees: what they see of an answer; where there is nothing to see, it is refused.

    >>> TaskJudges(level="sorted").panel[0].name
    'no-repeats'
    """

    slot = "tasks"
    level: str = ""
    panel: tuple[Judge, ...] = (NoRepeats(),)
    sees: View = WholeCompletion()


class TaskConstraints(TaskJudges):
    """Also how far from the start an answer may be.

    Args:
        kl_max: most nats of log pi/ref of a whole answer. Precise judges allow for more, a task of talk for less.

    >>> TaskConstraints(level="sorted", kl_max=16.0).kl_max
    16.0
    """

    kl_max: Positive = 8.0


class ConstrainedScores(GroupReward, abstract=True):
    """Scores in the light of whether an answer is accepted by all judges of its task.

    Args of all of them: `tasks`, what holds for which problems; `bad_share`, the run stops once more than this share of
    at least 100 questions to judges had no answer, and up to then such a question counts as refused.

    Raises: ConfigError for two tasks of one level; RewardError for a problem of a level that no task names, and for
        judges that fail.
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})  # judges read text
    asks_about_written: ClassVar[bool] = False
    """Whether judges are asked about written answers as well; if not, these count as refused."""
    tasks: tuple[TaskJudges, ...] = (TaskJudges(),)
    bad_share: Probability = 0.01

    def check(self) -> None:
        levels = [task.level for task in self.tasks]
        if not levels or len(set(levels)) < len(levels):
            raise ConfigError(
                f"{type(self).__name__}.tasks must be one or more, each of a level of its own, got {levels!r}: set "
                "tasks.0.level and the others'."
            )

    def initial_state(self) -> dict[str, Any]:
        return {"asked": 0, "failed": 0}

    def worth(self, scores: Tensor, accepted: Tensor, away: Tensor, sampled: Tensor, group: Tensor) -> Tensor:
        """[N] what answers are worth.

        Args:
            scores: [N] so far.
            accepted: [N] True where all judges accept.
            away: [N] log pi/ref over the task's `kl_max`; 0 for parts that do not ask how far answers are.
            sampled: [N] False on answers that were written.
            group: [N] which problem.
        """
        raise NotImplementedError

    def rescore_in(self, batch: TokenBatch, context: Context) -> Tensor:
        away = self.log_ratios(batch, context)
        if (once := batch.once()) is None:
            return self._of_episodes(batch, away, context)
        return self._of_episodes(batch.rows(once[0]), away[once[0]], context)[once[1]]

    def log_ratios(self, batch: TokenBatch, context: Context) -> Tensor:
        """[B] log pi/ref of each row's episode, for parts that ask how far answers are; else 0."""
        return torch.zeros_like(batch.scores)

    def shares(self, away: Tensor, tasks: Sequence[TaskJudges]) -> Tensor:
        """[N] the same over what each answer's task allows for."""
        return away

    def task_of(self, level: str, problem: str) -> TaskJudges:
        """What holds for a problem of this level."""
        known = {task.level: task for task in self.tasks}
        found = known.get(level, known.get(""))
        if found is None:
            raise RewardError(
                f"{type(self).__name__} has no constraints for problem {problem!r} of level {level!r}, only for "
                f"{sorted(known)}: add a task of this level, or one of level '' for all others."
            )
        return found

    def _of_episodes(self, batch: TokenBatch, away: Tensor, context: Context) -> Tensor:
        whole = [episode.whole for episode in batch.episodes]
        tasks = [self.task_of(e.problem.level, e.problem.id) for e in whole]
        accepted = torch.zeros(len(whole), dtype=torch.bool)
        asked = (batch.sampled | self.asks_about_written).tolist()
        for task in self.tasks:
            own = [i for i, its in enumerate(tasks) if its is task and asked[i]]
            accepted[own] = torch.tensor(self._accepted(task, [whole[i] for i in own], context), dtype=torch.bool)
        away, accepted = self.shares(away, tasks), accepted.to(away.device)
        return self.worth(batch.scores, accepted, away, batch.sampled, batch.group).to(batch.scores)

    def _accepted(self, task: TaskJudges, episodes: Sequence[Any], context: Context) -> list[bool]:
        """Whether all judges accept each episode; who was refused already is not asked about again."""
        cases = [task.sees.case(e, context) for e in episodes]
        left = [case is not None for case in cases]
        for judge in task.panel:
            asked = [i for i, still in enumerate(left) if still]
            said = judge.accept([case for i in asked if (case := cases[i]) is not None], context)
            self._count(judge, [episodes[i].problem.id for i, v in zip(asked, said) if v is None], len(asked))
            for i, value in zip(asked, said):
                left[i] = bool(value)
        return left

    def _count(self, judge: Judge, failed: Sequence[str], asked: int) -> None:
        """Stop the run where judges fail too often."""
        self.state["asked"] += asked
        self.state["failed"] += len(failed)
        count, bad = self.state["asked"], self.state["failed"]
        if failed and count >= BAD_AFTER and bad > self.bad_share * count:
            raise RewardError(
                f"{judge.name} had no answer for problem {failed[-1]!r}, which makes {bad} of {count} questions to "
                f"judges, more than bad_share={self.bad_share:g}. {judge.why} Mend the judge, or raise bad_share."
            )


class NearStart(ConstrainedScores, abstract=True):
    """Also by how far from the reference an answer is, under the policy that the step begins with."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE_LOGP})
    uses_behaviour: ClassVar[bool] = True
    tasks: tuple[TaskConstraints, ...] = (TaskConstraints(),)

    def shares(self, away: Tensor, tasks: Sequence[Any]) -> Tensor:
        return away / away.new_tensor([task.kl_max for task in tasks])

    def log_ratios(self, batch: TokenBatch, context: Context) -> Tensor:
        assert batch.reference_logp is not None
        logp = batch.behaviour_logp
        if len(written := (~batch.sampled).nonzero()[:, 0]):
            logp = logp.index_copy(0, written, _now(batch.rows(written), context).to(logp))
        return episode_sum(sequence_sum(logp - batch.reference_logp, batch), batch).to(batch.scores)


@torch.no_grad()
def _now(batch: TokenBatch, context: Context) -> Tensor:
    """[B, T] log pi of written rows, of which none is recorded."""
    found = torch.zeros_like(batch.behaviour_logp)
    for piece in micro_batches(context.policy, batch, TOKENS):
        found[piece] = context.policy.evaluate(batch.rows(piece), set()).logp.to(found)
    return found


class ConstrainedReturns(NearStart):
    """v R max(0, 1 - log(pi/ref) / kl_max), v being 1 where all judges accept and 0 elsewhere (arXiv:2409.20370).

    What is refused is worth 0, whatever its reward R. An answer that the policy says less often than it did at the
    start is worth more than R.

    Shapes: [B].

    >>> scores, accepted = torch.tensor([0.9, 0.5, 0.5]), torch.tensor([False, True, True])
    >>> away = torch.tensor([0.0, 0.5, 2.0])
    >>> ConstrainedReturns().worth(scores, accepted, away, accepted, accepted).tolist()
    [0.0, 0.25, 0.0]
    """

    def worth(self, scores: Tensor, accepted: Tensor, away: Tensor, sampled: Tensor, group: Tensor) -> Tensor:
        return torch.where(accepted, scores * (1 - away).clamp(min=0), 0.0)


class ConstrainedOrder(ConstrainedScores):
    """Places of a problem's sampled answers from the worst, 0, on: all that are refused, by score, then all accepted.

    So the best is the accepted answer with the highest score, and the worst the refused one with the lowest, or, where
    all are accepted, the accepted one with the lowest. Where none is accepted all have place 0, and nothing is learned
    of such a problem. Only the order is meant: links that ask how much better an answer is have no use for it.

    Shapes: [B], whole numbers.

    >>> scores, accepted = torch.tensor([-1.0, -4.0, -0.5, -9.0]), torch.tensor([True, True, False, False])
    >>> ConstrainedOrder().worth(scores, accepted, scores, torch.ones(4).bool(), torch.zeros(4)).tolist()
    [3.0, 2.0, 1.0, 0.0]
    """

    def worth(self, scores: Tensor, accepted: Tensor, away: Tensor, sampled: Tensor, group: Tensor) -> Tensor:
        _, level = torch.unique(scores, return_inverse=True)
        _, whose = torch.unique(group, return_inverse=True)
        key = (2 * whose + (accepted & sampled)) * (int(level.max()) + 1) + level
        _, place = torch.unique(key, return_inverse=True)
        first = group_min(torch.where(sampled, place, place.max()), group)
        any_accepted = group_max((accepted & sampled).to(scores), group) > 0
        return torch.where(any_accepted & sampled, place - first, 0).to(scores)


class ConstrainedBest(NearStart):
    """The score of a problem's best answer that keeps all constraints, and 0 for all others.

    It is the sampled answer with the highest score among those that all judges accept and that are at most kl_max from
    the reference; where there is none, the written one if it keeps them. Answers that do not are masked by -infinity,
    so scores may be negative.

    Shapes: [B].

    >>> scores, accepted = torch.tensor([-0.5, -2.0, -3.0, 0.5]), torch.tensor([False, True, True, True])
    >>> sampled, away, group = torch.tensor([True, True, True, False]), torch.zeros(4), torch.zeros(4)
    >>> ConstrainedBest().worth(scores, accepted, away, sampled, group).tolist()
    [0.0, -2.0, 0.0, 0.0]
    >>> ConstrainedBest().worth(scores, accepted & ~sampled, away, sampled, group).tolist()
    [0.0, 0.0, 0.0, 0.5]
    """

    asks_about_written: ClassVar[bool] = True

    def worth(self, scores: Tensor, accepted: Tensor, away: Tensor, sampled: Tensor, group: Tensor) -> Tensor:
        keeps = accepted & (away <= 1)
        own = _first_best(scores, keeps & sampled, group)
        alone = group_max((keeps & sampled).to(scores), group) == 0
        return torch.where(own | _first_best(scores, keeps & ~sampled & alone, group), scores, 0.0)


def _first_best(scores: Tensor, among: Tensor, group: Tensor) -> Tensor:
    """[N] True on the first answer of each group with the highest score among some; nowhere where there are none."""
    masked = scores.masked_fill(~among, -math.inf)
    best = among & (masked == group_max(masked, group))
    places = torch.arange(len(scores), device=scores.device)
    return best & (places == group_min(torch.where(best, places, len(scores)), group))


class ScoresAsAdvantages(TokenAdvantages):
    """A_i = the score of answer i, sampled or written, on all of its tokens; exactly 0 where that is 0.

    Shapes: scores [B] -> [B, T].

    >>> from types import SimpleNamespace as Rows
    >>> ScoresAsAdvantages()(Rows(scores=torch.tensor([0.5]), action_mask=torch.tensor([[False, True]]))).tolist()
    [[0.0, 0.5]]
    """

    def __call__(self, batch: TokenBatch) -> Tensor:
        return batch.scores[:, None] * batch.action_mask


class WholeAnswerGradient(TokenObjective):
    """loss[b] = -A[b] log pi(y_b), of the whole answer: long ones are not divided by their length.

    Written answers count as sampled ones do, each row the same.

    Shapes: advantages, logp [B, T], one advantage on all tokens of a row -> [B].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(advantages=torch.tensor([[0.5, 0.5]]), action_mask=torch.ones(1, 2).bool())
    >>> WholeAnswerGradient()(rows, TokenLogProbs(torch.tensor([[-1.0, -3.0]]))).tolist()
    [2.0]
    """

    per_row: ClassVar[bool] = True
    vanishes_with_advantage: ClassVar[bool] = True

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        return -sequence_sum(batch.advantages * policy.logp, batch)


class TaskWeights(Filter):
    """How much the tasks of a run count: the loss is the sum of their losses with these weights.

    Args:
        levels: `Problem.level` of the tasks; problems of another level count once.
        weights: of each of them.

    Shapes: [B] -> weights [B].

    >>> from types import SimpleNamespace as Rows
    >>> from etude.core.episodes import Episode, Problem
    >>> said = [Episode(Problem("p", "?", level=level), []) for level in ("sorted", "free")]
    >>> TaskWeights(levels=("sorted",), weights=(2.0,)).weigh(Rows(episodes=said, scores=torch.zeros(2))).tolist()
    [2.0, 1.0]
    """

    levels: tuple[str, ...] = ()
    weights: tuple[NonNegative, ...] = ()

    def check(self) -> None:
        if len(self.levels) != len(self.weights) or len(set(self.levels)) < len(self.levels):
            raise ConfigError(
                "TaskWeights.levels and weights must be as many, and each level there once, "
                f"got {self.levels} and {self.weights}."
            )

    def weigh(self, batch: TokenBatch) -> Tensor:
        known = dict(zip(self.levels, self.weights))
        return batch.scores.new_tensor([known.get(e.problem.level, 1.0) for e in batch.episodes])

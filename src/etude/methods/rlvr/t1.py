"""T1: reinforcement learning that explores widely and scales with inference (arXiv:2501.11651).

Changes RLOO in six places:

1. over-sampling: many completions of each problem (64 in the paper, 16 here) at temperature 1.2 with top-p 0.95;
2. completions that loop, run over the length limit or are garbled lose 1 (`PatternPenalty`);
3. groups whose rewards (before the KL) are all equal are dropped (`UnequalOutcomes`);
4. the KL to an anchor is paid in reward, scaled by its standard deviation over the batch's tokens, so that it weighs
   the same however far the policy has moved (`ScaledKL`): with k_t = log pi - log anchor,

       r_i <- r_i - c sum_t k_{i,t} / std(k),      A_i = r_i - 1/(K-1) sum_{j != i} r_j;

5. the anchor follows the policy, theta_ref <- a theta_ref + (1 - a) theta after every step (`MovingAverage(1 - a)`);
6. an entropy bonus: alpha times the mean entropy of a completion's tokens, averaged over completions, whatever the
   constant that the parent's sums over tokens are divided by (`PerCompletion`).

One update per batch, without a ratio, so that a truncated distribution may be sampled; k_t is of the whole
distribution. The paper's first stage fine-tunes on attempts that go wrong, notice it and go on rightly:
`sft` with `TrialAndError` as its experience, before this. a, c, alpha are not given in the paper: 0.99, 0.01, 0.001.
Its problems are those that the fine-tuned model solves in at most 30 % of 16 tries (`evaluation.difficulty`); how
accuracy grows with the length of the thought is `evaluation.budget.accuracy_by_budget`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from etude.advantages.group import equal_groups
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode, Problem, occurrences
from etude.core.fields import NonNegative, Probability
from etude.core.part import Need
from etude.core.slots import Context, Filter, GroupReward, TokenRegularizer
from etude.core.streams import Stream
from etude.core.task import SingleTurn
from etude.experience.data import Demonstrations
from etude.experience.groups import Groups
from etude.methods.rlvr.rloo import rloo
from etude.policies.logprobs import token_logprobs
from etude.policies.showing import shown as as_shown
from etude.policies.written import written
from etude.references.frozen import MovingAverage
from etude.regularizers.entropy import EntropyBonus
from etude.rewards.unexpected import PatternPenalty

NOTHING = 1e-5
"""Standard deviation, in nats, up to which log-ratios are rounding: the anchor is the policy."""


class ScaledKL(GroupReward):
    """-coefficient sum_t k_t / std(k), k_t = log pi - log reference of each sampled token, std over the whole batch.

    Multiplying all k by a constant changes nothing.

    Shapes: [B].

    k of 1 and 3 have the deviation 1, as have k of 10 and 30 once they are divided by 10:

    >>> part, mask = ScaledKL(coefficient=0.5), torch.ones(1, 2, dtype=torch.bool)
    >>> [(-part.coefficient * scaled_kl(torch.tensor([[k, 3 * k]]), mask).sum(1)).item() for k in (1.0, 10.0)]
    [-2.0, -2.0]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE_LOGP, Need.HIDDEN})
    coefficient: NonNegative = 0.01

    def rescore(self, batch: TokenBatch) -> Tensor:
        return batch.scores - self.coefficient * scaled_kl(log_ratios(batch), batch.action_mask).sum(1)


def log_ratios(batch: TokenBatch) -> Tensor:
    """[B, T] log pi - log reference, 0 outside the action mask.

    pi is the whole distribution; `behaviour_logp` may be a truncated one's.
    """
    mask, head = batch.action_mask, batch.head
    assert head is not None and batch.hidden is not None and batch.reference_logp is not None
    hidden = batch.hidden[mask]
    logp, _ = token_logprobs(
        hidden, head.weight.to(hidden.dtype), head.bias, batch.tokens[mask], head.temperature, head.softcap
    )
    ratios = torch.zeros_like(batch.reference_logp)
    ratios[mask] = logp.to(ratios) - batch.reference_logp[mask]
    return ratios


def scaled_kl(k: Tensor, mask: Tensor) -> Tensor:
    """k / std(k over the mask), 0 outside it and where there is nothing but rounding."""
    spread = k[mask].std(correction=0)
    return torch.where(mask & (spread > NOTHING), k / spread.clamp(min=NOTHING), 0.0)


class UnequalOutcomes(Filter):
    """Drops groups whose rewards were all equal before the KL was subtracted; nothing is sampled in their place.

    Shapes: scores, group [B] -> [B].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.zeros(4), group=torch.tensor([0, 0, 1, 1]), once=lambda: None)
    >>> rows.outcomes = torch.tensor([1.0, 1.0, 1.0, 0.0])
    >>> UnequalOutcomes().weigh(rows).tolist()
    [0.0, 0.0, 1.0, 1.0]
    """

    def weigh(self, batch: TokenBatch) -> Tensor:
        before = batch.scores if batch.outcomes is None else batch.outcomes
        return (~equal_groups(before, batch.group)).to(batch.scores.dtype)


class PerCompletion(TokenRegularizer):
    """Another regularizer, averaged over each row's tokens and then over rows, whatever the method's aggregation.

    Shapes: [B].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(action_mask=torch.tensor([[True, True], [True, False]]), action_counts=torch.tensor([2, 1]))
    >>> policy = TokenLogProbs(torch.zeros(2, 2), entropy=torch.tensor([[2.0, 4.0], [6.0, 0.0]]))
    >>> PerCompletion(of=EntropyBonus(coefficient=0.5))(rows, policy).tolist()
    [-1.5, -3.0]
    """

    of: TokenRegularizer = EntropyBonus(coefficient=0.001)

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        each = self.of(batch, policy)
        return torch.where(batch.action_mask, each, 0.0).sum(1) / batch.action_counts.clamp(min=1)


class TrialAndError(Demonstrations):
    """Worked answers in which a step is first got wrong: the wrong step, a mark, then the right steps to the end.

    Args:
        rate: share of the answers that go wrong somewhere.
        separator: what stands between the steps of the task's worked answers.
        mark: what says that the step before it was wrong.

    The worked answer 8,17,19 may become 8,12!,17,19: the wrong step differs from the right one in its last digit.

    >>> wrong = mistaken("17", Stream(0)) + TrialAndError(mark="!").mark
    >>> len(wrong), wrong[0], wrong[1] != "7", wrong[2]
    (3, '1', True, '!')
    """

    rate: Probability = 0.5
    separator: str = ","
    mark: str = "!"

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        shown = super().collect(problems, context)
        numbers = occurrences(problems)
        return [self._wrong(e, context, context.stream.split("wrong", e.problem.id, n)) for e, n in zip(shown, numbers)]

    def _wrong(self, episode: Episode, context: Context, stream: Stream) -> Episode:
        text, random = str(context.task.demonstration(episode.problem) or ""), stream.numpy
        steps = text.split(self.separator)
        if random.random() >= self.rate or not episode.action_count or not text:
            return episode
        place = int(random.integers(len(steps)))
        steps.insert(place, mistaken(steps[place], stream) + self.mark)
        segments = as_shown(SingleTurn(context.task).reset(episode.problem, 0), context.task, context.policy)
        again = [*segments, type(episode.segments[-1])("assistant", self.separator.join(steps))]
        return written(episode.problem, again, episode.group, context.policy, context.task.add_bos)


def mistaken(step: str, stream: Stream) -> str:
    """A step with one digit or letter, the last if there is a choice, replaced by another of its kind."""
    kinds = ("0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    for i in reversed(range(len(step))):
        for mistake in kinds:
            if step[i] in mistake:
                by = int(stream.numpy.integers(1, len(mistake)))
                return step[:i] + mistake[(mistake.index(step[i]) + by) % len(mistake)] + step[i + 1 :]
    return step


t1 = rloo.replace(
    id="t1",
    title="Advancing Language Model Reasoning through Reinforcement Learning and Inference Scaling",
    paper="arXiv:2501.11651",
    experience=Groups(size=16, temperature=1.2, top_p=0.95),
    rewards=(*rloo.rewards, PatternPenalty(), ScaledKL()),
    filters=(UnequalOutcomes(),),
    regularizers=(PerCompletion(of=EntropyBonus(coefficient=0.001)),),
    reference=MovingAverage(rate=0.01),
    problems=16,
    claim=Claim(
        statement="64 completions of each problem end more accurate than 4 of as many problems, and an anchor that "
        "moves beats one that does not.",
        task="compose",
        measures=(
            Measure(name="accuracy, more completions"),
            Measure(name="accuracy, moving anchor"),
            Measure(name="anchor shift", role="mechanism", minimum=0.1),
            Measure(name="entropy", role="mechanism", bounds=(0.0, None)),
            Measure(name="growth with thought", role="mechanism"),
        ),
        learned_on="accuracy, more completions",
        paper_effect="Qwen2.5-32B: MATH500 83.4 after SFT, 92.4 after reinforcement; accuracy grows with the number of "
        "completions from 4 to 64, and with the budget for thinking",
    ),
)

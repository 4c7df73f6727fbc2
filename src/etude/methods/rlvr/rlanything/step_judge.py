"""A judge that gives verdicts on the steps of a completion, and learns which verdicts agree with how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from etude.advantages.group import solved_share
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.draws import children, uniforms
from etude.core.errors import ConfigError
from etude.core.fields import Count, Fraction, NonNegative, Probability
from etude.core.learners import Learning
from etude.core.part import Need
from etude.core.slots import Context, TokenReward
from etude.core.streams import Stream
from etude.core.worlds import World
from etude.learners.small import SmallLearner, upgraded_learning
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.optimizers.adam import AdamW
from etude.optimizers.learner import learner
from etude.rewards.steps import AtSeparator, Splitter, several_splitters, step_ends

if TYPE_CHECKING:
    from etude.core.method import Method

UNREADABLE = -2.0
"""What a verdict that is neither -1 nor +1 earns."""
MEMORY = 20
"""Batches over which the judge averages what features are usually like."""
NOTHING = 1e-6
"""Standard deviation up to which rewards are equal."""


def standardised(values: Tensor, index: Tensor) -> Tensor:
    """[N] values less the mean of all with the same index, over their standard deviation; 0 where all are equal."""
    count = torch.bincount(index).to(values)[index]

    def mean(x: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, index, x)[index] / count

    centred = values - mean(values)
    spread = mean(centred**2).sqrt()
    return torch.where(spread > NOTHING, centred / spread.clamp(min=NOTHING), 0.0)


def consistency(rewards: Tensor, verdicts: Tensor) -> Tensor:
    """[N, m] what verdicts (-1, +1, or 0: unreadable) on steps of these rewards [N] earn the judge.

    >>> consistency(torch.tensor([1.5]), torch.tensor([[1, -1, 0]])).tolist()
    [[1.5, -1.5, -2.0]]
    """
    return torch.where(verdicts == 0, UNREADABLE, rewards[:, None] * verdicts)


def verdict_advantages(rewards: Tensor, verdicts: Tensor) -> Tensor:
    """[N, m] earnings standardised over the verdicts of each step; 0 where all earned the same."""
    earned = consistency(rewards, verdicts)
    step = torch.arange(len(earned), device=earned.device)[:, None].expand_as(earned)
    return standardised(earned.flatten(), step.flatten()).view_as(earned)


class StepVerdicts(TokenReward, SmallLearner):
    """R_ik = O_i + weight * mean_l S_ikl on the last token of each step, by a judge that learns along.

    The judge is a network of one hidden layer on the policy's states before a step's first token and before the token
    that ends it, which has seen what the step says, standardised by their running mean and deviation (unstandardised,
    what all steps have in common is learned first, and a judge that says the same of all learns no more).
    z = its output, P(S = +1) = 1 / (1 + exp(-z)). It learns in clipped steps from every scored batch. Weights, moments
    and the running figures are in `state`.

    Marks `step` [B, T], the number of the step a token belongs to (-1 outside), and `verdicts` [B, T, m] at the tokens
    that end steps. Every reward of a method that pays on these tokens counts in R_ik.

    Args:
        splitter: where steps begin.
        verdicts: m. weight: lambda. failure: O of what is not solved.
        low, high: the share of a problem's completions that must be solved for the judge to learn from it.
        width, clip, learning: of the judge and its steps.

    Two of three verdicts speak for a step of a completion that was solved:

    >>> part = StepVerdicts(weight=3.0, verdicts=3)
    >>> 1.0 + part.weight * (1 + 1 - 1) / part.verdicts
    2.0
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})  # it reads text
    needs: ClassVar[frozenset[Need]] = frozenset({Need.HIDDEN})
    splitter: Splitter = AtSeparator(separator=",")
    verdicts: Count = 3
    weight: NonNegative = 1.0
    failure: Literal[-1, 0] = -1
    low: Probability = 0.2
    high: Probability = 0.8
    width: Count = 32
    clip: Fraction = 0.2
    learning: Learning = Learning(optimizer=AdamW(lr=3e-3, clip_norm=None), epochs=4, order="before")
    when: ClassVar[frozenset[str]] = frozenset({"optimizer", "epochs", "every", "warmup"})

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        values = dict(values)
        if (separator := values.pop("separator", None)) is not None:  # once the only way to end a step
            values["splitter"] = {"part": AtSeparator.name, "separator": separator}
        return upgraded_learning(cls, values)

    def objection(self, method: Method) -> str | None:
        return several_splitters(method) or super().objection(method)

    def check(self) -> None:
        if self.low > self.high:
            raise ConfigError(f"StepVerdicts.low must be at most high, got {self.low} and {self.high}.")

    def marked(self, batch: TokenBatch, context: Context) -> TokenBatch:
        self.made["now"] = context.step, context.steps
        step = self.splitter.step(batch, context.policy.tokenizer)
        ends = step_ends(step)
        features = self._features(batch, step, ends)
        if not self.state:
            self.state.update(fresh_judge(features.shape[1], self.width, context.stream.split("judge")))
        self._watch(features)
        chance = self.judge(features, self.state["weights"]).sigmoid()
        drawn = self._numbers(batch)[ends.cpu()]
        sampled = 2.0 * (drawn < chance[:, None]).double() - 1
        verdicts = torch.zeros(*step.shape, self.verdicts, dtype=torch.float64, device=step.device)
        verdicts[ends] = sampled.to(step.device)
        return batch.replace(step=step, verdicts=verdicts)

    def shape(self, batch: TokenBatch) -> Tensor:
        assert batch.solved is not None and batch.verdicts is not None
        outcome = torch.where(batch.solved, 1.0, float(self.failure))[:, None]
        return ((outcome + self.weight * batch.verdicts.mean(-1)) * judged(batch.verdicts)).to(batch.rewards)

    def before_update(self, batch: TokenBatch) -> None:
        """Let the judge learn from the problems that are neither too hard nor too easy."""
        rows = ((solved_share(batch) >= self.low) & (solved_share(batch) <= self.high)).nonzero()[:, 0]
        step, steps = self.made.get("now", (0, 1))
        if len(rows) and self.learning.turn(step) is not None:
            self._learn(batch.rows(rows), self.learning.optimizer.rate(step, steps))

    def judge(self, features: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """[N] z of steps with these features [N, 2 H]."""
        features = (features - self.state["mean"]) / (self.state["square"] - self.state["mean"] ** 2 + 1e-4).sqrt()
        return (features @ weights["in"] + weights["bias"]).tanh() @ weights["out"] + weights["offset"]

    def _watch(self, features: Tensor) -> None:
        """Keep up what is usual of features: what all steps have in common says nothing about one of them."""
        seen = self.state["seen"] = min(self.state["seen"] + 1, MEMORY)
        for name, value in (("mean", features.mean(0)), ("square", (features**2).mean(0))):
            self.state[name] = self.state[name] + (value - self.state[name]) / seen

    def _learn(self, batch: TokenBatch, rate: float) -> None:
        assert batch.step is not None and batch.verdicts is not None
        ends = judged(batch.verdicts)
        features, verdicts = self._features(batch, batch.step, ends), batch.verdicts[ends].cpu()
        mine = verdict_advantages(batch.rewards[ends].cpu().double(), verdicts)
        useful = mine.any(1)
        if not bool(useful.any()):
            return
        features, verdicts, mine = features[useful], verdicts[useful], mine[useful]
        rows = _rows(verdicts, self._logp(features, verdicts, self.state["weights"]), mine)
        self.learn_from(lambda w: self._loss(rows, self._logp(features, verdicts, w)), rows, rate)

    def _loss(self, rows: TokenBatch, logp: Tensor) -> Tensor:
        return ClippedSurrogate(low=self.clip, high=self.clip)(rows, TokenLogProbs(logp)).mean()

    def _logp(self, features: Tensor, verdicts: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """[N, m] log-probability of verdicts."""
        return torch.nn.functional.logsigmoid(verdicts * self.judge(features, weights)[:, None])

    def _features(self, batch: TokenBatch, step: Tensor, ends: Tensor) -> Tensor:
        """[N, 2 H] states before the first token of each step and before the one that ends it, each of unit size."""
        assert batch.hidden is not None
        hidden = batch.hidden
        first = step.diff(dim=1, prepend=torch.full_like(step[:, :1], -1)) != 0
        first &= step >= 0
        both = torch.stack([hidden[first], hidden[ends]], 1).detach().cpu().double()
        size = (both**2).mean(-1, keepdim=True).sqrt().clamp(min=1e-6)
        return (both / size).flatten(1)

    def _numbers(self, batch: TokenBatch) -> Tensor:
        """[B, T, m] uniform random numbers for verdicts at each token, by the rows' draws."""
        assert batch.draw is not None
        keys, count = batch.draw.cpu(), batch.tokens.shape[1]
        return torch.stack([uniforms(children(keys, "verdict", i), 0, count).T for i in range(self.verdicts)], -1)


def judged(verdicts: Tensor) -> Tensor:
    """[B, T] the tokens that end steps, on which there are verdicts [B, T, m] (-1 or +1; 0 elsewhere)."""
    return (verdicts != 0).any(-1)


def fresh_judge(size: int, width: int, stream: Stream) -> dict[str, Any]:
    """A judge of features [N, size] that says +1 half of the time."""
    weights = torch.randn(size, width, generator=stream.torch, dtype=torch.float64) / size**0.5
    bias, out = torch.zeros(2, width, dtype=torch.float64)
    usual = {"mean": weights.new_zeros(size), "square": weights.new_ones(size), "seen": 0}
    return learner({"in": weights, "bias": bias, "out": out, "offset": out.new_zeros(1)}) | usual


def _rows(verdicts: Tensor, logp: Tensor, advantages: Tensor) -> TokenBatch:
    """Steps as rows whose tokens are the verdicts on them."""
    everything, nothing = torch.ones_like(verdicts, dtype=torch.bool), torch.zeros(len(verdicts), dtype=torch.float64)
    return TokenBatch(
        tokens=verdicts.long(), attention_mask=everything, action_mask=everything, behaviour_logp=logp.detach(),
        rewards=advantages, group=nothing.long(), weights=nothing + 1, scores=nothing, truncated=nothing.bool(),
        advantages=advantages,
    )  # fmt: skip

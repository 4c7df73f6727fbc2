"""GDRO-GRPO: group distributionally robust optimization, Prompt-GDRO and Rollout-GDRO (arXiv:2601.19280).

Changes GRPO in three places. Problems are put into bins b by how often any of their completions was right lately;
an adversary then moves weight to bins that do badly. There are two adversaries, used one at a time.

1. Prompt-GDRO (the default, `PromptGDRO`) multiplies the advantages of a problem by its bin's weight. With l(x) the
   mean loss of the completions of x, averaged over the bin's problems of the batch to lbar(b),

       S(b) <- (1 - beta) S(b) + beta lbar(b),   omega(b) = exp(eta clip(S(b), -C, C)),   A <- min(omega, omega_max) A;

2. Rollout-GDRO (`RolloutGDRO`: train grpo `--with rollout-gdro`) gives each bin a number of completions n_b by one
   EXP3P bandit per bin, sum_b count_b n_b = nbar * problems being met by dynamic programming, with a price mu on
   completions: z_b(n_b) += Jhat_b - mu (n_b - nbar);
3. `SquareRootRollouts` takes the n_b that the analysis finds best instead, n_b ~ sqrt(v_b), v_b = p_b (1 - p_b).

The loss of a group-centred surrogate is 0 on average where pi = pi_old. What the adversary sees is the rest: batches
are passed over in four minibatches, and l(x) of the later ones says how much a problem gained or lost by the steps
on the others. The released code (kishanpb/verl-gdro) divides lbar(b) by the bin's share of the batch in all its runs of
Prompt-GDRO, and so do we; its weights are q(b), normalised over the bins of the batch (`rescaled`); it adds +lbar(b)
to the bandit where the paper has Jhat = -lbar(b) (`sign`). C = 3 is that code's cap on standardised scores
(`standardize`). The paper's 0.001 KL is left out, and 8 completions of 32 problems replace 4 of 512,
as in GRPO here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from etude.advantages.group import GroupAdvantage
from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode, Problem
from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative, Positive, PositiveProbability, Probability
from etude.core.method import Method
from etude.core.part import Need
from etude.core.slots import Context, TokenAdvantages
from etude.curricula.outcomes import Outcomes
from etude.experience.groups import Groups
from etude.experience.rollout import fresh, rollout
from etude.methods.rlvr.grpo import grpo
from etude.objectives.policy_gradient import ClippedSurrogate

BINS = Outcomes(history=100, margin=0.03, any_of=True)
"""Ten equal bins of the share of visits on which any completion was right."""


class PromptGDRO(TokenAdvantages):
    """Other advantages, bounded, times the weight of their problem's difficulty bin.

    Args:
        of: the advantages that are multiplied.
        outcomes: the bins.
        eta: how steeply weight follows loss; 0: all weights are 1.
        beta: share of the newest loss in a bin's score.
        explore: gamma, the uniform share of q.
        limit, largest: C and omega_max.
        by_share: divide a bin's loss by its share of the batch's problems.
        standardize: scores are centred and scaled over the bins seen so far before they are clipped to C.
        rescaled: use q over the bins of the batch, scaled to a mean of 1 over its rows, in place of omega.
        skip_extremes: leave problems that were always or never solved out of it, at weight 1.
        bound: advantages are clipped to this before they are weighed; none for no bound.

    Shapes: as `of`, [B, T].

    >>> part = PromptGDRO(eta=1.0).bind()
    >>> part.state["scores"].update({"0": math.log(2.0), "1": 0.0})
    >>> [round(w, 4) for w in part.weights(torch.tensor([0, 1, -1])).tolist()]
    [2.0, 1.0, 1.0]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ROW_LOSS})
    of: TokenAdvantages = GroupAdvantage()
    outcomes: Outcomes = BINS
    eta: NonNegative = 0.65
    beta: PositiveProbability = 0.12
    explore: Probability = 0.01
    limit: Positive = 3.0
    largest: Positive = 15.0
    by_share: bool = True
    standardize: bool = False
    rescaled: bool = False
    skip_extremes: bool = False
    bound: Positive | None = 5.0

    def initial_state(self) -> dict[str, Any]:
        return {"scores": {}}

    def before_update(self, batch: TokenBatch) -> None:
        self.outcomes.note(batch)

    def __call__(self, batch: TokenBatch) -> Tensor:
        advantages = self.of(batch)
        weights = self.weights(self.bands(batch)).to(advantages)
        bounded = advantages if self.bound is None else advantages.clamp(-self.bound, self.bound)
        return weights[:, None] * bounded

    def returns(self, batch: TokenBatch) -> Tensor | None:
        return self.of.returns(batch)

    def after_update(self, batch: TokenBatch) -> None:
        """Move the scores of the bins seen; rewards are compared unweighted, so the weight is taken out of the loss."""
        assert batch.row_loss is not None
        scores, bands = self.state["scores"], self.bands(batch)  # as they were when the credit was given
        loss = batch.row_loss / self.weights(bands).to(batch.row_loss).clamp(min=1e-12)
        for band, (mean, share) in bin_means(loss, batch.group, bands).items():
            value = mean / max(share, 1e-3) if self.by_share else mean
            old = scores.get(str(band), value)
            scores[str(band)] = (1 - self.beta) * old + self.beta * value

    def weights(self, bands: Tensor) -> Tensor:
        """[B] weights of rows in these bins [B]; -1 is none and weighs 1."""
        present = [b for b in bands.unique().tolist() if b >= 0]
        omega = {b: math.exp(self.eta * self._score(b)) for b in present}
        if self.rescaled and present:
            total = sum(omega.values())
            q = {b: (1 - self.explore) * w / total + self.explore / len(present) for b, w in omega.items()}
            mean = sum(q[b] * int((bands == b).sum()) for b in present) / int((bands >= 0).sum())
            omega = {b: w / mean for b, w in q.items()}
        weights = torch.ones(len(bands), dtype=torch.float64)
        for b, w in omega.items():
            weights[(bands == b).cpu()] = min(w, self.largest)
        return weights.to(bands.device)

    def q(self) -> list[float]:
        """The adversary's distribution over all bins, as it is now."""
        omega = [math.exp(self.eta * self._score(b)) for b in range(self.outcomes.bands)]
        return [(1 - self.explore) * w / sum(omega) + self.explore / len(omega) for w in omega]

    def _score(self, band: int) -> float:
        scores = self.state["scores"]
        value = scores.get(str(band), 0.0)
        if self.standardize and scores:
            mean = sum(scores.values()) / len(scores)
            spread = math.sqrt(sum((s - mean) ** 2 for s in scores.values()) / len(scores))
            value = (scores.get(str(band), mean) - mean) / max(spread, 1e-3)
        return float(min(max(value, -self.limit), self.limit))

    def bands(self, batch: TokenBatch) -> Tensor:
        """[B] each row's bin."""
        bands = []
        for episode in batch.episodes:
            band, rate = self.outcomes.band(episode.problem.id), self.outcomes.rate(episode.problem.id)
            extreme = self.skip_extremes and rate in (0.0, 1.0)
            bands.append(-1 if band is None or extreme else band)
        return torch.tensor(bands, device=batch.scores.device)


class RolloutGDRO(Groups):
    """Groups whose size is chosen for each difficulty bin by a bandit; on average `size` completions per problem.

    Arm probabilities of bin b are p_b(n) = (1 - explore) softmax(eta z_b)(n) + explore / arms. The n_b maximise
    sum_b log p_b(n_b) among those whose total is size * problems (the nearest reachable total if none is). Only the
    arm that was played learns. Problems that were not met before get `size` completions.

    Args:
        size: nbar; the paper's is 4.
        smallest: n_min.
        most: n_max as a multiple of `size`.
        price_rate: mu <- mu + price_rate (mean completions - nbar), starting from 0.
        sign: Jhat = -mean loss ('paper'), or + as in the released code ('code').
        outcomes: the bins; those of the step before decide.

    Shapes: learns from row_loss [B].

    >>> part = RolloutGDRO(size=4, price_rate=0.5).bind()
    >>> part.pay(6.0)
    >>> part.arms, part.state["price"]
    (range(2, 13), 1.0)
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ROW_LOSS})
    smallest: Count = 2
    most: Count = 3
    eta: NonNegative = 0.65
    explore: PositiveProbability = 0.01
    price_rate: NonNegative = 0.05
    sign: Literal["paper", "code"] = "paper"
    outcomes: Outcomes = BINS

    def check(self) -> None:
        if self.smallest > self.size:
            raise ConfigError(f"{type(self).__name__}.smallest must be at most size, {self.size}; got {self.smallest}.")

    def objection(self, method: Method) -> str | None:
        if isinstance(getattr(method, "advantages", None), PromptGDRO):
            return (
                "and PromptGDRO are two adversaries over the same bins, which are used one at a time: stack "
                "rollout-gdro on grpo, or set experience=groups."
            )
        return super().objection(method)

    @property
    def arms(self) -> range:
        """Sizes to choose from."""
        return range(self.smallest, self.most * self.size + 1)

    def initial_state(self) -> dict[str, Any]:
        return {"z": {}, "price": 0.0, "chosen": {}, "played": {}}

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        bands = [self.outcomes.band(p.id) for p in problems]
        counts = {b: bands.count(b) for b in sorted({b for b in bands if b is not None})}
        values = {b: self.values(b, counts) for b in counts}
        played = choose(values, counts, list(self.arms), self.size * sum(counts.values()))
        sizes = [self.size if b is None else played[b] for b in bands]
        self.state["chosen"] = {p.id: b for p, b in zip(problems, bands) if b is not None}
        self.state["played"] = {str(b): n for b, n in played.items()}
        return rollout(fresh(problems, sizes, context.stream), context, self.sampling(context))

    def values(self, band: int, counts: Mapping[int, int]) -> list[float]:
        """What each arm is worth to a bin: log p_b(n)."""
        z = self.state["z"].get(str(band), [0.0] * len(self.arms))
        p = torch.softmax(self.eta * torch.tensor(z, dtype=torch.float64), 0)
        return ((1 - self.explore) * p + self.explore / len(z)).log().tolist()

    def before_update(self, batch: TokenBatch) -> None:
        self.outcomes.note(batch)

    def after_update(self, batch: TokenBatch) -> None:
        """The played arms learn from the bins' losses, then the price from how many completions there were."""
        bands = torch.tensor([self.state["chosen"].get(e.problem.id, -1) for e in batch.episodes])
        assert batch.row_loss is not None
        loss = batch.row_loss.cpu()
        for band, (mean, _) in bin_means(loss, batch.group.cpu(), bands).items():
            self.learn(band, mean)
        completions = len(batch) if (once := batch.once()) is None else len(once[0])
        self.pay(completions / len(batch.group.unique()))

    def learn(self, band: int, loss: float) -> None:
        """z_b(n_b) += Jhat_b - mu (n_b - nbar)."""
        n, gain = self.state["played"][str(band)], -loss if self.sign == "paper" else loss
        z = self.state["z"].setdefault(str(band), [0.0] * len(self.arms))
        z[n - self.smallest] += gain - self.state["price"] * (n - self.size)

    def pay(self, mean: float) -> None:
        """mu <- mu + price_rate (realised mean - nbar)."""
        self.state["price"] += self.price_rate * (mean - self.size)


class SquareRootRollouts(RolloutGDRO):
    """As `RolloutGDRO`, with the sizes that minimise sum_b q_b v_b / n_b at the same total: n_b = square_root(...).

    v_b = p_b (1 - p_b), p_b the mean rate of a bin's problems. Whole numbers that meet the total are those nearest in
    squares. A bin of which nothing varies gets the fewest completions; if that is so for all, each gets `size`.

    Shapes: its bins learn from solved [B].

    A bin that varies 9 times as much gets 3 times as many completions:

    >>> [round(n, 4) for n in square_root([0.09, 0.01], [0.5, 0.5], SquareRootRollouts(size=4).size)]
    [6.0, 2.0]
    """

    outcomes: Outcomes = Outcomes(history=100, margin=0.03)

    def values(self, band: int, counts: Mapping[int, int]) -> list[float]:
        share = [counts[b] / sum(counts.values()) for b in counts]
        wanted = dict(zip(counts, square_root([self._variance(b) for b in counts], share, self.size)))[band]
        return [-counts[band] * (n - wanted) ** 2 for n in self.arms]

    def after_update(self, batch: TokenBatch) -> None:
        """Nothing is learned but the bins."""

    def _variance(self, band: int) -> float:
        rates = [self.outcomes.rate(p) for p, b in self.outcomes.state["bands"].items() if b == band]
        p = sum(r for r in rates if r is not None) / max(1, len(rates))
        return p * (1 - p)


def bin_means(values: Tensor, group: Tensor, bands: Tensor) -> dict[int, tuple[float, float]]:
    """Of each bin in a batch, the mean over its problems of their mean value, and its share of the problems.

    Args:
        values, group, bands: [B]; rows of bin -1 are left out.
    """
    _, index = torch.unique(group, return_inverse=True)
    counts = torch.bincount(index)
    means = torch.zeros(len(counts), dtype=torch.float64, device=values.device)
    means = means.index_add(0, index, values.double()) / counts
    band = torch.zeros(len(counts), dtype=torch.long, device=values.device).scatter(0, index, bands)
    known = int((band >= 0).sum())
    return {
        b: (float(means[band == b].mean()), int((band == b).sum()) / known) for b in band.unique().tolist() if b >= 0
    }


def choose(
    values: Mapping[int, Sequence[float]], counts: Mapping[int, int], arms: Sequence[int], total: int
) -> dict[int, int]:  # fmt: skip
    """The arm of each bin: the largest sum of values among those whose sum count * arm is nearest to `total`.

    By dynamic programming over bins; of equals the one with the most even arms.

    >>> choose({0: [0.0, 1.0], 1: [0.0, 5.0]}, {0: 1, 1: 1}, [2, 6], 8)
    {0: 2, 1: 6}
    """
    even = total / max(1, sum(counts.values()))
    best: dict[int, tuple[float, float, tuple[int, ...]]] = {0: (0.0, 0.0, ())}
    for band, count in counts.items():
        longer: dict[int, tuple[float, float, tuple[int, ...]]] = {}
        for spent, (worth, spread, chosen) in best.items():
            for arm, value in zip(arms, values[band]):
                place = spent + count * arm
                candidate = (worth + value, spread - count * (arm - even) ** 2, (*chosen, arm))
                if place not in longer or candidate > longer[place]:
                    longer[place] = candidate
        best = longer
    spent = min(best, key=lambda s: (abs(s - total), -best[s][0]))
    return dict(zip(counts, best[spent][2]))


def square_root(variances: Sequence[float], shares: Sequence[float], mean: float) -> list[float]:
    """n_b = mean sqrt(v_b) / sum_j q_j sqrt(v_j): of all n with sum q n = mean, the one with the least sum q v / n."""
    roots = [math.sqrt(v) for v in variances]
    scale = sum(q * r for q, r in zip(shares, roots))
    return [mean * r / scale for r in roots] if scale > 0 else [mean] * len(roots)


gdro_grpo = grpo.replace(
    id="gdro-grpo",
    title="Group Distributionally Robust Optimization-Driven Reinforcement Learning for LLM Reasoning",
    paper="arXiv:2601.19280",
    advantages=PromptGDRO(),
    objective=ClippedSurrogate(low=0.2, high=0.28),
    minibatches=4,
    claim=Claim(
        statement="At equal completions each adversary alone raises pass@8 on hard problems above GRPO's.",
        task="compose",
        setting="128 problems, a tenth each of chains of three and of four; 16 of them, 4 updates a step, 40 steps, "
        "from tiny",
        measures=(
            Measure(name="pass@8, weights", smallest=0.02),
            Measure(name="pass@8, completions", smallest=0.02),
            Measure(name="pass@1, weights", role="mechanism", smallest=0.02),
            Measure(name="pass@1, completions", role="mechanism", smallest=0.02),
            Measure(name="weights moved", role="mechanism", against=0.0, minimum=0.1, smallest=0.1, bounds=(0.0, 10.0)),
            Measure(
                name="completions moved", role="mechanism", against=0.0, minimum=0.1, smallest=0.1, bounds=(0.0, 10.0)
            ),
            Measure(name="weights on harder bins", role="mechanism", against=0.0, smallest=0.1, bounds=(-10.0, 10.0)),
            Measure(
                name="completions on harder bins", role="mechanism", against=0.0, smallest=0.1, bounds=(-10.0, 10.0)
            ),
        ),
        equal=("completions",),
        learned_on="pass@1, weights",
        paper_effect="pass@8 of Qwen3-Base 1.7B to 8B: relative gain of 9 to 13 % by weights, 9 to 11 % by completions",
    ),
)

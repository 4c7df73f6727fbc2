"""LOOP: leave-one-out advantages under PPO's clip, without a critic, a reference or a second model (arXiv:2502.01600).

Changes RLOO in five places:

1. a batch is used for two epochs of eight steps: the ratio rho = pi / pi_old is clipped in a range that is symmetric in
   its logarithm, [1 / (1 + eps), 1 + eps], eps = 0.1; under `ClippedSurrogate` that is `low = high / (1 + high)`;
2. episodes with |A| < 0.01, A = R - mean of the others, are left out: they count in the others' mean alone;
3. the tokens of an episode are averaged before episodes are;
4. 40 problems with 6 episodes each;
5. AdamW's weights decay by 0.01 times the rate, and its gradients are clipped at 0.1.

A ratio is that of a token. Of a turn it is with `--set objective=turn-surrogate`, of a whole episode with
`--set objective=trajectory-surrogate` (`objective.low` and `objective.high` as above): all tokens of a unit have its
ratio, and its loss, so that averaging tokens makes an episode's loss exactly min(rho A, clip(rho) A), and turns weigh
as many tokens as they have. Strictly on-policy it is `epochs=1 minibatches=1`.

The released code has ratios of tokens and of trajectories; those of turns are the paper's, and how turns are weighed
is ours. Its REINFORCE mode has no ratio at all, and takes means of log-probabilities, not sums. It fills its processes
with episodes below the threshold, can add a constant to A, and ends a step's updates where an estimate of the KL passes
20: none of this is here. Its learning rate of 5e-5 is that of adapters; here the optimizer's own.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from etude.advantages.group import episode_sum
from etude.advantages.turns import Turns
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.fields import NonNegative
from etude.core.slots import Filter
from etude.core.worlds import World
from etude.experience.groups import Groups
from etude.methods.rlvr.rloo import rloo
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.objectives.sequence import sequence_log_ratio
from etude.optimizers.adam import AdamW


class LargeAdvantages(Filter):
    """Rows whose largest |A| is at least `least`; the others count in what these are compared with, and are left out.

    Shapes: advantages [B, T] -> weights [B].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(advantages=torch.tensor([[0.0, 0.005], [0.0, -0.5]]), scores=torch.zeros(2))
    >>> LargeAdvantages().weigh(rows).tolist()
    [0.0, 1.0]
    """

    late: ClassVar[bool] = True
    least: NonNegative = 0.01

    def weigh(self, batch: TokenBatch) -> Tensor:
        assert batch.advantages is not None
        return (batch.advantages.abs().amax(1) >= self.least).to(batch.scores.dtype)


class TurnSurrogate(ClippedSurrogate):
    """PPO's clipped surrogate with the ratio of a whole turn, rho = exp(sum of log pi / pi_old over its tokens).

    Every token of a turn has its loss. Shapes: [B, T].

    >>> import torch
    >>> from etude.core.episodes import Episode, Segment
    >>> from etude.core.rows import to_batch
    >>> said = Segment("assistant", tokens=[7, 8], action_mask=[1, 1], behaviour_logp=[-1.0, -1.0])
    >>> rows = to_batch([Episode(None, [Segment("user", "", [5], [0], [0.0]), said])], 0, 1.0, torch.device("cpu"))
    >>> now = TokenLogProbs(torch.tensor([[0.0, -0.5, -1.25]]))
    >>> TurnSurrogate().log_ratio(rows, now).tolist()
    [[0.0, 0.25, 0.25]]
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})

    def log_ratio(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        turns = Turns.in_batch(batch)
        return turns.spread(turns.means(policy.logp - batch.behaviour_logp) * turns.sizes)


class TrajectorySurrogate(ClippedSurrogate):
    """PPO's clipped surrogate with the ratio of a whole episode, rho = exp(sum of log pi / pi_old over its tokens).

    Every token of the episode has its loss; its rows stay in one micro-batch. Shapes: [B, T].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(behaviour_logp=torch.tensor([[0.0, -1.0, -1.0]]), action_mask=torch.tensor([[0, 1, 1]]).bool())
    >>> rows.once = lambda: None  # every row is an episode of its own
    >>> TrajectorySurrogate().log_ratio(rows, TokenLogProbs(torch.tensor([[0.0, -0.5, -1.25]]))).tolist()
    [[0.0, 0.25, 0.25]]
    """

    couples: ClassVar[Literal["row", "group"]] = "group"
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE, World.ENUMERABLE})

    def log_ratio(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return episode_sum(sequence_log_ratio(batch, policy), batch)[:, None] * batch.action_mask


loop = rloo.replace(
    id="loop",
    title="Reinforcement Learning for Long-Horizon Interactive LLM Agents",
    paper="arXiv:2502.01600",
    problems=40,
    experience=Groups(size=6),
    filters=(LargeAdvantages(least=0.01),),
    objective=ClippedSurrogate(low=0.1 / 1.1, high=0.1),
    aggregation="sequence-mean",
    epochs=2,
    minibatches=8,
    optimizer=AdamW(weight_decay=0.01, clip_norm=0.1),
    claim=Claim(
        statement="Using a batch for several steps under a clip learns faster than one step with the same advantages.",
        bed="language/turns",
        baseline="rloo",
        baseline_changes={"problems": 40, "experience.size": 6},
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps", "completions"),
        sweep={"optimizer.lr": [1e-4, 2e-4, 4e-4]},
        paper_effect="9 points over OpenAI o1 on AppWorld's test-normal with a 32B model (71.3 against 61.9)",
    ),
)

"""T-PPO: PPO whose steps do not wait for long completions (arXiv:2506.15050).

Changes PPO in four places:

1. successive batches: each step every completion of the pool grows by at most `cap` tokens. Those that end, or are as
   long as the limit, leave, and new problems take their places; the others go on in the next step, under the policy of
   then (`SuccessiveBatches`);
2. all tokens of a step teach the policy at once, those of unfinished completions by extended GAE (`EGAE`): where a
   completion is interrupted after l tokens, V(s_l) = V(s_{l-1}) is assumed,

       A_t = sum_k (gamma lam)^k delta_{t+k},   delta_t = r_t + gamma V(s_{t+1}) - V(s_t),   up to t = l - 1,

   so that the last delta is (gamma - 1) V(s_{l-1}), 0 at gamma = 1; after a completion that ended V is 0;
3. the critic is a model of its own (`ValueModel`), with a rate of its own, that learns ahead for some steps while the
   policy waits. It learns a completion once, when it ends, all of its tokens, by its return (lam = 1);
4. the policy's loss has tokens of this step alone; older ones, and prompts, are only read. Probabilities under the old
   policy are those of when a token was sampled.

The paper has a window of 8,192 tokens of at most 24,576, 512 prompts with 16 samples each and no KL. It gives no lambda
that others confirm and nothing of the critic's rate: 0.95, its two passes of two minibatches and the five steps ahead
are ours. A critic that is behind calls what ends worse than what goes on, so that completions grow; small models take
ten times the policy's rate (`critic.learning.optimizer.lr`). Its value loss is "weighted by the number of finished
tokens"; here it is a mean over those of a minibatch. A place is taken again as soon as all completions of a problem
have room, so the pool is constant to within `size` - 1; with `experience.size=1` exactly. There is no official code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from etude.advantages.returns import gae, rewards_to_go, standardized
from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode, Problem, StopReason
from etude.core.fields import Count, Probability
from etude.core.learners import Learning
from etude.core.part import Need
from etude.core.rows import last_action
from etude.core.slots import Context, TokenAdvantages
from etude.experience.pieces import Pieces
from etude.learners.value_model import ValueModel
from etude.methods.foundation.ppo import ppo
from etude.optimizers.adam import AdamW

if TYPE_CHECKING:
    from etude.core.method import Method


class SuccessiveBatches(Pieces):
    """A pool of completions that all grow by at most `cap` tokens per step (arXiv:2506.15050, 3.1).

    Its rows are what the policy added in this step; those that go on have no reward yet (`StopReason.PAUSED`). The
    completions of a problem share `episode.group` while they last, and `episode.info["visit"]`.

    Args:
        cap: tokens that a completion may grow by in one step, l; where it divides the limit, all are sampled together.

    Of 32 places for completions, 8 of each problem, those of 3 problems are free once 24 completions have left:

    >>> part = SuccessiveBatches(size=8).bind()
    >>> part.asks(4)
    4
    >>> part.state["open"] = [{}] * 8
    >>> part.asks(4)
    3
    """

    pauses: ClassVar[bool] = True
    cap: Count = 16

    def initial_state(self) -> dict[str, Any]:
        return {"open": [], "visits": 0}

    def asks(self, problems: int) -> int:
        return max(0, problems - -(-len(self.state["open"]) // self.size))

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        self.check_task(context)
        ended, left = self.extend(self.begin(problems, context), context)
        self.keep([item for _, item in left])
        for episode, visit in (*ended, *((e, item[1]) for e, item in left)):
            episode.info["visit"] = visit
        for episode, _ in left:
            episode.stop = StopReason.PAUSED
            episode.segments[-1].reward = 0.0  # the environment was shown a part, which is no answer
        return sorted((e for e, _ in (*ended, *left)), key=lambda e: e.group)


class EGAE(TokenAdvantages):
    """Extended GAE (arXiv:2506.15050, eq. 5): a row that goes on later is assumed to keep its last value.

    Of other rows it is `gae`, with 0 after the last token, or with the value of what follows where an environment's
    limit stopped them. Returns, the critic's targets, are discounted sums of rewards over all that the policy said.

    Shapes: rewards, values [B, T] -> [B, T].

    Args:
        standardize: over the batch.

    The same two tokens, of a completion that goes on and of one that ended without a reward:

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(rewards=torch.zeros(2, 2), values=torch.tensor([[1.0, 2.0], [1.0, 2.0]]), next_values=None)
    >>> rows.action_mask, rows.unfinished = torch.ones(2, 2).bool(), torch.tensor([True, False])
    >>> EGAE(lam=0.5, standardize=False)(rows).tolist()
    [[1.0, 0.0], [0.0, -2.0]]
    """

    of_unfinished: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({Need.VALUES})
    gamma: Probability = 1.0
    lam: Probability = 0.95
    standardize: bool = True

    def objection(self, method: Method) -> str | None:
        if method.slots().get("critic") is None:
            return "is computed from values that no critic learns: add one (--with value-model)."
        return None

    def __call__(self, batch: TokenBatch) -> Tensor:
        assert batch.values is not None
        found = gae(batch.rewards, batch.values, batch.action_mask, self.gamma, self.lam, self._after(batch))
        return standardized(found, batch.action_mask) if self.standardize else found

    def returns(self, batch: TokenBatch) -> Tensor:
        return rewards_to_go(batch.rewards, batch.said, self.gamma)

    def _after(self, batch: TokenBatch) -> Tensor:
        """[B] values of what follows the last tokens."""
        assert batch.values is not None
        ended = torch.zeros_like(batch.values[:, 0]) if batch.next_values is None else batch.next_values
        if batch.unfinished is None:
            return ended
        last = batch.values.gather(1, last_action(batch)[:, None])[:, 0]
        return torch.where(batch.unfinished, last, ended)


t_ppo = ppo.replace(
    id="t-ppo",
    title="Truncated Proximal Policy Optimization",
    paper="arXiv:2506.15050",
    experience=SuccessiveBatches(size=8, cap=16),
    advantages=EGAE(gamma=1.0, lam=0.95),
    critic=ValueModel(learning=Learning(optimizer=AdamW(), epochs=2, minibatches=2), lead=5),
    claim=Claim(
        statement="In windows of 6 tokens T-PPO comes to PPO's accuracy in as many steps, of half as many decoding "
        "iterations, the tokens of a step's longest completion.",
        bed="language/sums-mixed",
        baseline="ppo",
        changes={"experience.cap": 6, "critic.learning.optimizer.lr": 1e-3},
        measures=(
            Measure(name="end", margin=-0.03),
            Measure(name="mean:decoding_iterations", direction="lower", margin=8.0, smallest=1.0, bounds=(1.0, None)),
            Measure(name="mean:unfinished", role="mechanism", minimum=0.2),
        ),
        equal=("steps",),
        sweep={"optimizer.lr": (1e-4, 2e-4)},
        paper_effect="2.5 times PPO's training efficiency at 32 B, about 60 % less wall-clock time.",
    ),
)

"""SPA-RL: what an episode was worth shared out over its turns by a learned additive model (arXiv:2505.20732).

Changes PPO in two places, the rewards and what holds the policy back:

1. an estimator, which begins as the policy, says a number c_t at the end of each turn, of the history up to there, and
   learns that they add up to the return R of episodes that this policy played (`spa-estimator`, below):

       loss = (sum_t c_t - R)^2

2. each turn is paid on its last token, in the place of what the episode was paid (`Redistribute`),

       r_t = alpha c_t + beta g_t,   alpha = 1, beta = 0.5

   with g_t = 1 where the environment could do what was said, else 0; every token pays for its distance from the policy
   at the start (0.02 per nat, as `ppo-rlhf`; its size is in a file that was not released). Values, advantages and the
   clip are PPO's, over tokens that were said; observations are skipped.

Two runs come before, each from the last: `etude train sft` on worked games, and

    etude train spa-estimator --task milestones --model START --set experience.whose.model=START
    etude train spa-rl --task milestones --model START --set rewards.redistribute.model=RUN

If the estimator is exact, alpha = 1 and beta = 0 leave every undiscounted return as it was. The c_t themselves are not
unique: c_t + w_t - w_{t-1} add up to the same. With beta > 0 a turn more is worth beta more, so that a game that goes
on may be worth more than one that is won: episodes need a limit of turns, and gamma = 1 hides nothing of this.

The released code (WangHanLinHenry/SPA-RL-Agent) differs: 1. its script of data overwrites c_t with R less the mean R of
the other episodes of the problem (R itself where there are none), the same for all turns, and g is 1 in the last turn
in any case. That is `--set rewards.redistribute=leave-one-out-turns` here (SPA-LOO), with several episodes of each
problem; 2. c_t is a linear layer on the logits, not on the last state; 3. PPO passes once over the episodes that were
explored, and LoRA is trained, at a rate of 3e-6 in the paper (`--adapter lora --set optimizer.lr=3e-6`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from torch import Tensor

from etude.advantages.group import LeaveOneOut, group_size, of_episodes
from etude.advantages.turns import turn_ends, turns
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode, Problem
from etude.core.fields import Count, Ge, NonNegative
from etude.core.rows import read_behind_turns
from etude.core.slots import Context, TokenExperience, TokenReward
from etude.core.task import Task
from etude.core.worlds import World
from etude.experience.groups import Groups
from etude.methods.foundation.ppo import ppo
from etude.methods.preference.reward_model import reward_model
from etude.objectives.scorers import ScorerObjective
from etude.policies.texts.models import SavedModel
from etude.references.frozen import Frozen
from etude.rewards.kl import KLPenalty
from etude.rewards.outcome import TaskReward
from etude.rewards.redistribute import Redistribute, executed

if TYPE_CHECKING:
    from etude.core.method import Method


class ExploredTurns(TokenExperience):
    """`size` episodes of each problem that a saved model plays, of which the ends of turns are read.

    An episode's only actions are the tokens behind its turns (`read_behind_turns`), so that a scorer's values there
    rest on all up to the end of each turn, and nothing else of it is read.

    Args:
        whose: who plays: the policy that is to be improved, as it is.
        size, temperature: as of `Groups`.

    Raises: ConfigError for a model with other tokens.

    >>> ExploredTurns(whose=SavedModel(model="tiny"), size=2).rows_per_problem
    2
    """

    samples: ClassVar[bool] = False
    reads_turns: ClassVar[bool] = True
    whose: SavedModel = SavedModel()
    size: Count = 4
    temperature: Annotated[float, Ge(0.01)] = 1.0

    @property
    def rows_per_problem(self) -> int:
        return self.size

    def lacks(self, task: Task) -> str | None:
        return task.needs_reward()

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        speaker = replace(context, policy=self.whose.speaker(context.policy), samplers=None)
        played = Groups(size=self.size, temperature=self.temperature).collect(problems, speaker)
        return [read_behind_turns(e, context.policy.tokenizer.pad_token_id) for e in played]


class SummedReturn(ScorerObjective):
    """(sum_t c_t - R)^2: values at the ends of turns add up to what the episode was paid (arXiv:2505.20732).

    Where the return is a sum of what steps are worth and these can be told apart, that is what is learned.

    Shapes: values [B, T], scores [B] -> [B], in squared units of the return.

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(action_mask=torch.tensor([[True, False, True]]), scores=torch.tensor([1.0]))
    >>> SummedReturn()(rows, TokenLogProbs(None, values=torch.tensor([[0.25, 9.0, 0.25]]))).tolist()
    [0.25]
    """

    def objection(self, method: Method) -> str | None:
        if not hasattr(method.slots()["experience"], "reads_turns"):
            return "adds up what is said at the ends of turns, and all tokens are read: set experience=explored-turns."
        return None

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        return (self.said(batch, policy) - batch.scores) ** 2

    def said(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        """[B] what all turns add up to."""
        assert policy.values is not None
        return (policy.values * batch.action_mask).sum(1)

    def metrics(self, batch: TokenBatch, policy: TokenLogProbs) -> dict[str, Tensor]:
        """`predicted`: what the turns add up to; `returned`: what they ought to."""
        return {"predicted": self.said(batch, policy), "returned": batch.scores}


class LeaveOneOutTurns(TokenReward):
    """SPA-LOO: R_i less the mean of the others' R, and beta g_t, at the end of every turn, in the place of R.

    As the released script of data has it: the value is not divided by a deviation, an episode that is alone with its
    problem keeps R, and g is 1 in the last turn whatever was said there.

    Args:
        beta: what a turn is paid that the environment could execute.

    Shapes: [B, T], 0 but on the last token of each turn.

    >>> scores, group = torch.tensor([1.0, 0.0, 0.5]), torch.tensor([0, 0, 1])
    >>> without_own(scores, group).tolist()
    [1.0, -1.0, 0.5]
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    beta: NonNegative = 0.5

    def shape(self, batch: TokenBatch) -> Tensor:
        ends, turn = turn_ends(batch), turns(batch)
        value = of_episodes(without_own, batch, batch.scores)[:, None].expand(batch.rewards.shape)
        last = (turn == turn.amax(1, keepdim=True)) & batch.ends()[:, None]
        done = torch.where(last, 1.0, executed(batch)) if self.beta else torch.zeros_like(batch.rewards)
        found = (value + self.beta * done) * ends - batch.rewards
        return found * batch.finished[:, None]


def without_own(scores: Tensor, group: Tensor) -> Tensor:
    """[B] scores less the mean of the others of their group; as they are where there are none."""
    return torch.where(group_size(group) == 1, scores, LeaveOneOut().centred(scores, group))


spa_rl = ppo.replace(
    id="spa-rl",
    title="SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution",
    paper="arXiv:2505.20732",
    rewards=(TaskReward(), Redistribute(alpha=1.0, beta=0.5), KLPenalty(coefficient=0.02)),
    reference=Frozen(),
    claim=Claim(
        statement="Paid turn by turn what an additive model of the return says, and for what could be done, the policy "
        "wins more games and says less that cannot be done than by PPO paid in the last turn.",
        task="milestones",
        setting="a game is worth the share of milestones reached; tiny-agent; an estimator of 3,200 games by it, four "
        "passes; 40 steps of 32 problems x 4 games of either, 400 test problems x 2",
        measures=(
            Measure(name="success", smallest=0.03),
            Measure(name="executable", smallest=0.02),
            Measure(name="success against the start", role="mechanism", smallest=0.03),
            Measure(name="success against alpha = 0", role="mechanism", smallest=0.03),
            Measure(name="success against beta = 0", role="mechanism", smallest=0.03),
            Measure(name="executable against beta = 0", role="mechanism", smallest=0.02),
            Measure(
                name="rank correlation with milestones", role="mechanism", against=0.5, smallest=0.05,
                bounds=(-1.0, 1.0),
            ),
        ),
        equal=("completions",),
        sweep={"optimizer.lr": (1e-4, 2e-4, 4e-4)},
        learned_on="success",
        paper_effect="2.5 points more success and 1.9 more of executable actions than the best baseline, on WebShop, "
        "ALFWorld and VirtualHome on average (Llama-3.2-3B)",
    ),
)  # fmt: skip

spa_estimator = reward_model.replace(
    id="spa-estimator",
    title=spa_rl.title,
    paper=spa_rl.paper,
    experience=ExploredTurns(size=4),
    objective=SummedReturn(),
    problems=8,
    claim=None,
)

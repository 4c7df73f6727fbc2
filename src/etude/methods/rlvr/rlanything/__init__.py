"""RLAnything: policy, judge of steps and tasks are trained in one loop (arXiv:2602.02488).

Changes GRPO in three places. A completion is a chain of steps k (here: what a separator ends), and

1. reward: a judge phi gives m = 3 verdicts S_ikl in {-1, +1} on every step, and a step earns

       R_ik = O_i + lambda mean_l S_ikl,   O_i = 1 if solved, else `failure`;

   phi earns rho_ikl = R_ik S_ikl for a verdict (-2 for one that cannot be read), standardised over the m verdicts of
   the step, on problems solved between 0.2 and 0.8 of the time, and takes clipped policy gradient steps on it;
2. advantages: R_ik standardised over the completions of a problem that have a k-th step, the same for all its tokens;
   only problems solved between 1/8 and 7/8 of the time, KL (k3) 0.01, four updates per batch;
3. curriculum: a task in a slot that is solved at least 0.8 (at most 0.2) of the time is proposed in a harder (easier)
   variant, which is rolled out the next time and takes the slot if `accepted`; otherwise it is forgotten.

Here phi is a small network on the policy's own hidden states before and after a step, sampled as a Bernoulli policy;
the environment model is the task's generator, which draws a problem of the next difficulty (`problem.level`). A slot
stands for a difficulty and draws a fresh problem on every visit. Summaries of failures have no counterpart. A failure
is worth -1 here, so that it speaks against its steps; the released code (Gen-Verse/Open-AgentRL) has 0 for agents. A
k-th step that only one completion has is compared with none and gets 0; that code leaves it as it is. As there,
completions of proposals that were turned down are not learned from.

`unit_test_rewards` is the coding variant's judge: what a generated unit test earns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from etude.advantages.group import solved_share
from etude.advantages.segments import unmarked
from etude.core.batches import TokenBatch
from etude.core.claims import Claim, Measure
from etude.core.errors import ConfigError
from etude.core.fields import Probability
from etude.core.method import Method
from etude.core.slots import Filter, TokenAdvantages
from etude.methods.rlvr.grpo import grpo
from etude.methods.rlvr.rlanything.adapted_tasks import AdaptedTasks
from etude.methods.rlvr.rlanything.step_judge import StepVerdicts, standardised
from etude.references.frozen import Frozen
from etude.regularizers.kl import KLToReference


class StepAdvantage(TokenAdvantages):
    """What the steps of a completion were paid, standardised at each step number over the problem's completions.

    A_ik = (R_ik - mean_j R_jk) / std_j R_jk over the completions j that have a k-th step, 0 where all are equal; every
    token of the step has it. Steps are those that a part marked, `batch.step`. Shapes: [B, T].

    First steps of two completions were paid 2 and 0, a second step that only one has was paid 1:

    >>> import torch
    >>> standardised(torch.tensor([2.0, 0.0, 1.0]), torch.tensor([0, 0, 1])).tolist()
    [1.0, -1.0, 0.0]
    """

    def objection(self, method: Method) -> str | None:
        return unmarked(method)

    def __call__(self, batch: TokenBatch) -> Tensor:
        step = batch.step
        assert step is not None
        count = int(step.max()) + 1
        place = step.clamp(min=0)
        inside = (step >= 0).to(batch.rewards)
        paid = torch.zeros(len(batch), count, dtype=batch.rewards.dtype, device=step.device)
        paid = paid.scatter_add(1, place, batch.rewards * inside)
        has = torch.zeros_like(paid).scatter_add(1, place, inside) > 0
        _, group = torch.unique(batch.group, return_inverse=True)
        cell = (group[:, None] * count + torch.arange(count, device=step.device))[has]
        credit = torch.zeros_like(paid)
        credit[has] = standardised(paid[has].double(), cell).to(paid)
        return credit.gather(1, place) * inside


class SolvedBand(Filter):
    """Problems of which the solved share is in [low, high], without those that were proposed and turned down.

    Shapes: solved, group [B] -> [B].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(solved=torch.tensor([True, False, True, True]), group=torch.tensor([0, 0, 1, 1]), once=lambda: None)
    >>> rows.scores, rows.episodes = torch.zeros(4), [Rows(info={})] * 4
    >>> SolvedBand().weigh(rows).tolist()
    [1.0, 1.0, 0.0, 0.0]
    """

    low: Probability = 1 / 8
    high: Probability = 7 / 8

    def check(self) -> None:
        if self.low > self.high:
            raise ConfigError(f"SolvedBand.low must be at most high, got {self.low} and {self.high}.")

    def weigh(self, batch: TokenBatch) -> Tensor:
        share = solved_share(batch)
        wanted = torch.tensor([not e.info.get("turned_down") for e in batch.episodes], device=share.device)
        inside = (share >= self.low - 1e-9) & (share <= self.high + 1e-9)
        return (inside & wanted).to(batch.scores.dtype)


def unit_test_rewards(passes: Tensor, right: Tensor) -> Tensor:
    """[N] what generated tests earn: those that all right codes pass, how many wrong ones they fail; others, less how
    many wrong ones they pass; 1 and -1 if no code is wrong.

    Args:
        passes: [N, M] whether code j passes test i. right: [M] whether a code passes the true tests.

    >>> unit_test_rewards(torch.tensor([[1, 0, 0], [0, 1, 0]]).bool(), torch.tensor([1, 0, 0]).bool()).tolist()
    [2.0, -1.0]
    """
    wrong = ~right
    sound = (passes | wrong).all(1)
    gains, costs = ((~passes) & wrong).sum(1), (passes & wrong).sum(1)
    if not bool(wrong.any()):
        gains, costs = torch.ones_like(gains), torch.ones_like(costs)
    return torch.where(sound, gains, -costs).double()


rlanything = grpo.replace(
    id="rlanything",
    title="RLAnything: Forge Environment, Policy, and Reward Model in Completely Dynamic RL System",
    paper="arXiv:2602.02488",
    curriculum=AdaptedTasks(),
    rewards=(StepVerdicts(),),
    filters=(SolvedBand(),),
    advantages=StepAdvantage(),
    regularizers=(KLToReference(coefficient=0.01),),
    reference=Frozen(),
    minibatches=4,
    claim=Claim(
        statement="Judge and adapted tasks together bring more success than the outcome alone, and each adds to it.",
        task="compose",
        setting="chains of two to four functions, four updates of every batch in each arm",
        measures=(
            Measure(name="pass@1"),
            Measure(name="pass@1 of adapted tasks"),
            Measure(name="pass@1 of verdicts"),
            Measure(name="agreement", role="mechanism", smallest=0.02, minimum=0.52),
            Measure(name="share between 0.2 and 0.8", role="mechanism", smallest=0.02),
        ),
        learned_on="pass@1",
        paper_effect="9.1 points on OSWorld, 18.7 on ALFWorld, 11.9 on LiveBench, each part adding.",
    ),
)

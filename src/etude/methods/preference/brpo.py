"""BRPO: bootstrapped relative policy optimization (Writing-Zero, arXiv:2506.00103).

Changes GRPO in three places:

1. of the G = 16 completions of a problem one is drawn, whichever, and the others are compared with it: what they are
   worth is

       A_i = +1 if completion i is preferred to it, else -1;   0 for that one itself

   Only comparisons have a say, so a judge is enough that says which of two is better, and no scale of scores can be
   played up to. A tie is a loss, and a judge who is shown both orders has to be for i in both;
2. A_i is the advantage as it is, neither centred nor divided: with an order without ties the completion of rank k has
   the mean (G + 1 - 2k) / G over the draw, and these add up to 0;
3. a problem is replaced by another before the update where |sum_i A_i| / G > 0.6: the drawn one was an outlier.

Here the comparison is by what the task pays, or a reward model beside it. A judge's takes the place of it with
`--set rewards.against-one-other.oracle=by-judge --set rewards.against-one-other.oracle.judge=model-pair-judge`. With
two completions the gradient is that of one of them alone, with the sign of its comparison.

There is no code of the authors'. Their judge is a language model trained by GRPO to write principles, a critique and
two scores; that is another run (`reward-anything` trains one that ranks lists).
"""

from etude.advantages.group import GroupAdvantage
from etude.core.claims import Claim, Measure
from etude.experience.groups import Groups
from etude.filters.informative import BalancedGroups
from etude.methods.rlvr.grpo import grpo
from etude.rewards.preferences import AgainstOneOther, ByScore

brpo = grpo.replace(
    id="brpo",
    title="Writing-Zero: Bridge the Gap Between Non-verifiable Problems and Verifiable Rewards",
    paper="arXiv:2506.00103",
    experience=Groups(size=16),
    rewards=(*grpo.rewards, AgainstOneOther(oracle=ByScore())),
    filters=(BalancedGroups(most=0.6),),
    advantages=GroupAdvantage(centre=None, scale=None),
    claim=Claim(
        statement="Where a reward model of few pairs is over-optimised, comparing each completion with one other by it "
        "ends with a higher true reward than GRPO on its scores, with as many completions.",
        bed="preference/digest-weak",
        baseline="grpo",
        changes={
            "experience.size": 16,
            "problems": 8,
            "optimizer.lr": 1e-3,
            "rewards": ("reward-model", "against-one-other"),
            "rewards.reward-model.model": "{proxy}",
        },
        baseline_changes={
            "experience.size": 16,
            "problems": 8,
            "optimizer.lr": 1e-3,
            "rewards": ("reward-model",),
            "rewards.reward-model.model": "{proxy}",
        },
        measures=(
            Measure(name="end"),
            Measure(name="area", role="mechanism"),
            Measure(name="last:reward/reward-model", role="mechanism", smallest=0.1, bounds=(None, None)),
        ),
        learned_on="last:reward/reward-model",
        sweep={"optimizer.lr": (3e-4, 1e-3, 3e-3)},
        equal=("steps",),
        paper_effect="WritingBench 6.89 -> 8.29; in house 1.01 above GRPO on scalar rewards, with 58 tokens of "
        "redundant explanation against 417",
    ),
)

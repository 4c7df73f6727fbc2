"""CGPO: constrained generative policy optimization with a mixture of judges (The Perfect Blend, arXiv:2409.20370).

A reward model can be played up to where a rule or a second model would see it. With K answers y_1..y_K to a prompt, a
baseline answer y_b (the worked one) and r what a reward model says, this changes REINFORCE in five places:

1. scores are calibrated, R(y) = sigmoid(r(y) - r(y_b)): the chance that y is better than y_b, on one scale for all
   prompts and reward models; what is paid for a prompt as such cancels;
2. judges of the prompt's task (rules, or models asked for yes or no) have to accept an answer all of them, v = 1, or it
   is a violation, v = 0. There are no multipliers: constraints act on what is learned from, with nothing dual to learn;
3. an answer may be kl_max nats, log pi/ref of the whole of it, from the policy at the start;
4. several tasks have judges and kl_max of their own, by `Problem.level`, in
   `rewards.constrained-returns.tasks`, and weights (`--with task-weights`);
5. K = 4, and a step is taken by one of three optimizers:

       cgpo         R~ = v R max(0, 1 - log(pi/ref) / kl_max), ascend (R~ - mean R~) grad log pi(y)             (CRPG)
       cgpo-pairs   chosen: the accepted answer with the highest r; rejected: the refused one with the lowest r,
                    or, where all are accepted, the accepted one with the lowest; none accepted: nothing.
                    loss = -log sigmoid(beta [log pi/ref (y_w) - log pi/ref (y_l)]) - lambda/|y_w| log pi(y_w)  (CODPO)
       cgpo-best    y* = the best R of those that are accepted with log pi/ref <= kl_max; none: y_b, whose R is 1/2, if
                    it is accepted and as near; neither: nothing.  loss = -R(y*) log pi(y*)                    (CRRAFT)

The mean of R~ is over the step's answers, of all tasks, and likelihoods are of whole answers. Constraints are those of
the policy that sampled, with one step on each batch. The paper prints the distance as a ratio of logarithms; the
log-ratio is what its text describes. kl_max, beta and lambda are ours. A public trainer with this method's name takes
the best by argmax over scores that are 0 where refused, which prefers a refused answer as soon as scores are negative,
and divides by tokens.

In one run all tasks share the optimizer, K and the reward model; `interleaved` with `turn.id=cgpo-pairs` takes some of
the steps by another one. The paper warms up by some DPO steps on pairs of all tasks:
`--with interleaved --set stages.interleaved.turn.id=dpo --set stages.interleaved.chooser=after-steps`.
"""

from etude.advantages.group import BatchMean, GroupAdvantage
from etude.core.claims import Claim, Measure
from etude.experience.mixed import GroupsAndDemonstrations
from etude.filters.sampled import SampledAnswers
from etude.methods.foundation.reinforce import reinforce
from etude.methods.preference.cgpo.constraints import (
    ConstrainedBest,
    ConstrainedOrder,
    ConstrainedReturns,
    ScoresAsAdvantages,
    WholeAnswerGradient,
)
from etude.objectives.links import Logistic
from etude.objectives.pairs import PairLoss
from etude.references.frozen import Frozen
from etude.rewards.control import BaselineCalibratedScores
from etude.rewards.model import RewardModel

JUDGED = {"panel": "no-repeats", "panel.no-repeats.size": 1, "panel.no-repeats.unit": "character"}
"""Whom both arms of the claim ask, who is a constraint in one of them."""

cgpo = reinforce.replace(
    id="cgpo",
    title="The Perfect Blend: Redefining RLHF with Mixture of Judges",
    paper="arXiv:2409.20370",
    experience=GroupsAndDemonstrations(size=4),
    rewards=(RewardModel(), BaselineCalibratedScores(), ConstrainedReturns()),
    filters=(SampledAnswers(),),
    advantages=GroupAdvantage(centre=BatchMean(), scale=None),
    objective=WholeAnswerGradient(),
    reference=Frozen(),
    claim=Claim(
        statement="Where a weak reward model pays for what is said again, PPO says more answers over its steps that a "
        "judge of repeats refuses than CGPO, to which that judge is a constraint.",
        bed="preference/digest-weak",
        baseline="ppo-rlhf",
        changes={
            "rewards.reward-model.model": "{proxy}", "optimizer.lr": 1e-3, "experience.size": 4, "problems": 32,
            **{f"rewards.constrained-returns.tasks.0.{path}": value for path, value in JUDGED.items()},
        },
        baseline_changes={
            "rewards": ("reward-model", "kl-penalty", "judge-reward"), "rewards.0.model": "{proxy}",
            "rewards.0.weight": 0.2, "rewards.1.coefficient": 0.0, "rewards.judge-reward.weight": 0.0,
            "rewards.judge-reward.sees": "whole-completion", "experience.size": 4, "problems": 32,
            **{f"rewards.judge-reward.{path}": value for path, value in JUDGED.items()},
        },
        measures=(
            Measure(name="mean:judge/no-repeats/accepted", smallest=2.5, bounds=(0.0, 128.0)),
            Measure(name="last:judge/no-repeats/accepted", role="mechanism", smallest=5.0, bounds=(0.0, 128.0)),
            Measure(name="last:reward/reward-model", role="mechanism", smallest=0.1, bounds=(None, None)),
            Measure(name="end", role="mechanism", smallest=0.5),
        ),
        learned_on="last:reward/reward-model",
        sweep={"optimizer.lr": (3e-4, 1e-3, 3e-3)},
        equal=("steps",),
        paper_effect="7.4 % more on AlpacaEval 2 and 12.5 % more on Arena-Hard than PPO, 2 % on IFEval and on MATH and "
        "GSM8K, 5 % on HumanEval, where PPO falls back",
    ),
)  # fmt: skip

cgpo_pairs = cgpo.replace(
    id="cgpo-pairs",
    title=cgpo.title,
    paper=cgpo.paper,
    rewards=(RewardModel(), ConstrainedOrder()),
    advantages=None,
    objective=PairLoss(link=Logistic(beta=0.1), nll=1.0),
)

cgpo_best = cgpo.replace(
    id="cgpo-best",
    title=cgpo.title,
    paper=cgpo.paper,
    rewards=(RewardModel(), BaselineCalibratedScores(), ConstrainedBest()),
    filters=(),
    advantages=ScoresAsAdvantages(),
)

"""A-LoL: advantage leftover lunch RL (arXiv:2305.14718).

Learns from answers that others wrote and scored, and takes a whole answer for one action. Changes SFT in four places:

1. V(x) is what the policy at the start (ref) is worth on a prompt: one completion of each of 400 prompts is scored,
   and a head on ref's frozen last states of the prompt (attention by a learned query, linear, a sigmoid between the
   least and the largest reward) is fitted to that (`Appraise`);
2. A(x, y) = R(x, y) - V(x); answers with A <= 0 are deleted, the others are drawn with a probability in proportion to A
   (`--set curriculum.by=random`: all alike). Of the steps that all answers would take, the share kept is enough;
3. what is ascended, w without gradient, is

       clip(w, 1 - epsilon, 1 + epsilon) A grad log pi(y | x),   w = pi(y | x) / ref(y | x),   epsilon = 0.9    (eq. 5)

   With answers of ref and without filter and clip that is grad E_{y ~ pi}[A];
4. the reference is frozen.

The other variants are fields of the method that the second run trains, `a-lol-offline`:

| variant | set |
|---|---|
| A-LoL ref-free | `objective.factor=none` |
| A-LoL sequence: w of each token | `objective.factor=token-ratio` |
| A-LoL KL: A grad log pi - beta grad log(pi/ref) | `objective.factor=none regularizers=kl-to-reference`, by k1 |
| R-LoL | `curriculum=uniform advantages.baseline=false` |
| weighted behaviour cloning | the same with `objective.factor=none` |
| GOLD on rewards | the same with `objective.factor=own-likelihood` |

As in the authors' code advantages are also clamped at 0 where they are used (`advantages.clamp`). There the head's
largest value is the largest reward and its least is 0; here the least is below 0 where a reward was. At pi = ref
the first three have the same gradient. With R constant and V = 0 the variant without a reference is SFT. Another
round of the recipe (`--set repeat=2`) begins from the policy that the round before has trained: ref, V and A are its.
"""

from etude.core.claims import Claim, Measure
from etude.core.recipe import Recipe
from etude.methods.foundation.sft import sft
from etude.methods.preference.a_lol.parts import (
    AnswerRatio,
    LeftoverLikelihood,
    OneScoredAnswer,
    OverPromptValue,
    OwnLikelihood,
    PriorityDraws,
    TokenRatio,
    leftovers,
)
from etude.methods.preference.a_lol.value import Appraise, PromptValue, fit, states_of
from etude.references.frozen import Frozen
from etude.rewards.outcome import TaskReward
from etude.stages.chain import Train

a_lol = Recipe(
    id="a-lol",
    title="Improving Language Models with Advantage-based Offline Policy Gradients",
    paper="arXiv:2305.14718",
    runs=(
        Appraise(called="appraised", problems=4000, validation=400),
        Train(called="policy", method="a-lol-offline", steps=150, task="{appraised}"),
    ),
    claim=Claim(
        statement="On the same scored answers, half of them spoilt, learning from those that are better than expected, "
        "by how much, reaches a higher reward than weighing all of them by their reward.",
        task="digest",
        setting="half of the answers spoilt; 2,600 prompts with four answers each, 400 for values; two layers of width "
        "64 after 400 supervised steps, then 100 steps of 64 answers",
        measures=(
            Measure(name="reward", smallest=0.2, bounds=(-6.75, 17.3)),
            Measure(name="distinct words", role="mechanism", smallest=0.02),
            Measure(name="kept", role="mechanism", direction="lower", against=0.9, smallest=0.02),
        ),
        equal=("rows",),
        sweep={"optimizer.lr": (3e-4, 1e-3, 3e-3)},
        learned_on="reward",
        paper_effect="Helpful-Harmless: rated safer and more helpful than PPO, DPO, PRO and GOLD, with the most "
        "diverse answers; learns from downvoted Reddit comments alone",
    ),
)

a_lol_offline = sft.replace(
    id="a-lol-offline",
    title="Improving Language Models with Advantage-based Offline Policy Gradients, on appraised answers",
    paper="arXiv:2305.14718",
    curriculum=PriorityDraws(),
    experience=OneScoredAnswer(),
    rewards=(TaskReward(),),
    advantages=OverPromptValue(),
    objective=LeftoverLikelihood(factor=AnswerRatio(epsilon=0.9)),
    reference=Frozen(),
)

__all__ = [
    "AnswerRatio",
    "Appraise",
    "LeftoverLikelihood",
    "OneScoredAnswer",
    "OverPromptValue",
    "OwnLikelihood",
    "PriorityDraws",
    "PromptValue",
    "TokenRatio",
    "a_lol",
    "a_lol_offline",
    "fit",
    "leftovers",
    "states_of",
]

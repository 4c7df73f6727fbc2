"""Text2Grad: critiques in words as rewards of the tokens that they speak of (arXiv:2505.22338).

Changes PPO-RLHF in four places:

1. there is no score of a whole response. A model that was taught to write critiques (what is wrong and what is good,
   then each word with +1, -1 or 0) is asked, and each token is paid what it says of the token's word,

       r_t = delta_t - beta KL_t,   delta_t in {-1, 0, 1}

   `matching.py` has how words find their tokens. A critique that does not parse leaves the KL alone;
2. KL_t is KL(pi || ref) at token t over the whole vocabulary, and beta follows it: 0.2 at first, the target 6 nats of a
   response;
3. four passes over each batch;
4. the value loss counts 0.1.

So a poor word lowers the probability of its own tokens, and GAE spreads no blame further than the critic predicts. The
critic is trained before, here by `etude train sft --task digest --set task.asks=critiques`; what it was shown is not
free, so a comparison with a scalar reward says both budgets. The released run on summaries also multiplies a score by a
factor that falls with its token's place from the 48th on (`rewards.word-rewards.shrink=1`). Early stopping by KL is off
in both.
"""

from etude.core.claims import Claim, Measure
from etude.learners.token import TokenCritic
from etude.methods.preference.ppo_rlhf import ppo_rlhf
from etude.methods.preference.text2grad.parts import AdaptiveFullKLPenalty, WordRewards

text2grad = ppo_rlhf.replace(
    id="text2grad",
    title="Text2Grad: Reinforcement Learning from Natural Language Feedback",
    paper="arXiv:2505.22338",
    rewards=(WordRewards(), AdaptiveFullKLPenalty(coefficient=0.2, target=6.0)),
    critic=TokenCritic(coefficient=0.1, clip=0.2),
    epochs=4,
    claim=Claim(
        statement="Critiques of words raise the gold score in fewer completions than a reward model of whole answers.",
        bed="preference/digest-words",
        baseline="ppo-rlhf",
        changes={
            "rewards.word-rewards.critic.model": "{critic}", "optimizer.lr": 1e-3, "problems": 64, "experience.size": 2,
        },
        baseline_changes={"rewards.kl-penalty.coefficient": 0.1},  # without it its gold score falls
        measures=(
            Measure(name="area", smallest=0.2),
            Measure(name="end", role="mechanism", smallest=0.2),
            Measure(name="mean:reward/word-rewards", role="mechanism", minimum=0.1, bounds=(None, None)),
        ),
        equal=("completions",),
        sweep={"optimizer.lr": (5e-4, 1e-3, 2e-3)},
        paper_effect="above PPO and prompt-only reflection on SLF5K, KodCode and UltraFeedback",
    ),
)  # fmt: skip

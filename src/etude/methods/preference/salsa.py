"""SALSA: an average of fine-tuned models as the anchor of RLHF (arXiv:2411.01798).

Changes PPO-RLHF in one place: what the policy is held near is not where it started, but the average of the weights of
two models that were fine-tuned from one checkpoint, on the same data in another order or with another seed,

    r(x, y) - beta sum_t [log pi(y_t | .) - log pi_soup(y_t | .)],   theta_soup = alpha theta_1 + (1 - alpha) theta_2

with alpha = 1/2; of three models each counts a third. The policy begins as theta_1, the model of the run:

    etude train sft --task digest --seed 1                                                       (theta_2)
    etude train salsa --model RUN_OF_SEED_0 --set reference.models=RUN_OF_SEED_1

It begins away from the anchor, so that KL is above 0 from the first step on (the estimate in reward is not: its mean
falls when the policy only moves to the soup), and beta is to be tuned again: a large one is answered by moving there
without any better answers. `etude evaluate` on the soup, saved by `evaluation.long_to_short.average_weights`, says what
it is worth itself. With theta_2 = theta_1, or alpha = 1, this is PPO-RLHF to the last bit. There is no public code.
"""

from etude.core.claims import Claim, Measure
from etude.methods.preference.ppo_rlhf import ppo_rlhf
from etude.references.soup import Soup

salsa = ppo_rlhf.replace(
    id="salsa",
    title="SALSA: Soup-based Alignment Learning for Stronger Adaptation in RLHF",
    paper="arXiv:2411.01798",
    reference=Soup(),
    claim=Claim(
        statement="Each at its best beta, held near an average of two starts the policy ends at a higher gold score "
        "than held near its own start.",
        bed="preference/digest-soup",
        baseline="ppo-rlhf",
        changes={
            "rewards.reward-model.model": "{proxy}", "reference.models": "{second}", "optimizer.lr": 1e-3,
            "problems": 64, "experience.size": 2,
        },
        measures=(
            Measure(name="end", smallest=0.3),
            Measure(name="last:reward/reward-model", role="mechanism", smallest=0.1, bounds=(None, None)),
            Measure(name="last:reference_kl", role="mechanism", smallest=0.05, bounds=(0.0, None)),
        ),
        equal=("completions",),
        sweep={"rewards.kl-penalty.coefficient": (0.01, 0.03, 0.1)},
        paper_effect="wins more than half of the comparisons with PPO on MT-Bench, Arena-Hard and UltraFeedback",
    ),
)  # fmt: skip

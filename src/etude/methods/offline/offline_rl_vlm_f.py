"""Offline RL-VLM-F: rewards for logs without any, from pairs of states that a judge compared (arXiv:2411.05273).

Changes IQL in one place: before it learns, rewards are made for every row,

    P(o_1 shows more progress than o_0) = sigmoid(r(o_1) - r(o_0))

by three models r that learn the answers to 500 pairs of observations; the reward of a row is the mean of what they say
of its observation, with mean 0 and deviation 1 over the logs. Everything after that is IQL.

The judge is a vision language model there, which first describes two pictures and then says which is nearer to a goal,
or that it cannot tell. Here it is a script that knows what each row was paid (`scripted-preferences`): it errs as often
as `wrong` says, and is not asked about pairs within `band`. There are no pictures; models read what the policy sees. No
code of the paper was found: sizes and rates of the models are those of RL-VLM-F (arXiv:2402.03681), whose models learn
from pairs of pictures too.
"""

from etude.core.claims import Claim, Measure
from etude.experience.preferences import RewardsFromPreferences, ScriptedPreferences
from etude.methods.offline.bc import TENTH
from etude.methods.offline.iql import iql

offline_rl_vlm_f = iql.replace(
    id="offline-rl-vlm-f",
    title="Real-World Offline Reinforcement Learning from Vision Language Model Feedback",
    paper="arXiv:2411.05273",
    transforms=(
        ScriptedPreferences(pairs=500, length=1),
        RewardsFromPreferences(actions=False, ensemble=3, hidden=(256, 256, 256), lr=3e-4),
    ),
    claim=Claim(
        statement=(
            "With rewards learned from which of two states is better, a tenth of the answers wrong, IQL earns more "
            "than cloning, and about what it earns with the true rewards."
        ),
        task="pendulum",
        setting=(
            "50 logged episodes of a controller by hand, a third each with torques off by 0.3, 2 and 8 on average; 500 "
            "pairs of states, compared by what was paid there with a tenth of the answers wrong; networks of 64-64, "
            "of three models of rewards too, 5,000 updates, 20 episodes of likeliest actions; beta 0.1 for the true "
            "rewards, which are larger"
        ),
        measures=(
            Measure(name="return", smallest=TENTH, bounds=(-2000.0, 0.0)),
            Measure(name="return beside true rewards", smallest=TENTH, margin=-TENTH, bounds=(-2000.0, 0.0)),
        ),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="return",
        paper_effect="more than cloning and inverse methods in simulation and in dressing people (figures 3 and 5)",
    ),
)

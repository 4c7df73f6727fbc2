"""TD3+BC: TD3 on logs, with behaviour cloning beside the critic (arXiv:2106.06860).

Changes TD3 in three places:

1. it learns from logs, and nothing is explored;
2. observations have mean 0 and deviation 1 over them;
3. the policy is also drawn to the actions that were done, and values count in units of their own size,

    loss = -lambda Q_1(s, mu(s)) + mean_k (mu(s)_k - a_k)^2,    lambda = 2.5 / mean |Q_1(s, mu(s))|

with actions in units. Everything else, two critics, delay and smoothing, is TD3's.
"""

from etude.core.claims import Claim, Measure
from etude.experience.logged import Logged
from etude.experience.transforms import StandardizeObservations
from etude.methods.offline.bc import TENTH
from etude.methods.value.td3 import td3
from etude.objectives.actor import MaximizeQ
from etude.objectives.clone import Clone, MeanAbs
from etude.objectives.reductions import First

td3_bc = td3.replace(
    id="td3-bc",
    title="A Minimalist Approach to Offline Reinforcement Learning",
    paper="arXiv:2106.06860",
    experience=Logged(),
    transforms=(StandardizeObservations(),),
    exploration=None,
    actor=(MaximizeQ(over=First(), scale=MeanAbs(alpha=2.5)), Clone()),
    claim=Claim(
        statement="On logs of good and bad episodes TD3+BC earns more than cloning them.",
        task="pendulum",
        setting=(
            "50 logged episodes of a controller by hand, a third each with torques off by 0.3, 2 and 8 on average; "
            "networks of 64-64, 5,000 updates, 20 episodes of likeliest actions"
        ),
        measures=(Measure(name="return", smallest=TENTH, bounds=(-2000.0, 0.0)),),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="return",
        paper_effect="more than cloning in most of D4RL's locomotion tasks (table 1)",
    ),
)

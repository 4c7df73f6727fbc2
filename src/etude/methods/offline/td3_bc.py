"""TD3+BC: TD3 on logs, with behaviour cloning beside the critic (arXiv:2106.06860).

Changes TD3 in three places:

1. it learns from logs, and nothing is explored;
2. observations have mean 0 and deviation 1 over them;
3. the policy is also drawn to the actions that were done, and values count in units of their own size,

    loss = -lambda Q_1(s, mu(s)) + mean_k (mu(s)_k - a_k)^2,    lambda = 2.5 / mean |Q_1(s, mu(s))|

with actions in units. Everything else, two critics, delay and smoothing, is TD3's.
"""

from etude.experience.logged import Logged
from etude.experience.transforms import StandardizeObservations
from etude.methods.offline.bc import over_cloning
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
    claim=over_cloning(
        statement="On logs of good and bad episodes TD3+BC earns more than cloning them.",
        paper_effect="more than cloning in most of D4RL's locomotion tasks (table 1)",
    ),
)

"""Trajectory weighting: rows of better episodes are drawn more often, whatever learns from them (arXiv:2306.13085).

Changes IQL in one place: a row of episode i is drawn with a chance in proportion to

    w_i = exp(A_i / 0.1),    A_i = G_i - V(s_i0) moved and scaled to [0, 1]

for returns G_i and a linear V of the first observation (AW); with `sampling.by=episode-return` A_i is G_i (RW). Where
few of many episodes are good, a method that stays near to the logs stays near to the bad ones. Now it stays near to
what earns sum_i w_i G_i / sum_i w_i, and no loss has changed: the same sampling fits any method that learns from logs,

    etude train td3-bc --set sampling=trajectory-weighted

`etude data info` says what there is to gain: the positive-sided variance of returns, and as how many episodes those of
a data set count under these weights. Where all episodes are alike nothing changes.

Scores go from 0 to 1 as in its authors' code of IQL, for RW and AW; the code for d3rlpy leaves them in units of
rewards. Weights are each row's there too, so that long episodes are not drawn less.
"""

from etude.core.claims import Claim, Measure
from etude.experience.sampling import OneStep
from etude.experience.weighted import EpisodeAdvantage, TrajectoryWeighted
from etude.methods.offline.bc import TENTH
from etude.methods.offline.iql import iql

traj_weighting = iql.replace(
    id="traj-weighting",
    title="Harnessing Mixed Offline Reinforcement Learning Datasets via Trajectory Weighting",
    paper="arXiv:2306.13085",
    sampling=TrajectoryWeighted(batch=256, horizon=OneStep(gamma=0.99), by=EpisodeAdvantage(), temperature=0.1),
    claim=Claim(
        statement="On logs with 2 good episodes of 50, IQL earns more where rows of good ones are drawn more often.",
        task="pendulum",
        setting=(
            "50 logged episodes of a controller by hand, 48 of them with torques off by 8 on average and 2 by 0.3; "
            "networks of 64-64, 5,000 updates, 20 episodes of likeliest actions; beta 0.1 for rewards of some ten "
            "times the size"
        ),
        measures=(Measure(name="return", smallest=TENTH, bounds=(-2000.0, 0.0)),),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="return",
        paper_effect="IQL, CQL and TD3+BC earn more where 1 to 10% of episodes are good (figures 3 and 4)",
    ),
)

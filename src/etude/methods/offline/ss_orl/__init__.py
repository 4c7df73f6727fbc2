"""SS-ORL: learn from episodes whose actions nobody recorded, labelled by an inverse model (arXiv:2210.06518).

Changes TD3+BC in one place: where rows have no actions, they are said by a model of what was done between states, which
learned from the rows that have some (section 4),

    p(a_t | s_t-1, s_t, s_t+1) = N(mu, sigma^2),    loss = -mean log p(a_t | ...),    a_hat = clip(mu)

and everything after that is TD3+BC. Rows that have actions keep them: with all of them there, every number of a run is
TD3+BC's. `--set transforms=label-actions` puts it under any method that learns from logs.

What rests on it is asked by hiding actions (`hide-actions`): a tenth of all episodes keep theirs, of those that earned
least, so that the model never saw what good episodes do. `known-actions` leaves the others out, which is the floor.

Sizes are those of the authors' code: two layers of 1024 with dropout, a hundred steps of Adam, of which the weights
stay that were best on a tenth of the labelled episodes, looked at every ten steps. As there states are standardised,
and what was before an episode is zeros before that. There the last state of an episode is left out of its last row, and
the variance is about the mean that was cut; here neither. Actions are in units. A run says how unsure the model is, and
not how far it is off on episodes whose returns are within, or beyond, those of the labelled ones, as the paper does.
"""

from etude.core.claims import Claim, Measure
from etude.experience.transforms import StandardizeObservations
from etude.methods.offline.bc import TENTH
from etude.methods.offline.ss_orl.labels import LabelActions
from etude.methods.offline.td3_bc import td3_bc

ss_orl = td3_bc.replace(
    id="ss-orl",
    title="Semi-Supervised Offline Reinforcement Learning with Action-Free Trajectories",
    paper="arXiv:2210.06518",
    transforms=(LabelActions(), StandardizeObservations()),
    claim=Claim(
        statement=(
            "With the actions of 5 bad episodes of 50, SS-ORL earns more than TD3+BC on those 5, and about what it "
            "earns with all actions."
        ),
        task="pendulum",
        setting=(
            "50 logged episodes of a controller by hand, a third each with torques off by 0.3, 2 and 8 on average, "
            "actions hidden but of 5 of the lower half; an inverse model of 128-128, 500 steps at 1e-3; networks of "
            "64-64, 5,000 updates, 20 episodes of likeliest actions"
        ),
        measures=(
            Measure(name="return", smallest=TENTH, bounds=(-2000.0, 0.0)),
            Measure(name="return beside all actions", smallest=TENTH, margin=-TENTH, bounds=(-2000.0, 0.0)),
        ),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="return",
        paper_effect="as much as with all actions in most of D4RL's locomotion, with a tenth of them (figure 3)",
    ),
)

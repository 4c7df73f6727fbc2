"""MapDQN: each channel of the reward is learned through a map of its value (arXiv:2203.07171).

Changes DQN in four places:

1. the reward is divided into channels, r = sum_j lambda_j r_j: here what is won and what is lost apart;
2. the critic says f_j(Q_j) of each, f_j increasing and undone exactly, here logarithmic below 1 and linear beyond
   ("LogLinDQN"); what is best is best by Q = sum_j lambda_j f_j^-1(...), one choice for all channels;
3. samples are averaged where values are ordinary, by beta_reg, and the rest of the step is taken where they are mapped:

       U_j = r_j + gamma (1 - terminated) Q_j'(s', a*),   y_j = f_j(Q_j + beta_reg (U_j - Q_j)),
       loss = sum_j huber(f_j(Q_j) - y_j);

4. gamma is 0.96, which a logarithm makes easier: values far from a reward are small, and their gaps smaller still.

The learning rate plays beta_f, and both Q in y are kept within 0 and 1 / (1 - gamma). Sizes, rhythm and optimizer are
`dqn`'s, for the cart-pole, where the authors have centred RMSProp on Atari (0.0025, a copy every 8,000 steps). They
compute the last layers in float64, and give each a hidden layer of 512; here it is float32, and one layer for all.

`critic.head.maps=log-map` is LogDQN (arXiv:1906.00572); `critic.head.decomposition.of=bands` and `of=slices` are the
paper's configurations 1 and 2 for rewards above 1; `decomposition=ensemble critic.head.maps=log-map,log-lin-map` learns
every channel through both. On tables and tiles it is `experiments/value/map_dqn.py`.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.experience.sampling import OneStep, UniformRows
from etude.learners.backups import Argmax
from etude.learners.heads import Huber
from etude.learners.q import QFunctions
from etude.methods.value.dqn import dqn
from etude.methods.value.map_dqn.channels import AveragedBootstrap, Channels
from etude.methods.value.map_dqn.decompositions import Polar
from etude.methods.value.map_dqn.maps import LogLinMap
from etude.optimizers.adam import Adam

map_dqn = dqn.replace(
    id="map-dqn",
    title="Orchestrated Value Mapping for Reinforcement Learning",
    paper="arXiv:2203.07171",
    sampling=UniformRows(batch=64, horizon=OneStep(gamma=0.96)),
    critic=QFunctions(
        head=Channels(decomposition=Polar(), maps=(LogLinMap(),), most=25.0),
        backup=AveragedBootstrap(Argmax(), share=0.1),
        error=Huber(),
        learning=Learning(Adam(lr=2.3e-3, clip_norm=10.0), target=Target(every=128)),
    ),
    claim=Claim(
        statement="Of tiles that generalise, values learned through a logarithm keep the best action in more states.",
        task="tile-chain",
        setting="a chain of 40 to 60 states for each seed, with four layers of tiles 3 to 8 wide, gamma 0.75; linear "
        "Q-learning, 500 sweeps over all states and actions with a step of 0.5, one channel",
        measures=(
            Measure(name="right actions", smallest=0.02),
            Measure(name="right actions, linear beyond 1", smallest=0.02),
            Measure(name="right actions at 0.96", role="mechanism", smallest=0.02),
            Measure(name="error", role="mechanism", direction="lower", smallest=0.02, bounds=(0.0, None)),
        ),
        equal=("sweeps",),
        sweep={},
        learned_on="right actions",
        paper_effect="a higher mean human-normalised score over the Atari games than DQN and LogDQN (figure 3)",
    ),
)

"""Rainbow: six changes of DQN at once (arXiv:1710.02298).

Changes C51 in five places, each a method of its own:

1. the network chooses what its copy values (`double-dqn`);
2. the value of the state and what each choice adds are said apart, atom by atom (`dueling-dqn`);
3. noise in the weights explores, in place of epsilon (`noisy-dqn`);
4. rewards of three steps are summed before a value follows;
5. rows are drawn by their last error, KL(target || Q) to the power 0.5, with weights that undo a part of that, and
   from 0.4 to all of it over 20,000 steps (PER, arXiv:1511.05952).

Exponents, steps and sigma are the paper's (its table 1). Sizes and rates are those of `c51` here, for the cart-pole:
two layers of 256 without convolutions, batches of 64, a rate of 2.3e-3, a copy after every 128 updates and returns from
0 to 100, where the paper has 32, 6.25e-5, 32,000 frames, and -10 to 10. Dueling shares its last layer, as in
`dueling-dqn`.

Each part is taken out by fields: `critic.backup.rule.double=false`; `critic.head=atoms critic.head.low=0
critic.head.high=100`; `critic.noise=none exploration=epsilon-greedy`; `sampling.horizon.n=1`; `sampling.alpha=0
sampling.beta=0 sampling.over=0`. `sampling=uniform-rows sampling.batch=64` takes the last two.
"""

from etude.core.claims import Claim, Measure
from etude.experience.exploration import Greedy
from etude.experience.prioritized import PrioritizedRows
from etude.experience.sampling import NStep
from etude.learners.backups import Argmax, Bootstrap
from etude.learners.heads import Atoms, Dueling
from etude.methods.value.c51 import c51
from etude.policies.control.noise import FactorisedNoise

assert c51.critic is not None
rainbow = c51.replace(
    id="rainbow",
    title="Rainbow: Combining Improvements in Deep Reinforcement Learning",
    paper="arXiv:1710.02298",
    exploration=Greedy(),
    sampling=PrioritizedRows(batch=64, horizon=NStep(gamma=0.99, n=3), alpha=0.5, beta=0.4, over=20_000),
    critic=c51.critic.replace(
        head=Dueling(Atoms(count=51, low=0.0, high=100.0)),
        backup=Bootstrap(Argmax(double=True)),
        noise=FactorisedNoise(sigma=0.5),
    ),
    claim=Claim(
        statement="Five more changes together earn more than learning the chances of returns alone.",
        bed="control/cartpole-hard",
        baseline="c51",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        sweep={"rate": (0.1, 0.3, 1.0)},
        paper_effect="median human-normalised score 164 to 223 % on 57 Atari games (table 2)",
    ),
)

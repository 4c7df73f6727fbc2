"""TQ and SACo: how good the episodes of logs are, how much they cover, and who can learn from them (arXiv:2111.04714).

An analysis. Two numbers say what a data set D is like,

    TQ(D) = (g(D) - g(D_min)) / (g(D_max) - g(D_min)),    g the mean return of its episodes
    SACo(D) = u(D) / u(D_ref),                            u the number of unique pairs of state and action

with D_min of chance, D_max of the best policy that was found online, D_ref the replay of that run; continuous states
are cut into a hundred parts of every dimension of D_ref. `etude data info DIR` prints them, for logs of one's own too.
Methods are told apart by where in the plane of both they get far: values need coverage, cloning needs quality, and what
is held near to the data either. A slice of the study is one seed's five kinds of data, made anew, and what each method
earns from them (`experiments/offline/tq_saco.py`); its claim asks about three methods, and the others fit in as well.

This method is the study's DQN on common ground, which the others take by `replace`, as its claim does. It changes DQN
in four places:

1. it learns from logs, and nothing is explored;
2. gamma is 0.95, and a batch has 128 rows;
3. three layers of 256, as in the authors' code (there with SELU, here with rectifiers);
4. Adam's rate is 1e-4, no gradient is cut, and the copy moves every 100 updates.

Of the study's others `bc-discrete`, `cql-discrete`, `discrete-bcq`, `qr-dqn` (with `--set experience=logged
exploration=none`) and, for numbers, `crr` stand elsewhere. Three are here, each DQN on logs with one thing changed:

- `rem` (arXiv:1907.04543): the network says 200 values Q_k of every choice, and in every update a mixture of them is
  drawn anew, which learns from the slow copy's same mixture,

    alpha_k = u_k / sum_j u_j,    u_k uniform in [0, 1]
    loss = huber(sum_k alpha_k Q_k(s, a) - r - gamma (1 - terminated) max_a' sum_k alpha_k Q'_k(s', a'))

  It acts by argmax_a sum_k Q_k(s, a). In the authors' code of the study each forward pass draws a mixture of its own,
  and the network chooses where its copy values; here it is the paper's.
- `bve` (arXiv:2103.09575): the target goes on with a' that was done next in the logs, so that Q is that of who made
  them, y = r + gamma (1 - terminated) Q'(s', a'), and argmax_a Q is one step of improvement on it. That paper's term
  which ranks values by how good their episode was (R-BVE) is not here, as it is not in the study; the study's code has
  no slow copy, and here there is DQN's.
- `mce`: the target is what the row's episode went on to earn, y_t = sum_{k >= t} gamma^(k - t) r_k, without a slow
  copy. It learns the same values without bias, and with all the chance of whole episodes; of one that was truncated
  y stops there, as in the authors' code.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.experience.logged import Logged
from etude.experience.sampling import OneStep, UniformRows
from etude.experience.transforms import NextActions, ReturnsToGo
from etude.learners.backups import Argmax, Bootstrap, Taken
from etude.learners.heads import Huber
from etude.learners.q import QFunctions
from etude.methods.offline.tq_saco.mixtures import BestMixture, MixedQFunctions, SeveralValues
from etude.methods.offline.tq_saco.monte_carlo import MonteCarlo
from etude.methods.value.dqn import dqn
from etude.optimizers.adam import Adam
from etude.policies.control.initializers import FanIn
from etude.policies.control.networks import MLP

tq_saco = dqn.replace(
    id="tq-saco",
    title="A Dataset Perspective on Offline Reinforcement Learning",
    paper="arXiv:2111.04714",
    row="analysis",
    experience=Logged(),
    exploration=None,
    sampling=UniformRows(batch=128, horizon=OneStep(gamma=0.95)),
    critic=QFunctions(
        network=MLP(hidden=(256, 256, 256), activation="relu", initializer=FanIn()),
        backup=Bootstrap(Argmax()),
        error=Huber(),
        learning=Learning(Adam(lr=1e-4), target=Target(every=100)),
    ),
    claim=Claim(
        statement=(
            "Over five kinds of data CQL earns more than the better of DQN and cloning; what DQN earns goes with how "
            "much data cover more than what cloning earns does, and that goes with how good they are more than DQN's."
        ),
        task="cartpole",
        setting=(
            "20,000 steps each of chance, of the best stage of an online DQN, 80% of the first and 20% of the second, "
            "of that stage with one choice of five by chance, and of the online run; networks of 64-64, 4,000 updates "
            "at a rate of 1e-3, 20 episodes; from 0 (chance) to 1 (the best stage); r over the five kinds"
        ),
        measures=(
            Measure(name="score over five kinds", smallest=0.1, bounds=(0.0, None)),
            Measure(name="r of DQN's score with SACo", smallest=0.3, bounds=(None, 1.0)),
            Measure(name="r of cloning's score with TQ", smallest=0.3, bounds=(None, 1.0)),
            Measure(name="score on mixed and noisy data", role="mechanism", smallest=0.1, bounds=(0.0, None)),
            Measure(name="SACo beyond the expert's", role="mechanism", against=0.0, minimum=0.1, smallest=0.1),
        ),
        equal=("updates",),
        sweep={},
        learned_on="score over five kinds",
        paper_effect="over six environments and five kinds of data: cloning needs TQ, DQN and its kin need SACo, BCQ, "
        "CQL and CRR do well where either is high (figure 3)",
    ),
)

assert dqn.critic is not None
rem = dqn.replace(
    id="rem",
    title="An Optimistic Perspective on Offline Reinforcement Learning",
    paper="arXiv:1907.04543",
    experience=Logged(),
    exploration=None,
    critic=MixedQFunctions(
        network=MLP(hidden=(256, 256), activation="relu", initializer=FanIn()),
        head=SeveralValues(count=200),
        backup=Bootstrap(BestMixture()),
        error=Huber(),
        learning=Learning(Adam(lr=2.3e-3, clip_norm=10.0), target=Target(every=128)),
    ),
)

bve = dqn.replace(
    id="bve",
    title="Regularized Behavior Value Estimation",
    paper="arXiv:2103.09575",
    experience=Logged(),
    exploration=None,
    transforms=(NextActions(),),
    critic=dqn.critic.replace(backup=Bootstrap(Taken())),
)

mce = dqn.replace(
    id="mce",
    title="A Dataset Perspective on Offline Reinforcement Learning (Monte Carlo estimation)",
    paper="arXiv:2111.04714",
    experience=Logged(),
    exploration=None,
    transforms=(ReturnsToGo(),),
    critic=dqn.critic.replace(backup=MonteCarlo(), learning=Learning(Adam(lr=2.3e-3, clip_norm=10.0), target=None)),
)

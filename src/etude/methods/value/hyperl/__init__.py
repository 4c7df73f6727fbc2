"""HypeRL: a critic whose weights a network says of the observation (arXiv:2106.06842).

Changes TD3 in two places:

1. observation and action are not put side by side. A primary network with residual blocks reads the observation and
   says the weights of a network with one hidden layer, which reads the action:

       z = primary(s),   Q(s, a) = (W_2 h) s_2 + b_2,   h = relu((W_1 a) s_1 + b_1),   W, b and s - 1 linear in z;

2. the critic learns at a sixth of the policy's rate, 5e-5 and 3e-4.

The gradient in the action, by which the policy learns, is that of a network which is made for this observation; what
it is worth is held against the exact one on the regulator (`experiments/value/hyperl.py`). Sizes are the paper's: 256,
512 and 1024 with two blocks each, and 256 hidden units. Biases of the primary network start as torch's do, which is
what the authors' code leaves them at. `critic.reverse=true` is their comparison in which the action says the weights.
"""

from etude.core.claims import Claim, Measure
from etude.core.learners import Learning, Target
from etude.learners.backups import Bootstrap, ClippedNoise, FromPolicy
from etude.methods.value.hyperl.hypernetwork import HyperQFunctions
from etude.methods.value.td3 import td3
from etude.objectives.reductions import Min
from etude.optimizers.adam import Adam

hyperl = td3.replace(
    id="hyperl",
    title="Recomposing the Reinforcement Learning Building Blocks with Hypernetworks",
    paper="arXiv:2106.06842",
    critic=HyperQFunctions(
        count=2,
        backup=Bootstrap(FromPolicy(noise=ClippedNoise(scale=0.2, limit=0.5)), reduce=Min()),
        learning=Learning(Adam(lr=5e-5), target=Target(rate=0.005, every=2)),
    ),
    claim=Claim(
        statement="A critic whose weights are said of the observation knows better, and more alike everywhere, which "
        "way actions get better than a perceptron of as many numbers does, and earns no less.",
        task="regulator",
        setting="a regulator in six dimensions: 5,000 transitions of a linear policy with half of the best gain, gamma "
        "0.95, 2,000 updates; the cosine is between the gradient in its action and the exact one, at 1,000 states. The "
        "pendulum: 8,000 steps. Of hyperl a primary network of 32-64-128, on the pendulum 16-32-64, and 32 dynamic "
        "units; of td3 two layers with as many numbers",
        measures=(
            Measure(name="cosine", smallest=0.01, bounds=(-1.0, 1.0)),
            Measure(name="deviation of the cosine", direction="lower", smallest=0.01, bounds=(0.0, None)),
            Measure(name="return", smallest=20.0, margin=-20.0, bounds=(-2000.0, 0.0)),
        ),
        equal=("steps",),
        sweep={"critic.learning.optimizer.lr": (3e-4, 1e-3)},
        learned_on="return",
        paper_effect="higher cosine similarity with the true gradient, and higher returns, in four MuJoCo tasks",
    ),
)

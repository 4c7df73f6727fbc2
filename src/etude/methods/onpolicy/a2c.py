"""A2C."""

from etude.advantages.returns import GAE
from etude.critics.state import StateValue
from etude.experience.vector import Rollouts
from etude.methods.foundation.reinforce import reinforce
from etude.optimizers.adam import AdamW
from etude.regularizers.entropy import EntropyBonus

a2c = reinforce.on("control").replace(
    id="a2c",
    experience=Rollouts(environments=8, steps=32),
    advantages=GAE(gamma=0.99, lam=0.95, standardize=True, per_minibatch=True),
    critic=StateValue(coefficient=0.5),
    regularizers=(EntropyBonus(coefficient=0.01),),
    optimizer=AdamW(lr=3e-3, epsilon=1e-5, clip_norm=0.5, schedule="linear"),
    minibatches=1,
)

"""NPG."""

from etude.advantages.returns import GAE
from etude.critics.fitted import FittedValue
from etude.experience.vector import Rollouts
from etude.methods.onpolicy.a2c import a2c
from etude.objectives.surrogate import Surrogate
from etude.optimizers.trust_region import NaturalGradient

npg = a2c.replace(
    id="npg",
    experience=Rollouts(environments=8, steps=128),
    advantages=GAE(gamma=0.99, lam=0.95, standardize=True),
    objective=Surrogate(),
    critic=FittedValue(),
    regularizers=(),
    optimizer=NaturalGradient(delta=0.01, damping=0.1),
    minibatches=1,
)

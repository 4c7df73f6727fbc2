"""TRPO."""

from etude.methods.onpolicy.npg import npg
from etude.optimizers.trust_region import TrustRegion

trpo = npg.replace(
    id="trpo",
    optimizer=TrustRegion(delta=0.01, damping=0.1),
)

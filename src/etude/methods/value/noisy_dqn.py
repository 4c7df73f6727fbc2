"""Noisy DQN: random numbers in the weights explore, and how large they are is learned (arXiv:1706.10295).

Changes DQN in two places:

1. every linear layer has noise, w = mu + sigma f(e_i) f(e_j), in each step that is acted and in each update; what is
   learned and what it learns from (Q and its copy) have noise of their own;
2. the best choice is taken always: there is no epsilon.

Noise is factorised, drawn for a whole batch at once and before every step, as the paper has it (section 3.2 and
algorithm 1), and its sigma starts at 0.5. What is evaluated and exported has none. All else is `dqn`'s, its first 1,000
random steps included.
"""

from etude.core.claims import Claim, Measure
from etude.experience.exploration import Greedy
from etude.methods.value.dqn import dqn
from etude.policies.control.noise import FactorisedNoise

assert dqn.critic is not None
noisy_dqn = dqn.replace(
    id="noisy-dqn",
    title="Noisy Networks for Exploration",
    paper="arXiv:1706.10295",
    exploration=Greedy(),
    critic=dqn.critic.replace(noise=FactorisedNoise(sigma=0.5)),
    claim=Claim(
        statement="Exploring by noise in the weights, whose size is learned, earns more than by random choices.",
        bed="control/cartpole-hard",
        baseline="dqn",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        sweep={"rate": (0.1, 0.3, 1.0)},
        paper_effect="median human-normalised score 83 to 123 % on 57 Atari games (table 1)",
    ),
)

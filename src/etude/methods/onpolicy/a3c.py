"""A3C: actor-critics that learn side by side from a few steps each, without locks (arXiv:1602.01783).

Changes A2C in six places:

1. there is one environment, and an update after every t_max = 5 steps of it; with `--on hogwild:W` there are W such
   workers, which step on the same numbers without waiting for each other (`loops/hogwild.py`);
2. every step is worth the longest return that the segment allows: with R = 0 behind an end, else V(s_{t_max}),
   backwards R <- r_i + gamma R, which is GAE with lambda = 1, and not standardised. So

       loss = sum_i -(R_i - V(s_i)) log pi(a_i|s_i) + 0.5 (R_i - V(s_i))^2 - 0.01 H(pi(.|s_i)),    R_i held fixed;

3. policy and value share their network but for the last layers;
4. the step is RMSProp's with epsilon inside of the root, of the gradient of the **sum**, and one running mean of its
   square for all workers; the rate falls to 0;
5. rewards are as the environment gives them;
6. observations too.

In the paper a segment is over where an episode ends; here it always has five steps, and R begins anew behind an end
inside of it. The LSTM is `policy.memory=lstm`, and the paper's beta for numbers 1e-4 (`regularizers.coefficient`).
The paper draws rates between 1e-4 and 1e-2 and does not say epsilon; here they are 3e-3 and 0.1.
"""

from etude.advantages.returns import GAE
from etude.core.claims import Claim, Measure
from etude.experience.vector import Segments
from etude.learners.state import StateValue
from etude.methods.onpolicy.a2c import a2c
from etude.optimizers.rmsprop import RMSProp
from etude.optimizers.schedules import Linear
from etude.policies.control.actor import ActorPolicy

a3c = a2c.replace(
    id="a3c",
    title=a2c.title,
    paper=a2c.paper,
    policy=ActorPolicy(),
    experience=Segments(environments=1, steps=5),
    rewards=(),
    advantages=GAE(gamma=0.99, lam=1.0, standardize=False),
    critic=StateValue(shared=True, coefficient=1.0),
    optimizer=RMSProp(lr=3e-3, decay=0.99, epsilon=0.1, schedule=Linear()),
    claim=Claim(
        statement="A policy and five steps of rewards earn more than one-step Q-learning, both from each step once.",
        bed="control/cartpole-hard",
        baseline="one-step-q",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        sweep={"optimizer.lr": (3e-4, 1e-3, 3e-3, 1e-2)},
        baseline_sweep={"rate": (0.1, 0.3, 1.0, 3.0)},
        paper_effect="16 workers: a mean human-normalised score of 496.8% in four days, DQN's 121.9% in eight on a GPU",
    ),
)

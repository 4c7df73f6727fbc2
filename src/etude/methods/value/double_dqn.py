"""Double DQN: the network chooses, its copy says what that is worth (arXiv:1509.06461).

Changes DQN in one place: y = r + gamma (1 - terminated) Q'(s', argmax_a Q(s', a)), where DQN takes the copy's own
largest value, which errors push up. Settings are those of `dqn`.
"""

from etude.core.claims import Claim, Measure
from etude.learners.backups import Argmax, Bootstrap
from etude.methods.value.dqn import dqn

assert dqn.critic is not None
double_dqn = dqn.replace(
    id="double-dqn",
    title="Deep Reinforcement Learning with Double Q-learning",
    paper="arXiv:1509.06461",
    critic=dqn.critic.replace(backup=Bootstrap(Argmax(double=True))),
    claim=Claim(
        statement="Choosing by the network and valuing by its copy earns more than DQN.",
        bed="control/cartpole-hard",
        baseline="dqn",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        sweep={"rate": (0.1, 0.3, 1.0)},
        paper_effect="median human-normalised score 88 to 111 % on 49 Atari games (table 2)",
    ),
)

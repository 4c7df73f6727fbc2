"""Dueling DQN: the value of the state and what each choice adds are said apart (arXiv:1511.06581).

Changes Double DQN in one place: Q(s, a) = V(s) + A(s, a) - mean_b A(s, b), both from the same last layer. (The paper
has a hidden layer of its own for each.) Settings are those of `dqn`.
"""

from etude.core.claims import Claim, Measure
from etude.learners.heads import Dueling, Scalar
from etude.methods.value.double_dqn import double_dqn

assert double_dqn.critic is not None
dueling_dqn = double_dqn.replace(
    id="dueling-dqn",
    title="Dueling Network Architectures for Deep Reinforcement Learning",
    paper="arXiv:1511.06581",
    critic=double_dqn.critic.replace(head=Dueling(Scalar())),
    claim=Claim(
        statement="Saying the state's value apart earns more than Double DQN.",
        bed="control/cartpole-hard",
        baseline="double-dqn",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        sweep={"rate": (0.1, 0.3, 1.0)},
        paper_effect="median human-normalised score 118 to 152 % on 57 Atari games (table 1)",
    ),
)

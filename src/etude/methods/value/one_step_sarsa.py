"""One-step Sarsa by workers side by side: what was done next is what is learned (arXiv:1602.01783).

Changes one-step Q-learning in one place: the target goes on with the action that was taken next, trials included,

    y_i = r_i + gamma (1 - terminated) Q'(s_{i+1}, a_{i+1}).

So an update waits for one step more than the five that it learns from. Where an episode was truncated nothing was done
next, and the best action stands in its place.
"""

from etude.core.claims import Claim, Measure
from etude.experience.latest import Latest, Newest
from etude.experience.sampling import Quintuple
from etude.learners.backups import Bootstrap, Taken
from etude.methods.value.one_step_q import one_step_q

assert one_step_q.critic is not None
one_step_sarsa = one_step_q.replace(
    id="one-step-sarsa",
    title=one_step_q.title,
    paper=one_step_q.paper,
    experience=Latest(steps=5, ahead=1),
    sampling=Newest(horizon=Quintuple(gamma=0.99)),
    critic=one_step_q.critic.replace(backup=Bootstrap(Taken())),
    claim=Claim(
        statement="What was done next is as good a target as what is best, while chances to try fall.",
        bed="control/cartpole-hard",
        baseline="one-step-q",
        measures=(
            Measure(name="area", direction="equal", smallest=25.0),
            Measure(name="end", role="mechanism", direction="equal", smallest=25.0),
        ),
        equal=("steps",),
        sweep={"rate": (0.1, 0.3, 1.0, 3.0)},
        paper_effect="curves beside those of one-step Q on five games (figure 1)",
    ),
)

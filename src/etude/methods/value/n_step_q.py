"""n-step Q-learning by workers side by side: rewards reach back as far as the segment goes (arXiv:1602.01783).

Changes one-step Q-learning in one place: every step is worth the longest sum that the five steps allow. With R = 0
behind an end, else max_a Q'(s_{t_max}, a), backwards

    R <- r_i + gamma R,     loss = sum_i (R_i - Q(s_i, a_i))^2,

so the last step looks one ahead and the first five: one reward changes the values of all that came before it at once.
In the paper a segment is over where an episode ends; here R begins anew behind an end inside of it.
"""

from etude.core.claims import Claim, Measure
from etude.experience.latest import Newest
from etude.experience.sampling import NStep
from etude.methods.value.one_step_q import one_step_q

n_step_q = one_step_q.replace(
    id="n-step-q",
    title=one_step_q.title,
    paper=one_step_q.paper,
    sampling=Newest(horizon=NStep(gamma=0.99, n=5)),
    claim=Claim(
        statement="Rewards that reach back over five steps earn more than those that reach back over one.",
        bed="control/cartpole-hard",
        baseline="one-step-q",
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        sweep={"rate": (0.1, 0.3, 1.0, 3.0)},
        paper_effect="learns faster than one-step methods on some of the games of figure 1",
    ),
)

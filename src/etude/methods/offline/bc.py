"""Behaviour cloning: a policy that does what the logs did, of numbers (`bc`) or of choices (`bc-discrete`).

The root of the family: rows are drawn uniformly from logs, and the policy learns to do the same,

    bc:           loss = mean_k (mu(s)_k - a_k)^2, actions in units
    bc-discrete:  loss = -log pi(a|s)

There is no critic, and rewards are read by nobody: what it earns is the floor that every other method has to beat. With
`--set policy=squashed-policy actor.clone.error=likelihood` the policy of numbers is a distribution.
"""

from etude.core.claims import Claim, Measure
from etude.core.kinds import ReplayMethod
from etude.core.learners import Learning
from etude.experience.logged import Logged
from etude.experience.sampling import OneStep, UniformRows
from etude.objectives.clone import Clone, Likelihood
from etude.optimizers.adam import Adam
from etude.policies.control.replay import DeterministicPolicy, SoftmaxPolicy

TENTH = 100.0
"""Of the way from chance to swung up: the smallest difference that matters on the pendulum."""


def over_cloning(statement: str, paper_effect: str, also: str = "") -> Claim:
    """The claim of a method that it earns more than `bc` on logs of good and bad episodes.

    Args:
        also: what its setting has besides.
    """
    return Claim(
        statement=statement,
        task="pendulum",
        setting=(
            "50 logged episodes of a controller by hand, a third each with torques off by 0.3, 2 and 8 on average; "
            f"networks of 64-64, 5,000 updates, 20 episodes of likeliest actions{also}"
        ),
        measures=(Measure(name="return", smallest=TENTH, bounds=(-2000.0, 0.0)),),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="return",
        paper_effect=paper_effect,
    )


bc = ReplayMethod(
    id="bc",
    title="A Framework for Behavioural Cloning",
    paper="Bain and Sammut 1995, Machine Intelligence 15",
    policy=DeterministicPolicy(learning=Learning(Adam(lr=3e-4))),
    experience=Logged(),
    sampling=UniformRows(batch=256, horizon=OneStep(gamma=0.99)),
    actor=(Clone(),),
    order=("policy",),
    claim=Claim(
        statement="On logs of one good controller cloning earns more than TD3 that learns from the same logs.",
        task="pendulum",
        setting=(
            "50 logged episodes of a controller by hand, with torques off by 0.3 on average; "
            "networks of 64-64, 5,000 updates, 20 episodes of likeliest actions"
        ),
        measures=(Measure(name="return", smallest=TENTH, bounds=(-2000.0, 0.0)),),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="return",
        paper_effect="off-policy methods on logs of one policy earn far less than it did (arXiv:1812.02900, figure 1)",
    ),
)

bc_discrete = bc.replace(
    id="bc-discrete",
    title="A Framework for Behavioural Cloning",
    paper="Bain and Sammut 1995, Machine Intelligence 15",
    policy=SoftmaxPolicy(learning=Learning(Adam(lr=3e-4))),
    actor=(Clone(error=Likelihood()),),
)

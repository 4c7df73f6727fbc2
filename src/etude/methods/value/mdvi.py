"""MD-VI: greedy steps held near the policy before, so that errors average out (arXiv:2003.14089).

Changes DQN in three places:

1. the policy is a network of its own, trained on a greedy step that is regularised twice,

       G(q') = argmax_pi <pi, q'> - kl KL(pi || pi') + entropy H(pi),

   q' and pi' being the slow copies ("MD-direct");
2. the critic learns what that step is worth at the next state, its regularisers included: y = r + gamma (<pi, q'> -
   kl KL(pi || pi') + entropy H(pi)), all at s'. Type 2 leaves them out there: set both to 0 in `critic.backup.rule`;
3. it acts by the policy, but for a chance epsilon of any choice.

kl = 0 is soft value iteration, both 0 what DQN approximates. The policy is a softmax of the sum of all q's so far over
kl, so errors that change their sign cancel, where without kl the last one stays: after k iterations |q* - q| is at most
2 / (1 - gamma) |mean error| + 4 v_max / ((1 - gamma) k). On tables, with exact steps, that is
`experiments/value/mdvi.py`, which has the equivalent by dual averaging too. The paper sweeps kl and entropy from 0 to
10; 0.1 and 0.01 are ours.
"""

from __future__ import annotations

from torch import Tensor

from etude.core.claims import Claim, Measure
from etude.core.critic_slots import Following, Rule
from etude.core.fields import NonNegative
from etude.core.learners import Learning, Target
from etude.core.method import Method
from etude.core.replay_slots import ActorTerm, At, ReplayReading
from etude.learners.backups import Bootstrap
from etude.learners.q import QFunctions
from etude.methods.value.dqn import dqn
from etude.optimizers.adam import Adam
from etude.policies.control.replay import SoftmaxPolicy


def regularised(q: Tensor, chances: Tensor, before: Tensor, kl: float, entropy: float) -> Tensor:
    """q - kl log(pi / pi') - entropy log pi, whose mean under pi is <pi, q> - kl KL(pi || pi') + entropy H(pi).

    Shapes: all [..., A].

    >>> import torch
    >>> pi = torch.tensor([0.5, 0.5])
    >>> regularised(torch.zeros(2), pi, pi, kl=1.0, entropy=1.0)  # an entropy of log 2
    tensor([0.6931, 0.6931])
    """
    tiny = 1e-30
    logs = (chances + tiny).log()
    return q - kl * (logs - (before + tiny).log()) - entropy * logs


def _refused(method: Method) -> str | None:
    """Why the greedy step cannot be taken in a method."""
    policy, critic = method.slots()["policy"], method.slots()["critic"]
    if not isinstance(policy, SoftmaxPolicy):
        return "weighs the chances of choices: set policy=softmax-policy."
    if policy.learning is None or policy.learning.target is None:
        return "holds the policy near its slow copy: set policy.learning.target."
    if critic is not None and critic.head.says == "probabilities":
        return "adds to values, and the critic says probabilities of returns: set critic.head=scalar."
    return None


def _step(read: ReplayReading, at: At, kl: float, entropy: float) -> tuple[Tensor, Tensor]:
    """Regularised values [P, M, N, A, K] by the slow copies, and the policy's chances [P, N, A]."""
    choice, before = read.policy(at), read.policy(at, copy=True)
    assert choice.chances is not None and before.chances is not None
    q = read.outputs(at, copy=True)
    chances, slow = (x[:, None, :, :, None] for x in (choice.chances, before.chances.detach()))
    return regularised(q, chances, slow, kl, entropy), choice.chances


class MirrorDescentStep(Rule):
    """What the policy does next, the cost of leaving its slow copy and its entropy counted (arXiv:2003.14089, eq. 5).

    Args:
        kl, entropy: what both weigh; 0 and 0 is the paper's type 2.

    Shapes: outputs [P, M, N, A, K], chances [P, N, A].

    >>> import torch
    >>> from etude.core.replay_slots import Choice
    >>> class Rows:
    ...     def policy(self, at, copy=False): return Choice(None, None, torch.tensor([[[0.5, 0.5]]]))
    ...     def outputs(self, at, copy): return torch.tensor([1.0, 2.0]).view(1, 1, 1, 2, 1)
    >>> MirrorDescentStep(kl=1.0, entropy=0.0)(Rows()).outputs.flatten().tolist()  # it has not left its copy
    [1.0, 2.0]
    """

    kl: NonNegative = 0.1
    entropy: NonNegative = 0.01

    def objection(self, method: Method) -> str | None:
        return _refused(method)

    def __call__(self, read: ReplayReading) -> Following:
        outputs, chances = _step(read, "next", self.kl, self.entropy)
        return Following(outputs, None, chances)


class MirrorDescentPolicy(ActorTerm):
    """-<pi, q'> + kl KL(pi || pi') - entropy H(pi), by the slow copies q' and pi' (arXiv:2003.14089, section 5).

    Args:
        kl, entropy: what both weigh.

    Shapes: [P, N].

    >>> import torch
    >>> from etude.core.replay_slots import Choice
    >>> class Rows:
    ...     def policy(self, at, copy=False): return Choice(None, None, torch.tensor([[[0.5, 0.5]]]))
    ...     def outputs(self, at, copy): return torch.tensor([1.0, 2.0]).view(1, 1, 1, 2, 1)
    ...     def values(self, outputs): return outputs.squeeze(-1)
    >>> round(MirrorDescentPolicy(kl=1.0, entropy=1.0)(Rows()).item(), 4)  # -1.5 - log 2
    -2.1931
    """

    kl: NonNegative = 0.1
    entropy: NonNegative = 0.01

    def objection(self, method: Method) -> str | None:
        return _refused(method)

    def __call__(self, read: ReplayReading) -> Tensor:
        values, chances = _step(read, "here", self.kl, self.entropy)
        return -(chances * read.values(values).mean(1)).sum(-1)


mdvi = dqn.replace(
    id="mdvi",
    title="Leverage the Average: an Analysis of KL Regularization in Reinforcement Learning",
    paper="arXiv:2003.14089",
    row="theory",
    policy=SoftmaxPolicy(
        learning=Learning(Adam(lr=2.3e-3, clip_norm=10.0), target=Target(every=128)),
    ),
    critic=QFunctions(
        backup=Bootstrap(MirrorDescentStep(kl=0.1, entropy=0.01)),
        learning=Learning(Adam(lr=2.3e-3, clip_norm=10.0), target=Target(every=128)),
    ),
    actor=(MirrorDescentPolicy(kl=0.1, entropy=0.01),),
    order=("critic", "policy"),
    claim=Claim(
        statement="From sampled backups, exact steps held near the policy before end nearer to the best values than "
        "value iteration and than soft value iteration do.",
        task="garnet",
        setting="a Garnet of 30 states, 4 actions and 4 branches for each seed, gamma 0.9; 500 iterations, each backup "
        "of one next state drawn for every state and action; errors of the last policy's values, mean over the states",
        measures=(
            Measure(name="error", direction="lower", smallest=0.02, bounds=(0.0, None)),
            Measure(name="error, entropy alone", direction="lower", smallest=0.02, bounds=(0.0, None)),
            Measure(name="error after 50", role="mechanism", direction="lower", smallest=0.02, bounds=(0.0, None)),
        ),
        equal=("backups",),
        learned_on=None,
        paper_effect="the error of KL alone falls as 1/sqrt(k), that of value iteration stays (theorem 1)",
    ),
)

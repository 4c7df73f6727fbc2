"""PRDC: a policy is drawn to the nearest of all recorded actions, not to the one that the row has (arXiv:2306.06569).

Changes TD3+BC in one place: the action that the policy is drawn to may have been done in another state of the logs, if
that state is near (eq. 5 to 7),

    loss = -lambda Q_1(s, mu(s)) + mean_k (mu(s)_k - a_j,k)^2,    lambda = 2.5 / mean |Q_1(s, mu(s))|
    j = argmin_i |[beta s, mu(s)] - [beta s_i, a_i]|

with states as networks see them, standardised, and actions in units. So a row with a bad action does not hold back a
policy that does what was done better near there. The larger beta, the more the same state is asked for: in the limit,
where no state was there twice, the row's own action, TD3+BC. The search has no gradient; beta is 2 for locomotion, 7.5
for mazes of ants.

The paper's loss is the distance between [beta s, mu(s)] and its nearest row; as its authors' code has it the square is
of the actions alone and a mean over their numbers. What is reported is how far the nearest row is, not how much
more Q says than the logs went on to earn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from etude.core.claims import Claim, Measure
from etude.core.errors import ConfigError
from etude.core.fields import NonNegative
from etude.core.log_slots import Towards
from etude.core.population import PerMember
from etude.core.replay_slots import ReplayReading
from etude.methods.offline.bc import TENTH
from etude.methods.offline.td3_bc import td3_bc
from etude.objectives.actor import MaximizeQ
from etude.objectives.clone import Clone, MeanAbs
from etude.objectives.reductions import First

if TYPE_CHECKING:
    from etude.core.method import Method

BLOCK = 65_536
"""Rows that are looked at together while the index is built."""


class Nearest(Towards):
    """The recorded action of the row that is nearest to [beta s, pi(s)], of all rows of the logs (arXiv:2306.06569).

    SciPy's KD-tree finds it: one index of the logs for all members, built once in a run, and one search for the rows of
    all of them. The mean distance is reported as `policy_nearest_distance`.

    Args:
        beta: how much states count beside actions; 0: the nearest action, wherever it was done.

    Shapes: [P, N, A] in units. Raises: ConfigError where members do not see the same of a row.

    Two rows, and what is done in the first is nearer to what was done in the second: so it is for beta = 0.

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(observations=torch.tensor([[[0.0], [1.0]]]), actions=torch.tensor([[[-1.0], [1.0]]]))
    >>> read = Rows(policy=lambda: Rows(actions=torch.tensor([[[0.5]]])), seen=lambda at: torch.zeros(1, 1, 1),
    ...             stored=Rows(size=2, device="cpu", read=lambda index: rows), look=lambda seen: seen,
    ...             note=lambda name, values: None)
    >>> [Nearest(beta=b).bind()(read).tolist() for b in (0.0, 2.0)]
    [[[[1.0]]], [[[-1.0]]]]
    """

    beta: NonNegative = 2.0

    def objection(self, method: Method) -> str | None:
        experience, policy = method.slots()["experience"], method.slots()["policy"]
        if experience is not None and experience.acts:
            return f"searches logs that stay as they are, and {type(experience).__name__} acts: set experience=logged."
        if policy is not None and policy.of_choices:
            return f"measures how far actions are apart, and {type(policy).__name__} makes choices: leave it out."
        return None

    @torch.no_grad()
    def __call__(self, read: ReplayReading) -> Tensor:
        actions, seen = read.policy().actions, read.seen("here")
        found, distances = torch.empty_like(actions), actions.new_empty(len(actions))
        for beta, members in self._settings(len(actions)):
            tree, recorded = self._index(read, beta)
            keys = _keys(beta, seen[members], actions[members])
            far, index = tree.query(keys.flatten(0, 1).cpu().numpy())
            place = torch.from_numpy(index).view(keys.shape[:2])
            found[members] = recorded[place].to(found)
            distances[members] = torch.from_numpy(far).view(keys.shape[:2]).mean(1).to(distances)
        read.note("nearest_distance", distances)
        return found

    def _settings(self, count: int) -> Iterator[tuple[float, list[int]]]:
        """Every beta that there is, with whose it is of `count` members."""
        given: Any = self.beta
        own = given.numbers if isinstance(given, PerMember) else (given,) * count
        for beta in dict.fromkeys(own):
            yield beta, [k for k, x in enumerate(own) if x == beta]

    def _index(self, read: ReplayReading, beta: float) -> tuple[Any, Tensor]:
        """The tree of [beta s_i, a_i] over all rows, and their actions [N, A] in units; built once."""
        key = repr(beta)
        if key not in self.made:
            from scipy.spatial import KDTree

            members, keys, recorded = len(read.seen("here")), [], []
            for index in torch.arange(read.stored.size).split(BLOCK):
                rows = read.stored.read(index[None].to(read.stored.device))
                seen = read.look(rows.observations.expand(members, -1, -1))
                if not torch.equal(seen, seen[:1].expand_as(seen)):
                    raise ConfigError("Nearest has one index for all members, and they do not see the same of a row.")
                keys.append(_keys(beta, seen[0], rows.actions[0]).cpu())
                recorded.append(rows.actions[0].cpu())
            self.made[key] = KDTree(torch.cat(keys).numpy()), torch.cat(recorded)
        tree, recorded = self.made[key]
        return tree, recorded


def _keys(beta: float, seen: Tensor, actions: Tensor) -> Tensor:
    """[..., D + A] in float64."""
    return torch.cat([beta * seen.double(), actions.double()], -1)


prdc = td3_bc.replace(
    id="prdc",
    title="Policy Regularization with Dataset Constraint for Offline Reinforcement Learning",
    paper="arXiv:2306.06569",
    actor=(MaximizeQ(over=First(), scale=MeanAbs(alpha=2.5)), Clone(towards=Nearest(beta=2.0))),
    claim=Claim(
        statement="On logs of bad episodes PRDC earns more than TD3+BC.",
        task="pendulum",
        setting=(
            "50 logged episodes of a controller by hand, half each with torques off by 2 and 8 on average; "
            "networks of 64-64, 5,000 updates, 20 episodes of likeliest actions"
        ),
        measures=(Measure(name="return", smallest=TENTH, bounds=(-2000.0, 0.0)),),
        equal=("updates",),
        sweep={"rate": (0.3, 1.0, 3.0)},
        learned_on="return",
        paper_effect="more than TD3+BC in most of D4RL's locomotion and ant mazes (tables 1 and 2)",
    ),
)

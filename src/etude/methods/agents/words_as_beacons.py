"""Words as Beacons: sub-goals of a teacher, in the observation and in the reward (arXiv:2410.08632).

A language model that is shown a map of the level writes an ordered list of sub-goals before anything is learned; which
one is active is shown to the policy, and completing it is paid. Changes PPO in control in six places:

1. the policy reads the sub-goal that is active beside what the agent sees, as a code of fixed width: the way to it
   (`subgoal-offset`), what is there (`subgoal-triple`), or a phrase for that (`subgoal-phrase`). With the constant code
   of "none" in its place (`no-subgoal`) and alpha = 0 it is PPO, bit for bit;
2. a step that completes it earns more, the sooner the more,

       r = r_environment + alpha (1 - k / T),    alpha = 0.2,

   k being the steps since it became active and T the environment's limit: from 0 up to less than alpha, once for each;
3. the network is three convolutions of 32 filters (3 x 3, stride 2, padding 1, ELU) over the view, then 256 units that
   read their result and the sub-goal, which policy and critic share;
4. a rollout is 128 steps in 16 environments, passed over 4 times in minibatches of 256;
5. gamma = 0.99, lambda = 0.95, the entropy's bonus 5e-4;
6. Adam's rate stays at 1e-4.

The teacher belongs to the task (`minigrid-subgoals`): one that reads the grid, and errs as often as it is told, stands
for the language model, as in the paper's own experiments, which measured each model's accuracy first. Evaluations are
of the environment's own reward. What is learned needs the teacher's word to act: `task.told=0.5` trains half of the
episodes without, and `etude evaluate RUN --set task.told=0` says what is left without it.

Where the published code (aklein1995/Words-as-Beacons at 029f1ea) differs: it shows no direction, and cells as MiniGrid
numbers them, where here the direction is shown too and the view's numbers are divided by 10; a wrong place lies always
to the right of the right one; a random object may be the right one. Its phrases are 384 numbers of a sentence encoder,
here 384 of a fixed random projection of their words.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from etude.advantages.returns import GAE
from etude.core.claims import Claim, Measure
from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative
from etude.core.part import Need
from etude.core.population import Population
from etude.core.step_slots import Observations, StepReward
from etude.core.transitions import Transitions
from etude.experience.vector import Rollouts
from etude.learners.state import StateValue
from etude.methods.foundation.ppo import ppo_control
from etude.optimizers.adam import AdamW
from etude.policies.control.actor import ActorPolicy
from etude.policies.control.inputs import MultiInput
from etude.policies.control.leaves import Leaf, Leaves
from etude.policies.control.networks import CNN, MLP
from etude.regularizers.entropy import EntropyBonus
from etude.tasks.control._subgoals import COLOURS, NONE, STATES, SUBGOAL, TYPES

if TYPE_CHECKING:
    from collections.abc import Callable

OFFSET, TRIPLE = slice(0, 2), slice(2, 5)
"""Where a sub-goal's five numbers say the way to it, and what is there."""


class SubgoalBonus(StepReward):
    """Pays for completing sub-goals, the sooner the more: r + alpha (1 - k / T) in the step that completes one.

    Args:
        alpha: what one that takes no time would be worth.

    Shapes: rewards, progress [P, T, E] -> [P, T, E].

    A sub-goal completed by the 36th of 360 steps is worth 0.18, beside what the step earns:

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(rewards=torch.tensor([[[0.0], [0.5]]]), progress=torch.tensor([[[0.0], [1 - 36 / 360]]]))
    >>> SubgoalBonus(alpha=0.2).shape(rows).flatten().tolist()
    [0.0, 0.6800000071525574]
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.PROGRESS})
    alpha: NonNegative = 0.2

    def shape(self, batch: Transitions) -> Tensor:
        assert batch.progress is not None
        return batch.rewards + self.alpha * batch.progress


class Recoded(nn.Module):
    """Observations [P, N, D] of several leaves with another code in the place of one of them."""

    def __init__(self, shape: Leaves, at: int, code: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.shape, self.at, self.code = shape, at, code

    def forward(self, seen: Tensor) -> Tensor:
        pieces = list(self.shape.split(seen))
        pieces[self.at] = self.code(pieces[self.at])
        return torch.cat(pieces, -1)


class SubgoalCode(Observations, abstract=True):
    """How the policy sees the sub-goal: the leaf `subgoal` of its observations, coded anew.

    Raises: ConfigError for observations without such a leaf.
    """

    def code(self, said: Tensor) -> Tensor:
        """[..., 5], the way and what is there, to [..., width]."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """How many numbers the code has."""
        return self.code(torch.tensor([NONE])).shape[-1]

    def build(self, shape: tuple[int, ...], population: Population) -> tuple[nn.Module, tuple[int, ...]]:
        leaves = shape.leaves if isinstance(shape, Leaves) else ()
        found = [i for i, leaf in enumerate(leaves) if leaf.key == f"[{SUBGOAL!r}]"]
        if not found or not isinstance(shape, Leaves):
            raise ConfigError(
                f"{type(self).__name__} shows a sub-goal, and observations have no '{SUBGOAL}': take a task that has "
                "one, as minigrid-subgoals, or leave it out of policy.observations."
            )
        at = found[0]
        coded = Leaf(leaves[at].key, "vector", (self.width,))
        return Recoded(shape, at, self.code), Leaves([*leaves[:at], coded, *leaves[at + 1 :]])


class SubgoalOffset(SubgoalCode):
    """The way to the sub-goal: columns and rows from the agent; (0, 0) where there is none.

    Shapes: [..., 5] -> [..., 2].

    >>> SubgoalOffset().code(torch.tensor([[3.0, -1.0, 5.0, 4.0, 0.0]])).tolist()
    [[3.0, -1.0]]
    """

    def code(self, said: Tensor) -> Tensor:
        return said[..., OFFSET]


class SubgoalTriple(SubgoalCode):
    """What is in the sub-goal's cell: type, colour and state, as MiniGrid numbers them; (-1, -1, -1) for none.

    Shapes: [..., 5] -> [..., 3].

    >>> SubgoalTriple().code(torch.tensor([[3.0, -1.0, 5.0, 4.0, 0.0], [*NONE]])).tolist()
    [[5.0, 4.0, 0.0], [-1.0, -1.0, -1.0]]
    """

    def code(self, said: Tensor) -> Tensor:
        return said[..., TRIPLE]


class NoSubgoal(SubgoalCode):
    """The triple of "none", whatever the teacher says: a policy that is never told.

    Shapes: [..., 5] -> [..., 3].

    >>> NoSubgoal().code(torch.tensor([[3.0, -1.0, 5.0, 4.0, 0.0]])).tolist()
    [[-1.0, -1.0, -1.0]]
    """

    def code(self, said: Tensor) -> Tensor:
        return torch.full_like(said[..., TRIPLE], -1.0)


class SubgoalPhrase(SubgoalCode):
    """A phrase for what is in the sub-goal's cell, as the sum of its words' vectors, of length 1; zeros for none.

    Words have directions of their own, drawn once and for all from the letters of the word, so that phrases that share
    words are alike: no encoder is needed.

    Args:
        size: numbers of the code.

    Shapes: [..., 5] -> [..., size].

    >>> phrase(TYPES.index("door"), COLOURS.index("yellow"), STATES.index("closed"))
    'go to yellow door'
    >>> code = SubgoalPhrase().code(torch.tensor([[3.0, -1.0, 5.0, 4.0, 0.0], [*NONE]]))
    >>> [round(x, 4) for x in code.norm(dim=-1).tolist()]
    [1.0, 0.0]
    """

    size: Count = 384

    def code(self, said: Tensor) -> Tensor:
        kind, colour, state = said[..., TRIPLE].long().unbind(-1)
        index = (kind * len(COLOURS) + colour) * len(STATES) + state
        table = phrases(self.size).to(said)
        return table[torch.where(kind < 0, len(table) - 1, index)]


def phrase(kind: int, colour: int, state: int) -> str:
    """What is to be done at a cell with these numbers of MiniGrid's, in words."""
    name = TYPES[kind]
    if name in ("key", "ball", "box"):
        return f"take {name}"
    if name == "door":
        return "open locked door" if STATES[state] == "locked" else f"go to {COLOURS[colour]} door"
    return f"go to {name}"


_tables: dict[int, Tensor] = {}


def phrases(size: int) -> Tensor:
    """[K + 1, size] codes of all K phrases, by type, colour and state, and zeros."""
    if size not in _tables:
        every = [phrase(t, c, s) for t in range(len(TYPES)) for c in range(len(COLOURS)) for s in range(len(STATES))]
        words = {word: _direction(word, size) for text in every for word in text.split()}
        sums = torch.stack([torch.stack([words[word] for word in text.split()]).sum(0) for text in every])
        _tables[size] = torch.cat([sums / sums.norm(dim=1, keepdim=True), torch.zeros(1, size)])
    return _tables[size]


def _direction(word: str, size: int) -> Tensor:
    """The vector of a word."""
    return torch.randn(size, generator=torch.Generator().manual_seed(zlib.crc32(word.encode())))


words_as_beacons = ppo_control.replace(
    id="words-as-beacons",
    title="Words as Beacons: Guiding RL Agents with High-Level Language Prompts",
    paper="arXiv:2410.08632",
    policy=ActorPolicy(
        observations=(SubgoalTriple(),),
        network=MultiInput(
            image=CNN(
                channels=(32, 32, 32), kernels=(3, 3, 3), strides=(2, 2, 2), padding=1, hidden=(), activation="elu"
            ),
            vector=MLP(hidden=()),
            joint=MLP(hidden=(256,), activation="relu"),
        ),
    ),
    experience=Rollouts(environments=16, steps=128),
    rewards=(SubgoalBonus(alpha=0.2),),
    advantages=GAE(gamma=0.99, lam=0.95, per_minibatch=True),
    critic=StateValue(shared=True, coefficient=0.5),
    regularizers=(EntropyBonus(coefficient=5e-4),),
    optimizer=AdamW(lr=1e-4, epsilon=1e-5, clip_norm=0.5),
    epochs=4,
    minibatches=8,
    claim=Claim(
        statement="Told what to reach next and paid for reaching it, PPO earns more from as many steps where only the "
        "end of a level pays.",
        bed="control/doorkey",
        baseline="words-as-beacons",
        baseline_changes={"policy.observations": "no-subgoal", "rewards": ()},
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
        paper_effect="30 to 200 times fewer steps than recent methods for sparse rewards, on KeyCorridor and others",
    ),
)

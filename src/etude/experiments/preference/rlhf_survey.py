"""The claim of rlhf-survey: what compared segments teach SAC on a pendulum, against rewards and against other ways.

Four runs of a population, a member for each seed: with three hundred answers, a tenth of them wrong; with the rewards
themselves; with answers to whatever questions came first; and with rewards that stay what they were when a row was
first learned from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from etude.core.edit import set_values
from etude.core.fields import Count, WholeNumber
from etude.core.population import Member
from etude.core.registry import get_method
from etude.core.replay_slots import ReplayReading
from etude.evaluation.control import play
from etude.evaluation.epic import epic_distance
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs
from etude.experiments.cells import Cell, advance, recorded, spread
from etude.loops.off_policy import OffPolicyLoop
from etude.methods.preference.rlhf_survey.models import PreferenceModels
from etude.methods.preference.rlhf_survey.stored import ByModels
from etude.tasks.control.pendulum import MAX_TORQUE, pendulum

STEPS, BLOCK, EPISODES, ROWS = 6_000, 250, 20, 1_000
"""Environment steps of each member, those of a block, episodes played at the end, transitions that EPIC is over."""
SMALL = {
    "policy.network.hidden": (64, 64), "critic.network.hidden": (64, 64), "sampling.horizon.gamma": 0.98,
    "sampling.batch": 64, "critic.learning.target.rate": 0.01, "optimizer.lr": 1e-3,
}  # fmt: skip
"""As the pendulum's bed has them."""
ASKED = {"learners.replay-preferences.teacher.mistakes": 0.1}
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "asked": ("rlhf-survey", ASKED),
    "paid": ("sac", {}),
    "any": ("rlhf-survey", {**ASKED, "learners.replay-preferences.queries": "any-questions"}),
    "once": ("rlhf-survey", ASKED),
}


class PaidOnce(ByModels):
    """What models of rewards said of a row when it was first learned from, for good; before they learned, anything.

    Args:
        rows: that are stored, none of which is overwritten. after: updates before anything is kept.

    Shapes: [P, N].

    >>> from types import SimpleNamespace as Rows
    >>> says = iter((torch.tensor([[[0.5]]]), torch.tensor([[[-1.0]]])))
    >>> batch = Rows(actions=torch.zeros(1, 1, 1), index=torch.tensor([[2]]))
    >>> read = Rows(beside=lambda name: lambda seen, actions: next(says), seen=lambda at: None, batch=batch)
    >>> part = PaidOnce(rows=4, after=0).bind()
    >>> [part(read).item() for _ in range(2)]
    [0.5, 0.5]
    """

    rows: Count = 1_000_000
    after: WholeNumber = BLOCK

    def __call__(self, read: ReplayReading) -> Tensor:
        now, index = super().__call__(read), read.batch.index
        assert index is not None
        self.state["updates"] = self.state.get("updates", 0) + 1
        if self.state["updates"] <= self.after:
            return now
        kept: Tensor = self.state.get("kept", torch.full((len(now), self.rows), torch.nan))
        before = kept.gather(1, index)
        found = torch.where(before.isnan(), now, before)
        self.state["kept"] = kept.scatter(1, index, found)
        return found


class Run(NamedTuple):
    """An arm, the seeds of its members, and what tuning sets."""

    arm: str
    seeds: tuple[int, ...]
    own: Mapping[str, Any]


def method_of(run: Run) -> Any:
    """The arm's method in the sizes of a small task."""
    name, changes = ARMS[run.arm]
    found: Any = set_values(get_method(name), {**SMALL, **changes, **run.own})
    if run.arm == "once":
        backup = found.critic.backup.replace(payment=PaidOnce(rows=STEPS))
        found = found.replace(critic=found.critic.replace(backup=backup))
    return set_values(found, {"experience.capacity": STEPS})


def paid(observations: Tensor, actions: Tensor, following: Tensor) -> Tensor:
    """What the pendulum pays, [...]; actions in units.

    >>> paid(torch.tensor([[1.0, 0.0, 2.0]]), torch.tensor([[0.5]]), torch.zeros(1, 3)).tolist()
    [-0.4009999930858612]
    """
    x, y, spin = observations.unbind(-1)
    return -(torch.atan2(y, x) ** 2 + 0.1 * spin**2 + 0.001 * (MAX_TORQUE * actions[..., 0]) ** 2)


def distances(loop: OffPolicyLoop, part: PreferenceModels) -> list[float]:
    """EPIC distances of every member's models to what the pendulum pays, over what it stored."""
    store, network = loop.collector.store, loop.updater.networks[part.name]
    index = torch.linspace(0, store.size - 1, ROWS).long().expand(store.members, -1)
    rows, found = store.read(index), []
    for k in range(store.members):

        def said(observations: Tensor, actions: Tensor, following: Tensor, k: int = k) -> Tensor:
            flat = (x.reshape(1, -1, x.shape[-1]).expand(store.members, -1, -1) for x in (observations, actions))
            with torch.no_grad():
                return network(*flat)[k].mean(0).view(observations.shape[:-1])  # type: ignore[no-any-return]

        seen, done, led = rows.observations[k], rows.actions[k], rows.next_observations[k]
        draws = torch.Generator().manual_seed(0)
        found.append(epic_distance(said, paid, seen, done, led, gamma=0.98, generator=draws, samples=64))
    return found


def played(run: Run) -> list[list[float]]:
    """Returns of likeliest actions before and after training, and EPIC distances where something was asked."""
    method = method_of(run)

    def compute() -> list[list[float]]:
        torch.set_num_threads(1)
        loop = OffPolicyLoop(method, pendulum, [Member(seed) for seed in run.seeds], STEPS // BLOCK, BLOCK)
        first = play(loop, pendulum, EPISODES, deterministic=True).mean(1).tolist()
        advance(loop, Cell(f"{run.arm}-{len(run.seeds)}", method, pendulum, run.seeds[0], STEPS // BLOCK, start=""))
        last = play(loop, pendulum, EPISODES, deterministic=True).mean(1).tolist()
        part = loop.updater.offering.get("replay-preferences")
        apart, asked = list[float](), list[float]()
        if isinstance(part, PreferenceModels):
            apart, asked = distances(loop, part), [float(part.state["asked"])] * len(last)
        loop.close()
        return [first, last, apart, asked]

    matters = [method.to_json(), STEPS, BLOCK, EPISODES, ROWS, list(run.seeds)]
    return recorded(f"rlhf-survey-{run.arm}-{len(run.seeds)}", matters, compute)


def experiment(
    seeds: Sequence[int], arm: Mapping[str, Any] | None = None, baseline: Mapping[str, Any] | None = None
) -> list[Pair]:
    """Seeds are members of every arm."""
    own = {"paid": baseline or {}}
    found = dict(zip(ARMS, spread(played, [Run(name, tuple(seeds), own.get(name, arm or {})) for name in ARMS])))
    mine, others = found["asked"], {"beside rewards": "paid", "beside any questions": "any", "relabelled": "once"}
    returns = {f"return {name}": mine[1] for name in others}
    theirs = {f"return {name}": found[other][1] for name, other in others.items()}
    start = {f"return {name}": found[other][0] for name, other in others.items()}
    steps = [float(STEPS)] * len(seeds)
    return pairs(
        seeds,
        {**returns, "EPIC distance": mine[2], "answers": mine[3]},
        {**theirs, "EPIC distance": found["any"][2], "answers": found["any"][3]},
        start=start, budgets={"steps": (steps, steps)},
    )  # fmt: skip

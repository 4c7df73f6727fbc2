"""How well critics know which way actions get better: HypeRL's and TD3's of as many numbers, and what that earns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from etude.core.critic_slots import Following, Rule
from etude.core.edit import set_values
from etude.core.kinds import ReplayMethod
from etude.core.population import Member, Population
from etude.core.registry import get_method
from etude.core.replay_slots import ReplayReading
from etude.evaluation.control import play
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs
from etude.experiments.cells import Cell, advance, recorded, spread
from etude.learners.q import action_sizes
from etude.loops.off_policy import OffPolicyLoop
from etude.tasks.control.pendulum import pendulum
from etude.tasks.control.regulator import MOST, Regulator

SMALL = {"policy.network.hidden": (64, 64), "policy.learning.optimizer.lr": 1e-3, "sampling.batch": 64}
RATES = {"hyperl": 3e-4, "td3": 1e-3}
"""Of the critics before tuning. On the regulator hyperl's cosine is 0.84 to 0.94 with 1e-3, 3e-4, 1e-4 (seeds 0, 1)."""
DYNAMIC = 32
LINEAR, LINEAR_SIZES, GAMMA, SHARE = Regulator(dimensions=6, limit=20), (32, 64, 128), 0.95, 0.5
"""The fixed policy has half of the best gain, so that actions could be better everywhere. In two dimensions td3 knew
the gradient too well (0.986) for the two to be told apart."""
ROWS, NOISE, UPDATES, STATES = 5_000, 0.2, 2_000, 1_000
"""Transitions of each member, the deviation of its actions in units, updates, and where the gradient is asked for."""
Fields: TypeAlias = Mapping[str, Any]
Job: TypeAlias = tuple[str, tuple[int, ...], Fields]
"""An arm, the seeds of its members, and what tuning sets."""
SWINGS, SWING_SIZES, STEPS, BLOCK, EPISODES = pendulum, (16, 32, 64), 8_000, 250, 20


class LinearPolicy(Rule):
    """The action -gain s, in units: a policy whose values are known.

    Args:
        gain: [A, D], row after row.

    Shapes: outputs [P, M, N, K].

    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(seen=lambda at: torch.tensor([[[0.5]]]), outputs=lambda at, actions, copy: actions[:, None])
    >>> LinearPolicy(gain=(0.5,))(read).outputs.item()
    -0.25
    """

    gain: tuple[float, ...] = ()

    def act(self, seen: Tensor) -> Tensor:
        """[..., D] -> [..., A] within the bounds."""
        gain = seen.new_tensor(self.gain).view(-1, seen.shape[-1])
        return -(seen[..., None, :] * gain).sum(-1).clamp(-1.0, 1.0)

    def __call__(self, read: ReplayReading) -> Following:
        return Following(read.outputs("next", self.act(read.seen("next")), copy=True))


class Known(NamedTuple):
    """How near a critic's gradient in the action is to the exact one: [P] each of the cosines, over the states."""

    mean: list[float]
    deviation: list[float]
    numbers: int


def numbers(critic: Any, shape: tuple[int, ...], actions: Any) -> int:
    """Of one critic of a part."""
    network: nn.Module = critic.replace(count=1).build(shape, actions, Population([Member(0)]))
    return sum(p.numel() for p in network.parameters())


def arms(task: Any, sizes: tuple[int, ...], own: Fields) -> dict[str, Any]:
    """Both small, TD3's two layers of one width such that no wider critic has as few numbers as HypeRL's."""
    seen = task.make([0], 1)
    shape, actions = seen.observation_space.shape, seen.action_space
    fields = {**SMALL, "critic.network.hidden": sizes, "critic.dynamic": DYNAMIC}
    hyper: Any = set_values(get_method("hyperl"), {**fields, "critic.learning.optimizer.lr": RATES["hyperl"]})
    inputs = shape[0] + action_sizes(actions)[1]
    most, half = numbers(hyper.critic, shape, actions), (inputs + 3) / 2
    width = math.floor(math.sqrt(half**2 + most - 1) - half)  # width^2 + (inputs + 3) width + 1 numbers
    fields = {**SMALL, "critic.network.hidden": (width, width)}
    plain: Any = set_values(get_method("td3"), {**fields, "critic.learning.optimizer.lr": RATES["td3"]})
    return {"hyperl": set_values(hyper, own), "td3": set_values(plain, own)}


# The regulator


def fixed(method: Any, task: Regulator) -> ReplayMethod:
    """The method's critic alone, which learns the values of a linear policy."""
    gain = SHARE * task.gain(GAMMA) / MOST
    rule = LinearPolicy(gain=tuple(float(x) for x in gain.ravel()))
    small = {"experience.capacity": ROWS, "experience.environments": 10, "sampling.horizon.gamma": GAMMA}
    critic = method.critic.replace(backup=method.critic.backup.replace(rule=rule))
    alone = method.replace(policy=method.policy.replace(learning=None), critic=critic, order=("critic",))
    changed: Any = set_values(alone, small)
    found: ReplayMethod = changed
    return found


def watch(loop: OffPolicyLoop, rule: LinearPolicy) -> None:
    """Fill the store with what the linear policy does, with noise."""
    environment, store = loop.environment, loop.collector.store
    grid, size = (ROWS // store.environments, store.environments), store.widths[1]
    noise = loop.population.draw("behaviour", of=lambda g: torch.randn(*grid, size, generator=g))
    seen = torch.from_numpy(environment.reset())
    for t in range(grid[0]):
        actions = (rule.act(seen) + NOISE * noise[:, t]).clamp(-1.0, 1.0)
        step = environment.step((MOST * actions).numpy())
        shown = torch.from_numpy(step.observations)
        following, done = shown.clone(), torch.from_numpy(step.terminated | step.truncated)
        if step.final is not None:
            following[done] = torch.from_numpy(step.final)
        live = torch.from_numpy(~step.terminated).float()
        store.push(seen, actions, following, torch.from_numpy(step.rewards), live, done.float())
        seen = shown


def cosines(loop: OffPolicyLoop, task: Regulator, rule: LinearPolicy) -> Tensor:
    """[P, STATES] between the first critic's gradient in the action of the policy and the exact one."""
    size = task.dimensions
    seen = loop.population.draw("states", of=lambda g: 2 * torch.rand(STATES, size, generator=g) - 1)
    actions = rule.act(seen).requires_grad_()
    said: Tensor = loop.critic(seen, actions)[:, 0]
    (found,) = torch.autograd.grad(said.sum(), actions)
    exact = exact_gradient(task, seen.double().numpy(), MOST * actions.detach().double().numpy())
    return nn.functional.cosine_similarity(found.double(), torch.from_numpy(exact), dim=-1)


def exact_gradient(task: Regulator, states: NDArray[Any], actions: NDArray[Any]) -> NDArray[np.floating[Any]]:
    """d Q / d u [..., d] of the linear policy, at states and actions [..., d]."""
    worth = task.worth(SHARE * task.gain(GAMMA), GAMMA)
    return task.action_gradient(states, actions, worth, GAMMA)


def known(job: Job) -> Known:
    """Train a population's critics on the regulator."""
    torch.set_num_threads(1)
    label, seeds, own = job
    method: Any = fixed(arms(LINEAR, LINEAR_SIZES, own)[label], LINEAR)

    def compute() -> list[Any]:
        loop = OffPolicyLoop(method, LINEAR, [Member(seed) for seed in seeds], 1)
        rule = method.critic.backup.rule
        watch(loop, rule)
        rates = loop.updater.rates(0, 1)
        for _ in range(UPDATES):
            loop.updater.run(loop.collector.store, rates)
        found, count = cosines(loop, LINEAR, rule), sum(p.numel() for p in loop.critic.parameters())
        loop.close()
        return [found.mean(1).tolist(), found.std(1).tolist(), count // (2 * len(seeds))]

    matters = [method.to_json(), repr(LINEAR), ROWS, NOISE, UPDATES, STATES, list(seeds)]
    return Known(*recorded(f"{label}-regulator-{len(seeds)}", matters, compute))


# The pendulum


def earned(job: Job) -> tuple[list[float], list[float]]:
    """Returns of a population before and after training."""
    torch.set_num_threads(1)
    label, seeds, own = job
    method = arms(SWINGS, SWING_SIZES, own)[label]
    loop = OffPolicyLoop(method, SWINGS, [Member(seed) for seed in seeds], STEPS // BLOCK, BLOCK)
    first = play(loop, SWINGS, EPISODES, deterministic=True).mean(1).tolist()
    advance(loop, Cell(f"{label}-{len(seeds)}", method, SWINGS, seeds[0], STEPS // BLOCK, start=""))
    last = play(loop, SWINGS, EPISODES, deterministic=True).mean(1).tolist()
    loop.close()
    return first, last


def experiment(seeds: Sequence[int], arm: Fields | None = None, baseline: Fields | None = None) -> list[Pair]:
    """Seeds are members of every arm."""
    jobs: list[Job] = [(label, tuple(seeds), own or {}) for label, own in (("hyperl", arm), ("td3", baseline))]
    mine, theirs = spread(known, jobs)
    (_, end), (start, other) = spread(earned, jobs)
    steps = [float(STEPS)] * len(seeds)
    return pairs(
        seeds,
        {"cosine": mine.mean, "deviation of the cosine": mine.deviation, "return": end},
        {"cosine": theirs.mean, "deviation of the cosine": theirs.deviation, "return": other},
        start={"return": start},
        budgets={"steps": (steps, steps)},
    )

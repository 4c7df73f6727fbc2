"""LMC-LSVI with linear values and a horizon, many at once, and the claim about exploring by noisy steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from etude.core.edit import set_values
from etude.core.kinds import ReplayMethod
from etude.core.population import Member, Population
from etude.core.registry import get_method
from etude.evaluation.control import play
from etude.evaluation.pairs import Pair
from etude.experience.exploration import EpsilonGreedy
from etude.experiments.arms import pairs
from etude.experiments.cells import Cell, advance
from etude.loops.off_policy import OffPolicyLoop
from etude.methods.value.lmc_lsvi.langevin import LangevinAdam
from etude.optimizers.adam import Adam
from etude.tasks.tabular.finite import FiniteMDP, greedy, optimal_return
from etude.tasks.tabular.n_chain import NChain
from etude.tasks.tabular.river_swim import RiverSwim

RIVER, EPISODES, TEMPERATURE = RiverSwim(states=4, limit=12), 600, 1.0
"""1 / sqrt(beta) is 1. In the river of 6 states, 20 steps long, the first 200 episodes find nothing whatever it is."""
CHAIN, STEPS, BLOCK, SHARE, RUNS = NChain(states=16, mixed=True), 20_000, 250, 0.9, 8
"""Of 16 states random choices solved 10 of 16 (seeds 0 and 1), of 12 states 13 of 16. Where every state has the same
right action, 0.4 of all runs solve 20 states before they have learned anything. A sigma of 0.1 or 0.5 finds no more."""


class Samples(NamedTuple):
    """Where noisy descent of (w - w_hat)^T Lambda (w - w_hat) ends: each stage's Lambda as eigenvectors and -values."""

    vectors: Tensor
    values: Tensor
    rates: Tensor
    steps: Tensor
    temperature: float

    def fitted(self, moment: Tensor, stage: int) -> Tensor:
        """w_hat = Lambda^-1 moment, [P, D] both."""
        vectors = self.vectors[:, stage]
        return _turned(vectors, _turned(vectors.mT, moment) / self.values[:, stage])

    def after(self, start: Tensor, fitted: Tensor, stage: int, normal: Tensor) -> Tensor:
        """A draw of w [P, D] after all steps from `start` [P, D], given standard normal numbers [P, D].

        With A = I - 2 eta Lambda it is normal around w_hat + A^J (start - w_hat), and its covariance is
        (I - A^2J) Lambda^-1 (I + A)^-1 / beta: as if every step w <- w - eta gradient + sqrt(2 eta / beta) n were made.
        """
        vectors, values = self.vectors[:, stage], self.values[:, stage]
        shrunk = 1 - 2 * self.rates[:, stage, None] * values
        power = shrunk.pow(self.steps[:, stage, None])
        deviation = self.temperature * ((1 - power**2) / (values * (1 + shrunk))).clamp(min=0).sqrt()
        along = power * _turned(vectors.mT, start - fitted) + deviation * normal
        return fitted + _turned(vectors, along)


def _turned(matrices: Tensor, vectors: Tensor) -> Tensor:
    """[P, D, D] and [P, D] -> [P, D]."""
    return (matrices * vectors[:, None]).sum(-1)


def samples(precision: Tensor, temperature: float, episode: int, steps: int | None = None) -> Samples:
    """Rates and numbers of steps as the theory has them: 1 / (4 largest eigenvalue), 2 condition log(4 H K D).

    Args:
        precision: Lambda [P, H, D, D]. temperature: 1 / sqrt(beta). episode: K, from 1.
        steps: the number of steps; None: the theory's.
    """
    values, vectors = torch.linalg.eigh(precision)
    largest = values[..., -1]
    needed = 2 * largest / values[..., 0] * math.log(4 * precision.shape[1] * episode * precision.shape[-1])
    count = needed.ceil() if steps is None else torch.full_like(largest, float(steps))
    return Samples(vectors, values, 1 / (4 * largest), count, temperature)


class LinearLSVI:
    """Q_h(s, a) = clip(phi(s, a)^T w_h, 0, H - h), w_h drawn anew before every episode (arXiv:2305.18246, algorithm 1).

    What was seen is kept as counts: rewards are known where an action was taken, so they say all that the loss reads.

    Args:
        features: phi [S, A, D]. ridge: lambda.
        steps: of noisy descent in each stage; None: as many as the theory asks for.
    """

    def __init__(
        self, mdp: FiniteMDP, features: Tensor, temperature: float, ridge: float = 1.0, steps: int | None = None
    ) -> None:
        assert mdp.horizon is not None
        members, horizon, size = len(mdp.rewards), mdp.horizon, features.shape[-1]
        self.mdp, self.features, self.temperature, self.steps = mdp, features, temperature, steps
        self.counts = mdp.transitions.new_zeros(members, horizon, *mdp.transitions.shape[1:])
        self.visits = mdp.rewards.new_zeros(members, horizon, *mdp.rewards.shape[1:])
        self.ridge = ridge * torch.eye(size, dtype=features.dtype)
        self.weights = features.new_zeros(members, horizon, size)

    def values(self, stage: int) -> Tensor:
        """Q_h [P, S, A] by the weights of the moment."""
        said = (self.features * self.weights[:, stage, None, None]).sum(-1)
        return said.clamp(0.0, float(self.weights.shape[1] - stage))

    def draw(self, episode: int, normal: Tensor) -> Tensor:
        """New weights, from those of the episode before and normal numbers [P, H, D]; their policy [P, H, S, A]."""
        phi = self.features.flatten(0, 1)
        precision = (self.visits.flatten(2)[..., None, None] * (phi[:, :, None] * phi[:, None])).sum(2) + self.ridge
        drawn = samples(precision, self.temperature, episode, self.steps)
        value: Tensor = torch.zeros_like(self.mdp.rewards[..., 0])
        policy: list[Tensor] = []
        for h in reversed(range(self.weights.shape[1])):
            paid = self.visits[:, h] * self.mdp.rewards + (self.counts[:, h] * value[:, None, None]).sum(-1)
            moment = (paid.flatten(1)[..., None] * phi).sum(1)
            fitted = drawn.fitted(moment, h)
            self.weights[:, h] = drawn.after(self.weights[:, h], fitted, h, normal[:, h])
            q = self.values(h)
            value, policy = q.amax(-1), [greedy(q), *policy]
        return torch.stack(policy, 1)

    def play(self, policy: Tensor, uniform: Tensor) -> None:
        """Act for an episode, by numbers in [0, 1) [P, H + 1], and keep what was seen."""
        everyone = torch.arange(len(uniform))
        last = self.mdp.start.shape[0] - 1
        state = (self.mdp.start.cumsum(0) <= uniform[:, :1]).sum(-1).clamp(max=last)
        for h in range(self.weights.shape[1]):
            action = policy[everyone, h, state].argmax(-1)
            bounds = self.mdp.transitions[everyone, state, action].cumsum(-1)
            following = (bounds <= uniform[:, h + 1, None]).sum(-1).clamp(max=last)
            self.visits[everyone, h, state, action] += 1
            self.counts[everyone, h, state, action, following] += 1
            state = following


def regret(mdp: FiniteMDP, seeds: Sequence[int], episodes: int, temperature: float) -> Tensor:
    """What each episode's policy is expected to miss, [episodes, P], with a feature for every state and action."""
    states, actions = mdp.rewards.shape[1:]
    features = torch.eye(states * actions, dtype=torch.float64).view(states, actions, -1)
    learner, best = LinearLSVI(mdp, features, temperature), optimal_return(mdp)
    members = Population([Member(seed) for seed in seeds])
    shape, missed = learner.weights.shape[1:], []
    for k in range(1, episodes + 1):
        normal = members.draw("langevin", k, of=lambda g: torch.randn(shape, generator=g).double())
        policy = learner.draw(k, normal)
        missed.append(best - mdp.mean(mdp.evaluate_stages(policy)[:, 0]))
        learner.play(policy, members.draw("play", k, of=lambda g: torch.rand(shape[0] + 1, generator=g).double()))
    return torch.stack(missed)


def arms() -> dict[str, ReplayMethod]:
    """LMCDQN and what it is held against, alike but for how they explore."""
    found: Any = get_method("lmc-lsvi")
    fields = {"critic.network.hidden": (32, 32), "experience.every": 4, "experience.updates": 0.25}
    method: Any = set_values(found, fields)

    def stepping(optimizer: Any, **slots: Any) -> Any:
        return method.replace(critic=method.critic.replace(learning=learning.replace(optimizer=optimizer)), **slots)

    learning = method.critic.learning
    noisy, lr = learning.optimizer, learning.optimizer.lr
    explore = EpsilonGreedy(start=1.0, end=0.05, over=STEPS // 4)
    return {
        "lmc": method, "adam": stepping(LangevinAdam(lr=lr, sigma=noisy.sigma)),
        "epsilon": stepping(Adam(lr=lr), exploration=explore),
    }  # fmt: skip


def solved(label: str, method: ReplayMethod, seeds: Sequence[int]) -> tuple[list[float], list[float]]:
    """Before and after training, the share of RUNS runs whose greedy return is at least nine tenths of the best."""
    torch.set_num_threads(1)
    count, best = STEPS // BLOCK, float(optimal_return(CHAIN.mdp([0], horizon=True)))
    members = [Member(seed * RUNS + i) for seed in seeds for i in range(RUNS)]
    loop = OffPolicyLoop(method, CHAIN, members, count, BLOCK)

    def look() -> list[float]:
        returns = play(loop, CHAIN, 1, deterministic=True).reshape(len(seeds), RUNS)
        return [float(share) for share in (returns >= SHARE * best).mean(1)]

    first = look()
    advance(loop, Cell(f"{label}-{len(members)}", method, CHAIN, seeds[0], count, start=""))
    last = look()
    loop.close()
    return first, last


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """A seed is RUNS members of every arm."""
    found = {label: solved(label, method, seeds) for label, method in arms().items()}
    missed = regret(RIVER.mdp(seeds, horizon=True), seeds, EPISODES, TEMPERATURE)
    half = EPISODES // 2
    later = (missed[half:].sum(0) / missed[:half].sum(0)).tolist()
    mine, steps = found["lmc"][1], [float(STEPS)] * len(seeds)
    return pairs(
        seeds,
        {"solved": mine, "solved, Langevin Adam": mine, "regret, later by earlier half": later},
        {"solved": found["epsilon"][1], "solved, Langevin Adam": found["adam"][1]},
        start={"solved": found["epsilon"][0]},
        budgets={"steps": (steps, steps)},
    )

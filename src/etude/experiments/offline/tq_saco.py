"""The claim of tq-saco: what methods make of five kinds of data, by how good these are and by how much they cover.

`slice_of` is a seed's part of the study, for any of its methods; the claim asks about three.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from etude.core.edit import set_values
from etude.core.method import Method
from etude.core.registry import get_method
from etude.evaluation import data_measures
from etude.evaluation.pairs import Pair
from etude.experience.logged import Logged
from etude.experience.logs.replays import raw_of_rows
from etude.experience.logs.table import Spaces
from etude.experiments.arms import pairs
from etude.experiments.cells import recorded, spread
from etude.experiments.on_logs import Columns, before_and_after, columns_of
from etude.tasks.control.cartpole import cartpole

STEPS, STAGES, SIZE = 20_000, 8, 20_000
"""Of the online run; how many of its stages are looked at; steps of each kind of data."""
CHANCES, EPSILON = 0.8, 0.2
"""The share of mixed data that is chance's, and how often noisy data have any choice."""
UPDATES, PLAYED = 4_000, 20
"""Of each method on each kind, and episodes that are played at the end."""
SIZES = {"network.hidden": (64, 64), "learning.optimizer.lr": 1e-3}
ALLOWED = ("constant-rewards", "one-step-episodes", "duplicate-episodes")
"""Every step pays 1 here, and who holds the pole in the same way has the same episode."""
KINDS = ("random", "expert", "mixed", "noisy", "replay")
VALUES, CLONING, HELD = ASKED = ("dqn", "bc-discrete", "cql-discrete")
SCORE, BOTH, APART = "score over five kinds", "score on mixed and noisy data", "SACo beyond the expert's"
BY_COVERAGE, BY_QUALITY = "r of DQN's score with SACo", "r of cloning's score with TQ"


class Slice(NamedTuple):
    """A seed's part of the study."""

    seed: int
    methods: Sequence[str] = ASKED


# Data


def online(seed: int) -> tuple[Any, Columns]:
    """The policies of one member as they were at the best stage of DQN, and all that it did on its way."""
    from etude.core.population import Member
    from etude.evaluation.control import play
    from etude.evaluation.restored import RestoredPolicies
    from etude.evaluation.restored import Spaces as Between
    from etude.loops.off_policy import BLOCK, OffPolicyLoop

    method: Any = get_method("dqn")
    loop = OffPolicyLoop(
        set_values(method, {"critic.network.hidden": (64, 64)}), cartpole, [Member(seed)], STEPS // BLOCK
    )
    most, best = -np.inf, loop.actor
    for _ in range(STAGES):
        for _ in range(loop.steps // STAGES):
            loop.step()
        earned = float(play(loop, cartpole, PLAYED, deterministic=True).mean())
        if earned >= most:
            most, best = earned, copy.deepcopy(loop.actor)
    seen, done = loop.environment.observation_space, loop.environment.action_space
    policies = RestoredPolicies(method, cartpole, loop.population, best, Between(seen, done))
    rows = loop.collector.store.grid[0, : loop.collector.store.size].numpy()
    found = dict(raw_of_rows(Path("online"), rows, np.array([0]), Spaces(seen, done, cartpole.id)).columns)
    found["timeouts"][-1] |= ~found["terminals"][-1]
    return policies, found


def five_kinds(seed: int) -> dict[str, Columns]:
    """Chance, the best policy, mostly chance beside the best, the best that now and then slips, and the online run."""
    from etude.evaluation.behaviours import AnyAction, Behaviour, TrainedSampling
    from etude.evaluation.recording import record

    policies, replay = online(seed)
    chance, expert = AnyAction(policies.environment.action_space), TrainedSampling(policies, "expert", 0.0)

    def acted(behaviour: Behaviour, kind: str, steps: int) -> Columns:
        return columns_of(record(behaviour, cartpole, seed, kind, steps=steps))

    many = round(CHANCES * SIZE)
    halves = acted(chance, "mixed, chance", many), acted(expert, "mixed, expert", SIZE - many)
    return {
        "random": acted(chance, "random", SIZE), "expert": acted(expert, "expert", SIZE),
        "mixed": {name: np.concatenate([half[name] for half in halves]) for name in replay},
        "noisy": acted(TrainedSampling(policies, "noisy", EPSILON), "noisy", SIZE), "replay": replay,
    }  # fmt: skip


def mean_return(columns: Columns) -> float:
    """Of whole episodes.

    >>> ends = {"terminals": np.array([False, True, False]), "timeouts": np.array([False, False, True])}
    >>> mean_return({"rewards": np.array([1.0, 2.0, 5.0]), **ends})
    4.0
    """
    ends = np.flatnonzero(columns["terminals"] | columns["timeouts"])
    return float(np.diff(np.cumsum(columns["rewards"], dtype=np.float64)[ends], prepend=0.0).mean())


def covered(data: Mapping[str, Columns], reference: str) -> dict[str, float]:
    """SACo of each, by one of them."""
    numbers = {kind: (c["observations"], c["actions"][:, None].astype(np.float64)) for kind, c in data.items()}
    low, high = data_measures.limits(*numbers[reference])
    unique = {kind: len(data_measures.pairs(*both, low, high)) for kind, both in numbers.items()}
    return {kind: u / unique[reference] for kind, u in unique.items()}


# What is learned from them


def on_common_ground(name: str) -> Method:
    """A method of choices as the study has all of them, in the sizes of a small task."""
    ground: Any = get_method("tq-saco")
    method: Any = get_method(name)
    learns = "policy" if method.critic is None else "critic"
    changes: dict[str, Any] = {f"{learns}.{field}": value for field, value in SIZES.items()}
    changes[f"{learns}.learning.optimizer.clip_norm"] = None
    if getattr(method, learns).learning.target is not None:
        changes["critic.learning.target.every"] = ground.critic.learning.target.every
    return set_values(method.replace(experience=Logged(), exploration=None, sampling=ground.sampling), changes)


def slice_of(part: Slice) -> dict[str, Any]:
    """TQ and SACo of each kind, and each method's scores there, 0 of chance and 1 of the best policy found online."""
    matters = [
        [on_common_ground(name).to_json() for name in part.methods], get_method("dqn").to_json(), STEPS, STAGES, SIZE,
        CHANCES, EPSILON, UPDATES, PLAYED,
    ]  # fmt: skip
    return recorded(f"tq-saco-{part.seed}", matters, lambda: _learned(part))


def _learned(part: Slice) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    data = five_kinds(part.seed)
    ends = {kind: mean_return(columns) for kind, columns in data.items()}

    def score(earned: float) -> float:
        return data_measures.trajectory_quality(earned, ends["random"], ends["expert"])

    def scores(name: str, kind: str) -> list[float]:
        method = on_common_ground(name)
        found = before_and_after(method, data[kind], cartpole, part.seed, UPDATES, PLAYED, ALLOWED)
        return [score(earned) for earned in found]

    return {
        "tq": {kind: score(earned) for kind, earned in ends.items()}, "saco": covered(data, "replay"),
        "scores": {name: {kind: scores(name, kind) for kind in KINDS} for name in part.methods},
    }  # fmt: skip


# The claim


def correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Pearson's r; 0 where one of them is always the same.

    >>> round(correlation([1.0, 2.0, 3.0], [2.0, 4.0, 9.0]), 4), correlation([1.0, 2.0], [5.0, 5.0])
    (0.9707, 0.0)
    """
    x, y = (np.asarray(z, float) - np.mean(z) for z in (first, second))
    norm = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / norm if norm > 0 else 0.0


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Of each seed's five data sets: who earns how much, and by which of the two numbers it goes."""
    each = [_measures(found) for found in spread(slice_of, [Slice(seed) for seed in seeds])]
    arm, baseline, start = ({name: [m[k][name] for m in each] for name in each[0][k]} for k in range(3))
    budget = [float(UPDATES)] * len(seeds)
    return pairs(seeds, arm, baseline, start=start, budgets={"updates": (budget, budget)})


def _measures(found: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Of a slice: the arm, the baseline, and the baseline before it learned."""
    tq, saco = ([found[name][kind] for kind in KINDS] for name in ("tq", "saco"))
    after = {name: [each[kind][1] for kind in KINDS] for name, each in found["scores"].items()}
    other = max((VALUES, CLONING), key=lambda name: np.mean(after[name]))  # the better of both on these data
    both = [KINDS.index(kind) for kind in ("mixed", "noisy")]

    def mean(name: str, kinds: Sequence[int] = range(len(KINDS)), when: int = 1) -> float:
        return float(np.mean([found["scores"][name][KINDS[k]][when] for k in kinds]))

    values, cloning = after[VALUES], after[CLONING]
    arm = {
        SCORE: mean(HELD), BOTH: mean(HELD, both), BY_COVERAGE: correlation(values, saco),
        BY_QUALITY: correlation(cloning, tq), APART: found["saco"]["random"] - found["saco"]["expert"],
    }  # fmt: skip
    baseline = {
        SCORE: mean(other), BOTH: max(mean(VALUES, both), mean(CLONING, both)),
        BY_COVERAGE: correlation(cloning, saco), BY_QUALITY: correlation(values, tq),
    }  # fmt: skip
    return arm, baseline, {SCORE: mean(other, when=0)}

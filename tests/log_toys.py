"""Logs of a pendulum, small methods that learn from them, and every such method: what tests of several rooms share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from etude.core.edit import set_values
from etude.experience.logged import Logged
from etude.experience.logs.table import Logs, Spaces
from etude.methods.offline.guda import AnyWay, Segments, Symmetries
from etude.stages.handover import Handover
from etude.tasks.control.cartpole import CartPoleArrays, cartpole
from etude.tasks.control.logged import LoggedTask
from etude.tasks.control.pendulum import PendulumArrays, pendulum
from replay_toys import KIND, acts_in_boxes, narrow

OFFLINE = {n: m for n, m in KIND.items() if m.experience is not None and not (m.experience.acts or m.stages)}
"""Every method that learns from logs alone."""
ONWARD = {n: m for n, m in KIND.items() if m.experience is not None and m.experience.reads_logs and n not in OFFLINE}
"""Every method that learns from logs and from what it does."""
Columns = dict[str, Any]


def pendulum_columns(episodes: int = 4, length: int = 200, seed: int = 0, following: bool = False) -> Columns:
    """What chance did, in episodes of at most 200 steps that a limit ends."""
    rng, environment = np.random.default_rng(seed), PendulumArrays([seed], episodes, "logs")
    seen, rows = environment.reset()[0], []
    for t in range(length):
        actions = rng.uniform(-2, 2, (episodes, 1)).astype(np.float32)
        step = environment.step(actions[None])
        led = step.observations[0]
        if step.final is not None:
            led = step.final
        rows.append((seen, actions, step.rewards[0], np.zeros(episodes), np.full(episodes, t == length - 1), led))
        seen = step.observations[0]
    return _columns(rows, following)


def cartpole_columns(steps: int = 300, seed: int = 0, following: bool = True) -> Columns:
    """What chance did; episodes terminate, and the last is cut."""
    rng, environment = np.random.default_rng(seed), CartPoleArrays([seed], 1, "logs")
    seen, rows = environment.reset()[0], []
    for t in range(steps):
        actions = rng.integers(0, 2, (1, 1))
        step = environment.step(actions[None].astype(np.float32))
        led = step.observations[0] if step.final is None else step.final
        cut = step.truncated[0] | (~step.terminated[0] & (t == steps - 1))
        rows.append((seen, actions, step.rewards[0], step.terminated[0], cut, led))
        seen = step.observations[0]
    found = _columns(rows, following)
    found["actions"] = found["actions"][:, 0].astype(np.int64)
    return found


def _columns(rows: list[Any], following: bool) -> Columns:
    """One episode after another."""
    names = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    found = {k: np.concatenate(np.stack(x, 1)) for k, x in zip(names, zip(*rows, strict=True), strict=True)}
    found |= {k: found[k].astype(bool) for k in ("terminals", "timeouts")}
    return found if following else {k: v for k, v in found.items() if k != "next_observations"}


def written(path: Path, columns: Columns) -> Path:
    """The columns as a `.npz` file."""
    np.savez(path, **columns)
    return path


def logged_task(folder: Path, boxes: bool = True) -> LoggedTask:
    """Logs of a pendulum, or of a cart and its pole, with the environment."""
    folder.mkdir(parents=True, exist_ok=True)
    if boxes:
        return LoggedTask(data=str(written(folder / "swing.npz", pendulum_columns())), environment=pendulum)
    columns = cartpole_columns()
    path = written(folder / "pole.npz", columns)
    return LoggedTask(data=str(path), environment=cartpole, allow=("constant-rewards",))


class Mirrored(Symmetries):
    """A pendulum in a mirror: as true as the pendulum."""

    def moved(self, segments: Segments, rng: np.random.Generator) -> tuple[Segments, Any]:
        mirror = np.array([1.0, -1.0, -1.0], np.float32)
        found = segments._replace(seen=segments.seen * mirror, led=segments.led * mirror, done=-segments.done)
        return found, np.ones(len(found.there), bool)


MIRRORED = {"symmetries": Mirrored(), "guide": AnyWay(), "rows": 60}
"""What fits the logs here in the place of a maze's symmetries."""
PAIRED = {"pairs": 2, "length": 3}
"""Few steps of few pairs of segments."""
MODELLED = {"ensemble": 2, "hidden": (8,), "updates": 5}
SMALLER: dict[str, dict[str, Any]] = {"augment": MIRRORED, "rewards-from-preferences": MODELLED}
"""What transforms are made smaller by."""


def small_logged(name: str) -> Any:
    """The method with networks of 8 and 5 and batches of 6."""
    method: Any = OFFLINE[name]
    parts = {
        k: narrow(getattr(method, k), 8, 5) for k in ("policy", "critic", "value") if getattr(method, k) is not None
    }
    parts["learners"] = tuple(narrow(part, 8, 5) for part in method.learners)
    parts["transforms"] = tuple(part.replace(**SMALLER.get(part.name, {})) for part in method.transforms)
    sampling = method.sampling.replace(**{"batch": 6, **(PAIRED if method.sampling.name == "segment-pairs" else {})})
    return method.replace(**parts, sampling=sampling, experience=Logged())


def small_onward(name: str, **changes: Any) -> Any:
    """The method with networks of 8 and 5, batches of 6, a ring of 60 rows, and updates after 10 of its own steps."""
    method: Any = ONWARD[name]
    parts = {k: narrow(getattr(method, k), 8, 5) for k in ("policy", "critic")}
    parts["learners"] = tuple(narrow(part, 8, 5) for part in method.learners)
    if method.value is not None:
        parts["value"] = narrow(method.value, 8, 5)
    own = {"warmup": 10, "capacity": 60}
    parts["stages"] = tuple(
        part.replace(**own) if isinstance(part, Handover) else part.replace(end=0.5) for part in method.stages
    )
    found = method.replace(**parts, sampling=method.sampling.replace(batch=6))
    if not method.stages:
        often = {"experience.updates": 2.0, "policy.learning.every": 2, "learners.temperature.learning.every": 2}
        found = set_values(found.replace(experience=method.experience.replace(random=5, **own)), often)
    return found.replace(**changes)


def in_boxes(name: str) -> bool:
    """Whether its actions are numbers."""
    return acts_in_boxes(OFFLINE[name])


def random_logs(rows: int = 400, seed: int = 0, discrete: bool = False) -> Logs:
    """Rows of chance in episodes of 20, half of which terminate: three numbers are seen, two done or one of two."""
    rng = np.random.default_rng(seed)
    spaces: Any = Discrete(2) if discrete else Box(-1.0, 1.0, (2,))
    ends = np.arange(rows) % 20 == 19
    done = rng.integers(0, 2, (rows, 1)) if discrete else rng.uniform(-1, 1, (rows, 2))
    return Logs(
        Path("rows"), Spaces(Box(-9.0, 9.0, (3,)), spaces, "me"), rng.normal(2, 3, (rows, 3)).astype(np.float32),
        done.astype(np.float32), rng.normal(size=rows).astype(np.float32), ends & (rng.random(rows) < 0.5), ends,
        rng.normal(-1, 5, (rows, 3)).astype(np.float32),
    )  # fmt: skip

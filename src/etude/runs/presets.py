"""Settings that are known to work for a method on a task: `configurations/<method>/<task>.toml`.

Such a file says what `run.toml` says, where the settings come from, and what they came to:

    method = "ppo"
    task = "LunarLander-v3"
    steps = 500_000
    source = "where the settings come from, in words"

    [set]                                # as in run.toml; never fields of the task
    "advantages.gamma" = 0.999

    [score]                              # measured by the ordinary command; left out where nobody has, which is said
    command = "etude train ppo --task LunarLander-v3 --seeds 5"
    seeds = 5
    steps = 500_000                      # environment steps of each
    episodes = 20                        # of each, after training
    processor = "..."

    [score.metrics."return/deterministic"]   # interquartile mean over seeds, its 95% interval, each seed's mean
    value = 251.3
    low = 240.1
    high = 262.0
    members = [...]

`etude train` begins with them where the method and the task are exactly these; whatever else it is told wins.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Count
from etude.core.registry import ROOT, files, get_method
from etude.runs.code import text_hash
from etude.runs.config import checked
from etude.runs.recipes import made
from etude.runs.training import compose_method

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.core.task import Task
    from etude.core.worlds import World

PLACES = (ROOT / "configurations", ROOT.parent.parent / "configurations")
"""Where presets are: inside an installed package, or beside the source."""
TOLD = ("method", "task", "steps", "with", "set")
"""What a preset may say of what a run is told."""
KEYS = (*TOLD, "source", "score")
ALIKE = frozenset({"backend", "workers", "step_timeout", "bounds"})
"""Fields of a task that say how its environments are stepped, and not which they are."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What was measured of one metric: the interquartile mean over seeds, its 95% interval, every seed's mean."""

    value: float
    low: float
    high: float
    members: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Score:
    """What the settings came to.

    Args:
        command: what was run.
        steps: environment steps (of language training steps) of each seed.
        episodes: of each seed, after training.
        processor: its name.
        metrics: by name, as `evaluation.json` has them.
        note: what else to know, as by how much a known score was missed.
    """

    command: str
    seeds: Count
    steps: Count
    episodes: Count
    processor: str
    metrics: Mapping[str, Metric]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A file of settings, read.

    Args:
        name: 'ppo/LunarLander-v3'.
        source: where the settings come from.
        set, parts: assignments, and parts to stack, as `etude train` takes them.
        fingerprint: of all that a run takes from it.
    """

    name: str
    method: str
    task: str
    source: str
    steps: Count
    set: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    score: Score | None = None
    fingerprint: str = field(default="", compare=False)

    def onto(self, world: World) -> Method:
        """Its method with its settings, in a world."""
        return compose_method(self.method, self.set, self.parts, None, world)

    def record(self, world: World) -> dict[str, Any]:
        """What `method.json` says of it: which one it was, and what it changed, {path: [from, to]}."""
        changed = self.onto(world).diff(get_method(self.method, world))
        changes = {path: [_plain(old), _plain(new)] for path, (old, new) in changed.items()}
        return {"name": self.name, "fingerprint": self.fingerprint, "changes": changes}

    def sentence(self, steps: bool) -> str:
        """For the terminal; `steps`: whether the run takes as many as the preset."""
        said = ", ".join([*self.parts, *self.set]) or "the method's own settings"
        many = f", {self.steps:,} steps" if steps else ""
        score = "" if self.score else " Its score is not measured yet."
        return f"Preset {self.name}{many}: {said}. What you set wins; --no-preset leaves it out.{score}"


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


@cache
def presets() -> dict[str, Path]:
    """Every preset, by method and task: 'ppo/LunarLander-v3'."""
    return {
        path.relative_to(place).with_suffix("").as_posix(): path
        for place in PLACES
        for path in sorted(place.rglob("*.toml"))
    }


def load_preset(name: str) -> Preset:
    """The preset called `name`, or at the path of a file.

    Raises: UnknownNameError with the nearest names, for presets and for keys of a file; ConfigError for a value that
    does not fit.
    """
    path = Path(name) if name.endswith(".toml") else presets().get(name)
    if path is None:
        raise UnknownNameError("preset", name, presets(), "`etude methods show METHOD` lists a method's.")
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"There is no preset {path}.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}.") from None
    for key in said:
        if key not in KEYS:
            raise UnknownNameError(f"key of {path}", key, KEYS, f"There are: {', '.join(KEYS)}.")
    told = checked(path, {k: v for k, v in said.items() if k in TOLD})
    settings, parts = tuple(told.get("set", ())), tuple(told.get("with", ()))
    if lost := [item for item in settings if item.partition(".")[0] in ("task", "adapter")]:
        raise ConfigError(f"{path} sets {lost[0]}: a preset sets fields of its method, for the task as it is named.")
    own = {k: v for k, v in said.items() if k not in ("with", "set", "score")}
    own |= {"score": _score(path, said["score"])} if "score" in said else {}
    mark = text_hash(repr((own.get("steps"), settings, parts)))
    label = f"{own.get('method')}/{own.get('task')}"
    return made(Preset, str(path), {**own, "name": label, "set": settings, "parts": parts, "fingerprint": mark})


def _score(path: Path, table: Mapping[str, Any]) -> Score:
    where = f"{path}, [score]"
    found = made(Score, where, {"metrics": {}, **table})
    tables: Mapping[str, Any] = table.get("metrics", {})
    metrics = {name: made(Metric, f"{where}, {name}", each) for name, each in tables.items()}
    if uneven := [name for name, each in metrics.items() if len(each.members) != found.seeds]:
        raise ConfigError(f"{where}: {uneven[0]} must have {found.seeds} members, one for each seed.")
    return made(Score, where, {**table, "metrics": metrics})


def of_method(method: str) -> list[Preset]:
    """Those of a method, by task."""
    return [load_preset(name) for name in presets() if name.partition("/")[0] == method]


def of_task(task: Task) -> list[Preset]:
    """Those of a task, by method."""
    found = (load_preset(name) for name in presets() if name.partition("/")[2] == task.id)
    return [preset for preset in found if is_for(preset, task)]


def preset_of(method: object, task: Task, reward: object = None) -> Preset | None:
    """The preset of a built-in method, by its name, on a task that may differ from it (`is_for`).

    With a reward function of the user's own the task is another.
    """
    name = f"{method}/{task.id}"
    known = isinstance(method, str) and method in files("methods") and name in presets() and reward is None
    return load_preset(name) if known else None


def is_for(preset: Preset, task: Task) -> bool:
    """Whether a task is the one that the preset was made for: with other fields it is another."""
    from etude.tasks import resolve_task

    known = resolve_task(preset.task)
    return type(task) is type(known) and all(
        value == known.fields()[name] for name, value in task.fields().items() if name not in ALIKE
    )


def beside(preset: Preset, fields: Sequence[str]) -> list[str]:
    """What a preset sets that these assignments do not set anew.

    >>> beside(Preset(name="", method="", task="", source="", steps=1, set=("epochs=4", "minibatches=2")), ["epochs=1"])
    ['minibatches=2']
    """
    said = {item.partition("=")[0] for item in fields}
    return [item for item in preset.set if item.partition("=")[0] not in said]


def other_fields(preset: Preset) -> str:
    """Why a preset is left out of a run on a task of its name."""
    return f"The preset {preset.name} is for that task as it is: with other fields it is another, and begins without."


def for_all(arms: Sequence[str], task: Task, reward: object = None) -> tuple[dict[str, Preset], str]:
    """The preset of each arm ('ppo+parts'), or none at all, and a sentence that says so."""
    found = {arm: preset_of(arm.partition("+")[0], task, reward) for arm in arms}
    fitting = {arm: each for arm, each in found.items() if each is not None and is_for(each, task)}
    if lacking := [arm for arm in arms if arm not in fitting]:
        return {}, f"There is no preset of {' and '.join(lacking)} for this task: all are trained as published."
    return fitting, f"Presets: {', '.join(dict.fromkeys(each.name for each in fitting.values()))}."

"""Data made here: chance, a policy that is trained or a controller act, and whole episodes of them are recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.core.control import ControlTask
from etude.core.errors import ConfigError, DataError, UnknownNameError
from etude.core.fields import Count, Probability, WholeNumber, check
from etude.core.kinds import ReplayMethod
from etude.core.registry import get_method
from etude.core.worlds import World
from etude.evaluation.behaviours import AnyAction, Behaviour, NoisyController, TrainedSampling, Wanderer
from etude.evaluation.data_measures import trajectory_quality
from etude.evaluation.recording import record
from etude.experience.logs.faults import faults
from etude.experience.logs.reading import open_logs, read
from etude.experience.logs.steps import choices_of, steps_of
from etude.experience.logs.table import Spaces
from etude.experience.logs.writing import LoggedEpisode, import_h5py, write_minari
from etude.runs.training import compose_task, of, of_method, say
from etude.runtime import disk
from etude.tasks.control.logged import spaces_of

LEVELS = ("random", "medium", "expert", "replay", "mixed")
MORE = ("medium-expert", "undirected")
"""Those that are made where they are asked for."""
RUNGS = 20
"""How many stages of a behaviour are looked at, from its start to its end."""
SCORED, COMPARED = 40, 200
"""Episodes that say how good a stage is; and what 0 and 100 are."""
SURE = 3.0
"""Standard errors that the expert returns more than chance, at least."""
THIRD = 100 / 3
"""The score at which a behaviour is medium."""
EPSILON = 0.05
"""How often a policy that makes choices makes any, while it is recorded."""


@dataclass(frozen=True)
class DataRecipe:
    """What data is made of; two of the same make the same arrays.

    Args:
        task: and `fields` of it, as in 'task.dense=true'.
        behaviour: 'sac', 'dqn' or another method that acts and learns from a replay; 'controller': the task's own.
        method_fields: of that method. steps: environment steps that it is trained for. None of a controller.
        size: steps of a level at least, in whole episodes. seed: of everything.
        epsilon: of a controller that is the expert, and of policies that make choices: how often they do anything. None
            of policies that act by chance anyway.
    """

    task: str
    behaviour: str
    fields: tuple[str, ...] = ()
    method_fields: tuple[str, ...] = ()
    steps: int | None = None
    size: int = 20_000
    seed: int = 0
    epsilon: float | None = None


@dataclass(frozen=True)
class MadeData:
    """What was made.

    Args:
        discrete: whether actions are choices.
        returns: mean returns that scores 0 (chance) and 100 (the expert) stand for, if there is an expert.
        levels: of each level its mean return, score, episodes, steps, fingerprint, who acted, and the faults that its
            reader has to be allowed (`--set task.allow=`).
    """

    folder: Path
    task: str
    discrete: bool
    returns: dict[str, float]
    levels: dict[str, dict[str, Any]]


def make_data(
    task: str, *, levels: str | Sequence[str] = LEVELS, out: str | Path, size: int = 20_000, steps: int | None = None,
    behaviour: str = "auto", epsilon: float | None = None, seed: int = 0, set: str | Sequence[str] = (),
    quiet: bool = False,
) -> MadeData:  # fmt: skip
    """Record data of a task in Minari's format, a folder for each level, with the behaviour's log-probabilities.

    `random`: every action as likely as another. `expert`: the best of twenty stages of the behaviour, which scores 100.
    `medium`: the first stage that scores a third of that. `replay`: as many episodes of every stage up to medium.
    `mixed`: half of the steps chance's, half the expert's; `medium-expert`: half medium's, half the expert's.
    `undirected`: who goes to one place after another, whatever the task pays for, where the task knows the ways.

    Stages are checkpoints of a training run in `out/behaviour`, or a controller that does anything more and more
    rarely. The same call goes on where it stopped, and adds levels.

    Args:
        task: a name (`etude tasks`) or an environment.
        levels: of these; without the last two unless they are named.
        out: the folder.
        size: steps of each level at least, in whole episodes.
        steps: environment steps that a method is trained for; None: the task's.
        behaviour: 'auto': the task's controller where it has one, else sac, or dqn of choices.
        epsilon: how often the expert of a controller, or a policy that makes choices, does anything; None: 0.05.
        seed: of everything.
        set: fields of the task (task.dense=true) and of the method.

    Raises: EtudeError, a sentence that says what was wrong and what to do.
    """
    import_h5py()
    wanted = levels.split(",") if isinstance(levels, str) else list(levels)
    for level in wanted:
        if level not in (known := (*LEVELS, *MORE)):
            raise UnknownNameError("level", level, known, f"There are: {', '.join(known)}.")
    fields = (set,) if isinstance(set, str) else tuple(set)
    made = compose_task(task, of("task", fields))
    if not isinstance(made, ControlTask):
        raise ConfigError(f"Data is made of tasks of control, and {made.id} is none.")
    if "undirected" in wanted and made.ways() is None:
        raise ConfigError(
            f"{made.id} knows no ways to places of one's own: leave out undirected, or take a point maze."
        )
    size, seed = check("size", Count, size), check("seed", WholeNumber, seed)
    steps, epsilon = check("steps", Count | None, steps), check("epsilon", Probability | None, epsilon)
    recipe = _recipe(made, _behaviour(behaviour, made), fields, steps, epsilon, size, seed)
    return _Maker(recipe, made, Path(out), quiet).made(wanted)


def _recipe(
    task: ControlTask, behaviour: str, fields: Sequence[str], steps: int | None, epsilon: float | None, size: int,
    seed: int,
) -> DataRecipe:  # fmt: skip
    """With what was left open. Raises ConfigError for what this behaviour does not read."""
    method_fields, of_controller = tuple(of_method(fields)), behaviour == "controller"
    if of_controller and (steps is not None or method_fields):
        raise ConfigError(f"The controller of {task.id} is not trained: leave out --steps and fields of methods.")
    chance = not of_controller and not choices_of(spaces_of(task).action_space)
    if chance and epsilon is not None:
        raise ConfigError(f"{behaviour} acts in numbers, which --epsilon does not change: leave it out.")
    return DataRecipe(
        task.id, behaviour, tuple(of("task", fields)), method_fields, None if of_controller else steps or task.steps,
        size, seed, None if chance else EPSILON if epsilon is None else epsilon,
    )  # fmt: skip


def _behaviour(name: str, task: ControlTask) -> str:
    """Who acts, where 'auto' leaves that open. Raises ConfigError for a controller that is not there."""
    there = task.controller() is not None
    if name == "auto":
        return "controller" if there else "dqn" if choices_of(spaces_of(task).action_space) else "sac"
    if name == "controller":
        if not there:
            raise ConfigError(f"{task.id} has no controller: leave --behaviour out, or name a method.")
        return name
    method: Any = get_method(name, World.CONTROL)
    if not isinstance(method, ReplayMethod) or not method.slots()["experience"].acts:
        raise ConfigError(f"Data is made by methods that act and learn from a replay (sac, dqn), and {name} is none.")
    return name


class _Maker:
    """Who makes data as a recipe says, in a folder that may have some of it already."""

    def __init__(self, recipe: DataRecipe, task: ControlTask, out: Path, quiet: bool) -> None:
        self.recipe, self.task, self.out, self.quiet, self.spaces = recipe, task, out, quiet, spaces_of(task)
        self.file, wanted = out / "recipe.json", json.loads(json.dumps(asdict(recipe)))
        self.known: dict[str, Any] = {"recipe": wanted, "returns": {}, "levels": {}}
        if self.file.is_file():
            self.known = json.loads(self.file.read_text())
        differs = [k for k, v in wanted.items() if self.known["recipe"].get(k) != v]
        if differs:
            each = "; ".join(f"{k} {self.known['recipe'].get(k)!r}, now {wanted[k]!r}" for k in differs)
            raise ConfigError(f"{out} was made by another recipe ({each}): give another --out.")
        self.stages: list[Behaviour] = []

    def made(self, levels: Sequence[str]) -> MadeData:
        """All of these levels; those that are there already stay."""
        missing = [level for level in levels if not self._there(level)]
        if missing:
            disk.make_folder(self.out)
            self._save()
        if any(level != "random" for level in missing):
            self._climb()
        for level in missing:
            self._record(level)
        return MadeData(
            self.out,
            self.task.id,
            choices_of(self.spaces.action_space),
            self.known["returns"],
            {k: self.known["levels"][k] for k in levels},
        )

    def _there(self, level: str) -> bool:
        return level in self.known["levels"] and (self.out / level / "data" / "metadata.json").is_file()

    def _save(self) -> None:
        disk.replace_file(self.file, (json.dumps(self.known, indent=1) + "\n").encode())

    # Who acts

    def _climb(self) -> None:
        """Every stage of the behaviour, and once which of them are medium and expert."""
        self.stages = self._controllers() if self.recipe.behaviour == "controller" else self._checkpoints()
        if "expert" in self.known:
            return
        say(f"How good {len(self.stages)} stages of the behaviour are, by {SCORED} episodes each.", self.quiet)
        scores = [float(self._returns(stage, "stage", SCORED).mean()) for stage in self.stages]
        best = max(range(len(scores)), key=lambda i: (scores[i], i))  # the last of those that are as good
        chance = self._returns(self._chance(), "chance", COMPARED)
        expert = self._returns(self.stages[best], "expert", COMPARED)
        low, high = float(chance.mean()), float(expert.mean())
        if high - low <= SURE * np.sqrt((chance.var() + expert.var()) / COMPARED):
            raise DataError(
                f"The behaviour did not learn: its best stage returns {high:.4g}, and chance {low:.4g}. Give it more "
                "--steps, or another --behaviour."
            )
        third = low + (high - low) * THIRD / 100
        medium = next((i for i, score in enumerate(scores) if score >= third), best)
        self.known |= {"expert": best, "medium": medium, "returns": {"chance": low, "expert": high}}
        self.known["stages"] = {s.label: round(score, 6) for s, score in zip(self.stages, scores)}
        self._save()

    def _returns(self, behaviour: Behaviour, purpose: str, episodes: int) -> NDArray[np.float64]:
        """Of so many episodes."""
        found = record(behaviour, self.task, self.recipe.seed, f"data {purpose}", episodes=episodes)
        return np.array([e.rewards.sum(dtype=np.float64) for e in found])

    def _chance(self) -> Behaviour:
        return AnyAction(self.spaces.action_space)

    def _controllers(self) -> list[Behaviour]:
        """A controller that does anything more and more rarely."""
        controller = self.task.controller()
        assert controller is not None
        shares = np.linspace(1.0, self.recipe.epsilon or 0.0, RUNGS + 1)
        return [NoisyController(controller, self.spaces.action_space, float(round(e, 6))) for e in shares]

    def _checkpoints(self) -> list[Behaviour]:
        """A method as it was trained, whose run is begun or gone on with if it is not there yet."""
        from etude.runs.worlds import control

        recipe, config = self.recipe, {"seed": self.recipe.seed, "seeds": 1, "population": ()}
        places = sorted((self._trained() / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
        policies = [control.restore(str(place), config, self.task) for place in places]
        labels = [f"{recipe.behaviour} {place.name}" for place in places]
        return [TrainedSampling(p, label, recipe.epsilon or 0.0) for p, label in zip(policies, labels)]

    def _trained(self) -> Path:
        """The folder of the finished run."""
        from etude.loops.off_policy import BLOCK
        from etude.runs.train import resume, train

        recipe, folder = self.recipe, self.out / "behaviour"
        assert recipe.steps is not None
        if (folder / "FINISHED").is_file():
            return folder
        if (folder / "config.json").is_file():
            resume(folder, quiet=self.quiet)
            return folder
        train(
            recipe.behaviour, recipe.task, set=[*recipe.method_fields, *recipe.fields],
            seed=recipe.seed, seeds=1, steps=recipe.steps, evaluate=0, keep=RUNGS + 2, out=str(folder),
            checkpoint_every=-(-recipe.steps // (BLOCK * RUNGS)), quiet=self.quiet,
        )  # fmt: skip
        return folder

    # What is recorded

    def _record(self, level: str) -> None:
        """A level, written, read back and noted."""
        say(f"Recording {level}: {self.recipe.size:,} steps at least.", self.quiet)
        sources = self._sources(level)
        episodes = list[LoggedEpisode]()
        for n, behaviour in enumerate(sources):
            share = -(-self.recipe.size // len(sources))
            episodes += record(behaviour, self.task, self.recipe.seed, f"data {level} {n}", steps=share)
        about = {
            "dataset_id": f"{self.task.id}/{level}-v0", "algorithm_name": self.recipe.behaviour,
            "recipe": json.dumps(asdict(self.recipe)), "behaviour_logp": "infos/behaviour_logp, natural logarithms of "
            "the chance of a choice or of the density of the action as it is recorded",
        }  # fmt: skip
        write_minari(self.out / level, episodes, self.spaces.observation_space, self.spaces.action_space, about)
        self.known["levels"][level] = self._facts(level, episodes)
        self._save()

    def _sources(self, level: str) -> list[Behaviour]:
        """Who acts in it, as many steps each."""
        if level == "random":
            return [self._chance()]
        if level == "undirected":
            ways = self.task.ways()
            assert ways is not None, "make_data has asked"
            return [Wanderer(ways, self.spaces.action_space, self.recipe.epsilon or 0.0)]
        expert, medium = self.stages[self.known["expert"]], self.stages[self.known["medium"]]
        up_to = self.stages[: self.known["medium"] + 1]
        return {
            "medium": [medium], "expert": [expert], "replay": up_to, "mixed": [self._chance(), expert],
            "medium-expert": [medium, expert],
        }[level]  # fmt: skip

    def _facts(self, level: str, episodes: Sequence[LoggedEpisode]) -> dict[str, Any]:
        """How good what was recorded is, and what it is known by."""
        allowed = _meant(self.out / level, self.spaces)
        logs = open_logs(self.out / level, allow=allowed, spaces=self.spaces)
        returns, ends = float(logs.returns.mean()), self.known["returns"]
        score = 100 * trajectory_quality(returns, ends["chance"], ends["expert"]) if ends else None
        return {
            "return": returns, "score": score, "episodes": logs.episodes, "steps": logs.rows,
            "fingerprint": logs.fingerprint, "behaviours": list(dict.fromkeys(e.behaviour for e in episodes)),
            "allow": allowed,
        }  # fmt: skip


def _meant(folder: Path, spaces: Spaces) -> list[str]:
    """Faults of logs that a reader may be allowed, by name: an environment whose every step pays the same, say."""
    steps = steps_of(read(folder, "", None), choices_of(spaces.action_space), None)
    return sorted({fault.meant for fault in faults(steps, spaces) if fault.meant})

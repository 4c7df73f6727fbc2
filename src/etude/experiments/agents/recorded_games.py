"""What is learned from recorded games without playing them: the games, the ways to learn from them, and their score."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from etude.core.kinds import TokenMethod
from etude.evaluation.data_measures import gym_score
from etude.experience.dialogues import counted, read_dialogues
from etude.experiments.arms import START, Trained, Training, run, variant
from etude.experiments.cells import folder_name, model_folder
from etude.runtime import disk
from etude.stages.dialogues import RecordScript
from etude.tasks.agents._dialogues import Dialogues
from etude.tasks.agents.games import TurnTask
from etude.tasks.agents.text_maze import TextMaze
from etude.tasks.agents.wordle import Wordle

MODEL, GAMES, STEPS, TESTED, BEST = "tiny-agent", 2000, 150, 200, 0.1
CHANGES = {"problems": 32, "optimizer.lr": 1e-3}
MAZE = TextMaze(size=4, max_turns=12, cost=0.1, slips=0.8)
WALLS = MAZE.replace(seen="walls")
WORDS = Wordle(words=24, letters=3, cost=0.1, slips=0.8)


@dataclass(frozen=True)
class Games:
    """Recorded games.

    Args:
        file: of the dialogues. returns: least, mean and highest of theirs.
    """

    task: TurnTask
    file: str
    returns: Mapping[str, float]

    def score(self, trained: Trained) -> float:
        """LMRL Gym's, of what a run returned in the end."""
        low, mean, high = (self.returns[k] for k in ("least", "mean", "most"))
        return gym_score(float(trained.rewards.mean()), low, mean, high)

    def train(self, label: str, method: TokenMethod, seed: int, top: float = 1.0) -> Training:
        """A run that learns from them."""
        task = Dialogues(data=self.file, game=self.task, top=top)
        return Training(label, method, task, seed, STEPS, MODEL, problems=TESTED, samples=1)


@contextmanager
def recorded_games(task: TurnTask, count: int = GAMES) -> Iterator[Games]:
    """Games as the task's script plays them, in a file for as long as they are needed."""
    with model_folder(folder_name(f"games-{task.id}", [repr(task), count])) as folder:
        file = Path(folder) / "games.jsonl"
        if not file.is_file():
            pool = task.problems("train")
            rows = RecordScript(called="games").rows([pool[i] for i in range(count)], task, START)
            disk.make_folder(file.parent)
            disk.replace_file(file, "".join(json.dumps(row) + "\n" for row in rows).encode())
        yield Games(task, str(file), counted(read_dialogues(file))["returns"])


def methods(names: Iterable[str]) -> dict[str, tuple[TokenMethod, float]]:
    """How each learns, and from which share of the games: 'bc' from all, 'filtered' from the best tenth."""
    known: dict[str, tuple[str, float]] = {"bc": ("sft", 1.0), "filtered": ("sft", BEST)}
    found = {}
    for name in names:
        method, top = known.get(name, (name, 1.0))
        found[name] = variant(method, CHANGES), top
    return found


def learned(games: Games, arms: Sequence[str], seeds: Sequence[int]) -> dict[str, list[Trained]]:
    """Every arm with each seed."""
    each = methods(arms)
    return run(games.train(name, method, seed, top) for seed in seeds for name, (method, top) in each.items())


def scores(games: Games, found: Mapping[str, Sequence[Trained]]) -> dict[str, list[float]]:
    """The normalised score of every run, by arm."""
    return {name: [games.score(one) for one in runs] for name, runs in found.items()}

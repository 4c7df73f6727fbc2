"""Views, two players with two models, a replay of turns and a sandbox in one run, killed at changes to the disk."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
from test_replay_kills import outcome
from test_runtime_kill import killed, operations
from toyloop import open_folder

from etude.core.episodes import Episode, Problem
from etude.core.registry import get_method
from etude.core.slots import Context, Reward
from etude.experience.groups import Groups
from etude.experience.roles import OwnWeights, Plays
from etude.experience.turn_replay import TurnReplay
from etude.experience.views import LastTurns
from etude.loops.language import LanguageLoop
from etude.optimizers.adam import AdamW
from etude.runtime import checkpoints, environment, round_trip
from etude.runtime.progress import Progress
from etude.runtime.run import Run
from etude.runtime.sandbox.limits import Limits, Program
from etude.runtime.sandbox.pool import Pool
from etude.tasks.agents.signals import Signals
from language_toys import make_loop
from sandboxes import needs_sandbox

pytestmark = [pytest.mark.usefixtures("one_thread", "still_clock"), needs_sandbox]
BEGUN, STEPS = 1, 2
KILLS = 4
"""How often it is killed, at changes as far from each other as can be: each takes a run that goes on."""


def said(episode: Episode) -> str:
    """What the player said in all its turns."""
    return "".join(s.text for s in episode.segments if s.role == "assistant")


class Printed(Reward):
    """A program in the sandbox says what an episode is worth: a hundredth of the letters in it."""

    pools: ClassVar[list[Pool]] = []
    ran: ClassVar[list[int]] = []

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        programs = [Program(f"print(sum(map(str.isalpha, {said(episode)!r})) / 100)") for episode in episodes]
        self.ran.append(len(programs))
        return [float(done.stdout) for done in self.pools[-1].run(programs)]


class Again(Groups):
    """Half of the problems are those of turns that are drawn from what was stored."""

    replay: TurnReplay = TurnReplay(capacity=6)

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        drawn = self.replay.draw(len(problems) // 2, context.stream.split("again").numpy)
        return super().collect([*(turn.problem for turn in drawn), *problems[len(drawn) :]], context)


def loop() -> LanguageLoop:
    grpo: Any = get_method("grpo")
    method = grpo.replace(
        experience=Again(size=2, view=LastTurns(turns=1)), problems=2, optimizer=AdamW(lr=1e-3),
        rewards=(*grpo.rewards, Printed()),
        roles=(Plays("sender"), Plays("receiver", weights=OwnWeights(called="ears"))),
    )  # fmt: skip
    return make_loop(method, Signals(rounds=2), steps=STEPS)


def go(path: Path, steps: int = STEPS) -> Any:
    with open_folder(path) as folder, closing(Pool(1, Limits())) as pool:
        Printed.pools[:] = [pool]
        progress = Progress(steps, quiet=True)
        return Run(folder, loop(), steps, checkpoint_every=1, keep=1, progress=progress).execute()


@pytest.mark.slow
def test_killed_with_views_players_a_replay_and_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = environment.record(0)
    monkeypatch.setattr(environment, "record", lambda seed: recorded)
    monkeypatch.setattr(round_trip, "room", lambda *_: False)
    go(tmp_path / "whole")
    whole = outcome(tmp_path / "whole")
    assert {"model/model.safetensors", "models/ears/model.safetensors", "state.safetensors"} <= whole.keys()
    assert sum(Printed.ran) >= 8 and any(x["reward/printed"] > 0 for x in whole["metrics"])
    go(tmp_path / "begun", BEGUN)
    names = operations(shutil.copytree(tmp_path / "begun", tmp_path / "count"), go)
    there = [at for at, name in enumerate(names, 1) if name != "sync"]  # where something changes
    for at in there[:: -(-len(there) // KILLS)]:
        path = shutil.copytree(tmp_path / "begun", tmp_path / str(at))
        assert killed(path, at, torn=True, run=go)
        assert not any(map(checkpoints.verify, checkpoints.steps(path / "checkpoints")))
        go(path)
        assert outcome(path) == whole, f"killed at operation {at}, {names[at - 1]}"
        shutil.rmtree(path)

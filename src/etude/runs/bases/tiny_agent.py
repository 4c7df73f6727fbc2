"""`tiny-agent`: a small Llama that has read mediocre games of every task of agents, one token for each word.

It learns what the player said, never what it was told. Players know the rules and the world, which is the same in every
game (facts, mazes, menus, lists of words), and slip often enough to win about every third game, more of long ones:

    api-world, menus, milestones, text-maze, keys   in a share of their turns they say anything that can be said
    wordle, number-hunt, attr-20q                   most guesses do not heed what was answered
    collect, tool-dsl                               three in ten, and three in five, answer too soon, leave something
                                                    out, or mistake it
    kb-search                                       chains of which most stop early, take another way or are guessed
    program-dsl                                     any features, model and size
    signals                                         any letter, told and guessed
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from etude.core.episodes import Problem, Segment
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.policies.word_tokenizer import build_word_tokenizer
from etude.runs.bases.base import Base
from etude.tasks.agents.api_world import APIWorld
from etude.tasks.agents.attr_20q import Attr20Q, scripted_episode
from etude.tasks.agents.collect import CollectValues
from etude.tasks.agents.games import TurnTask
from etude.tasks.agents.kb_search import KBSearch
from etude.tasks.agents.keys import Keys, walk
from etude.tasks.agents.mediocre import babbling, hurried, muddled, searching
from etude.tasks.agents.menus import Menus
from etude.tasks.agents.milestones import Milestones
from etude.tasks.agents.number_hunt import NumberHunt
from etude.tasks.agents.program_dsl import ProgramDSL
from etude.tasks.agents.signals import Signals
from etude.tasks.agents.text_maze import TextMaze
from etude.tasks.agents.tool_dsl import ToolDSL
from etude.tasks.agents.wordle import Wordle

if TYPE_CHECKING:
    from etude.evaluation.intervals import Interval

PROBLEMS = 128
"""Of each task, in the table."""
UNREAD = ("endgames", "mini-swe", "mini-swe-patch", "recommend", "tool-dialogue")
"""Tasks of agents that it has not read: their starts are taught by `sft`, those of programs and chess with words of
their own (`@code`, `@chess`, `@services`)."""
LOW, HIGH = 0.05, 0.5
"""Where pass@1 is meant to begin."""


class Games(NamedTuple):
    """Games of a task: what is shown of one, as one example or several, and how many there are."""

    task: LanguageTask
    play: Callable[[Problem, Stream], list[list[Segment]]]
    times: int


# What is shown


def games() -> list[Games]:
    """What is shown, task by task."""
    keys, hunt, collect, tools, signals = Keys(), NumberHunt(), CollectValues(), ToolDSL(), Signals()
    asked, told = Attr20Q(), [Attr20Q(hints=hints, max_turns=3) for hints in (4, 5, 6, 7)]
    return [
        *(Games(task, _one(task.script), count) for task, count in _turns()),
        Games(keys, _one(partial(walk, keys, slips=0.5)), 5_500),
        Games(hunt, _one(partial(searching, hunt, attention=0.8)), 1_500),
        Games(collect, _one(partial(hurried, collect, care=0.7)), 6_000),
        Games(tools, _one(lambda problem, stream: muddled(tools, problem, stream.numpy, care=0.4)), 5_000),
        Games(signals, lambda problem, stream: babbling(signals, problem, stream.numpy), 300),
        *(Games(task, _one(partial(_worked, task)), count) for task, count in _worked_out()),
        *(Games(t, _one(partial(scripted_episode, t, guessing=1.0, attention=1.0)), 750) for t in told),
        Games(asked, _one(partial(scripted_episode, asked, guessing=0.4, attention=0.6)), 5_000),
    ]


def _turns() -> list[tuple[TurnTask, int]]:
    return [
        (Milestones(slips=0.2), 7_000), (Menus(slips=0.3), 6_000), (TextMaze(slips=0.8), 3_000),
        (Wordle(attention=0.12), 3_500), (APIWorld(slips=0.2, hasty=0.8), 2_500),
    ]  # fmt: skip


def _worked_out() -> list[tuple[LanguageTask, int]]:
    return [(KBSearch(hops=(1, 2), proposals=0.1), 11_000), (ProgramDSL(clumsy=0.1), 1_000)]


def _one(play: Callable[[Problem, Stream], list[Segment]]) -> Callable[[Problem, Stream], list[list[Segment]]]:
    return lambda problem, stream: [play(problem, stream)]


def _worked(task: LanguageTask, problem: Problem, _: Stream) -> list[Segment]:
    return [Segment("user", str(problem.prompt)), Segment("assistant", str(task.demonstration(problem)))]


def examples(seed: int, scale: float = 1.0) -> Iterator[list[Segment]]:
    """The games of all tasks, in order. `scale` multiplies how many there are (60,000)."""
    for number, (task, play, count) in enumerate(games()):
        pool, stream = task.problems("train"), Stream(seed).split("games", task.id, number)
        for i in range(int(count * scale)):
            yield from play(pool[i % len(pool)], stream.split(i))


# What is said about it


def scores(folder: Path) -> dict[str, dict[str, Interval]]:
    """pass@1 and pass@8 on problems that were not shown, with 95 % intervals over problems."""
    from rich.progress import track

    from etude.runs.evaluate import evaluate

    tasks = dict.fromkeys(task.id for task, _, _ in games())
    return {
        id: evaluate(str(folder), id, k=(1, 8), problems=PROBLEMS, split="test")["test"]
        for id in track(sorted(tasks), "measuring tiny-agent")
    }


def outside(found: Mapping[str, Mapping[str, Interval]]) -> str:
    """Which tasks leave little to be found, or little to be learned: pass@1 below 0.05, above 0.5."""
    wrong = [id for id, score in found.items() if not LOW <= score["pass@1"].value <= HIGH]
    return f"Outside of {LOW} to {HIGH} at pass@1: {', '.join(wrong) or 'none'}."


def _said(found: Interval) -> str:
    return f"{found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


CARD = """# tiny-agent

The base model of etude's tasks of agents: a Llama with {parameters:,} parameters ({bytes:,} bytes in bfloat16) and a
tokenizer with one token for each word and tag (`blank:4x128x4@agents` has the same words and has read nothing).
It has read games of mediocre players; `runs/bases/tiny_agent.py` says which.

Made by

    etude pretrain tiny-agent

with seed {seed}: {steps:,} steps, {seconds:.0f} seconds of one core, final loss {loss:.4f} nats per token. The same
versions of torch and transformers on the same kind of processor give the same bytes.

The tasks as they are without settings, 128 problems of the split test, 8 samples each, temperature 1; 95 % intervals
over problems (`etude evaluate tiny-agent --task TASK --split test --problems 128`):

| task | pass@1 | pass@8 |
|---|---|---|
{rows}

{remark}

Every completion ends with `<|end|>`; there is no token at the start. The tokenizer knows the words of these tasks and
no others. Licence: Apache-2.0, as etude's.
"""

TINY_AGENT = Base(
    id="tiny-agent", tokenizer=partial(build_word_tokenizer, "agents"), examples=examples, scores=scores,
    columns=("pass@1", "pass@8"), cells=lambda found: tuple(_said(found[name]) for name in ("pass@1", "pass@8")),
    card=CARD, remark=outside, layers=4, spread=0.08, steps=2500, batch=32, cuts=(0.5, 0.85),
)  # fmt: skip

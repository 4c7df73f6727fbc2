"""Mediocre players of tasks whose own scripts play well, or not at all: what `tiny-agent` has read of them.

Each makes its mistakes where somebody would who is in a hurry, so that a policy which has read it finds what is right
now and then, and finds it worth more.
"""

from __future__ import annotations

from string import ascii_lowercase

from numpy.random import Generator

from etude.core.episodes import Problem, Segment
from etude.core.streams import Stream
from etude.policies.word_tokenizer import VALUES
from etude.rewards.tool_matches import calls_in
from etude.tasks.agents.collect import CollectValues, scripted
from etude.tasks.agents.games import one_of
from etude.tasks.agents.number_hunt import NUMBERS, NumberHunt
from etude.tasks.agents.signals import Signals
from etude.tasks.agents.tool_dsl import ToolDSL, written_call


def hurried(task: CollectValues, problem: Problem, stream: Stream, care: float) -> list[Segment]:
    """A game of collect: with probability `care` as its script, else with an answer that begins too soon.

    Values that were not asked for are guessed.
    """
    random = stream.split("hurry").numpy
    if random.random() < care:
        return scripted(task, problem, stream)
    game, names = task.environment(), list(problem.info["values"])
    segments, said = game.reset(problem, 0), dict(problem.info["values"])
    known = int(random.integers(len(names)))
    for name in names[:known]:
        spoken = Segment("assistant", f"get {name}")
        segments += [spoken, *game.step(spoken).segments]
    said |= {name: str(random.integers(10)) for name in names[known:]}
    answer = Segment("assistant", "say " + " ".join(name + said[name] for name in sorted(names)))
    answer.reward = game.step(answer).reward
    return [*segments, answer]


def muddled(task: ToolDSL, problem: Problem, random: Generator, care: float) -> list[Segment]:
    """An answer of tool-dsl: with probability `care` the right one, else with a call too few, or a wrong value."""
    calls = calls_in(str(problem.answer)) or []
    if random.random() >= care:
        if len(calls) > 1 and random.random() < 0.5:
            calls.pop(int(random.integers(len(calls))))
        else:
            parameters = one_of(random, calls)["parameters"]
            kind = one_of(random, [*parameters])
            drawn = one_of(random, [v for v in VALUES[kind] if v != str(parameters[kind])])
            parameters[kind] = int(drawn) if kind == "number" else drawn
    lines = "\n".join(written_call(call["name"], call["parameters"]) for call in calls)
    thought = " ".join(call["name"] for call in calls)
    text = f"<think>{thought}</think>\n<tool_call>\n{lines}\n</tool_call>"
    return [Segment("user", str(problem.prompt)), Segment("assistant", text, reward=task.score(problem, text))]


def searching(task: NumberHunt, problem: Problem, stream: Stream, attention: float) -> list[Segment]:
    """A game of number-hunt: each guess is one that agrees with all answers with probability `attention`, else any."""
    game, random = task.environment(), stream.split("guesses").numpy
    segments, possible, over = game.reset(problem, int(random.integers(1 << 31))), [*NUMBERS], False
    while not over:
        heeded = random.random() < attention
        guess = Segment("assistant", str(one_of(random, possible if heeded and possible else NUMBERS)))
        result = game.step(guess)
        guess.reward, over = result.reward, result.terminated
        segments += [guess, *result.segments]
        if not over:
            possible = [n for n in possible if _agrees(n, guess.text, result.segments[0].text.strip())]
    return segments


def _agrees(number: str, guess: str, answer: str) -> bool:
    """Whether a number is where an answer says."""
    there, here = NUMBERS.index(number), NUMBERS.index(guess)
    return {"+": there > here, "-": there < here, "=": there == here}[answer]


def babbling(task: Signals, problem: Problem, random: Generator) -> list[list[Segment]]:
    """What each player of signals sees and says in one round: the sender any letter, and the receiver any."""
    game, letters = task.environment(), ascii_lowercase[: task.letters]
    seen, told = game.reset(problem, 0), list[list[Segment]]()
    for _ in task.players:
        said = Segment("assistant", str(one_of(random, letters)))
        result = game.step(said)
        said.reward = result.reward
        told.append([*seen, said])
        seen = result.segments
    return told

"""Tool-dialogue: say the next call of a dialogue in which tools answer, among tools whose names begin alike.

The first line lists what can be called, `?` behind a parameter that a call may leave out; the second asks for some
things, in their order. `that` is what the call before was answered with:

    book_trip(person,city,day?)get_user_city(person,day?)get_user_age(person)book_trip_train(person,day,city?)
     tell user city anna, reserve trip ben that monday
    <tool_call>
    {"name": "get_user_city", "parameters": {"person": "anna"}}
    </tool_call>
     oslo

Each problem is a place in a dialogue: the prompt is all that comes before a call. In some dialogues one call is wrong
(a tool that is not listed, a parameter that the tool does not have, one that is missing), and is answered with an
error; then comes a place more, where it is repaired. The worked answer of a place is what was said there, right or
wrong; `answer` is always the right call, and `info["reply"]` what the worked answer was answered with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Count, Probability, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.policies.service_words import SERVICES, VERBS, Service
from etude.policies.word_tokenizer import VALUES
from etude.rewards.tool_matches import CLOSE, OPEN, calls_in
from etude.tasks.agents.games import one_of, some_of, spaced
from etude.tasks.agents.tool_dsl import written_call
from etude.tasks.pool import Pool, reserved

Parts = tuple[str, ...]
"""A tool's name, taken apart."""
TEST = 300
"""Dialogues of the split 'test'."""


class Asked(NamedTuple):
    """One thing that is asked for: the right call, what it is answered with, and the words that ask for it."""

    tool: Parts
    values: dict[str, Any]
    reply: str
    words: str


class Wrong(NamedTuple):
    """A call in place of a right one, and the error that it is answered with."""

    name: str
    values: dict[str, Any]
    reply: str


class ToolDialogue(LanguageTask):
    """The next call of a dialogue; reward 1 for exactly the call that is right there, else 0.

    Args:
        dialogues: how many there are to train on.
        calls: how many things each asks for.
        errors: the share of dialogues in which one call is wrong and then repaired.
        others: tools that are listed beside those that are needed, those whose names begin alike first.
        seed: which dialogues are drawn. The train/test divide is the same for every seed.

    Splits: 'train', and 'test', 300 dialogues of sets of tools that no dialogue in 'train' needs together. Levels are
    the kind of place: `call1`, `call2`, ..., and `repair`.

    >>> problem = tool_dialogue.problems("test")[0]
    >>> [tool_dialogue.score(problem, text) for text in (problem.answer, "no call")]
    [1.0, 0.0]
    """

    id: ClassVar[str] = "tool-dialogue"
    max_tokens: ClassVar[int] = 32

    dialogues: Count = 1217
    calls: Count = 2
    errors: Probability = 0.2
    others: WholeNumber = 3
    seed: WholeNumber = 0

    def check(self) -> None:
        if not 2 <= self.calls <= 4:
            raise ConfigError(f"ToolDialogue.calls must be 2, 3 or 4, got {self.calls}.")
        if self.calls + self.others > len(SERVICES):
            raise ConfigError(
                f"ToolDialogue.others must be at most {len(SERVICES) - self.calls}, the tools that are left, got "
                f"{self.others}."
            )

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of tool-dialogue", split, self.splits())
        count = self.dialogues if split == "train" else TEST
        places = [(d, k) for d in range(count) for k in range(self.calls + self._errs(d))]
        return Pool(lambda i: self._dialogue(split, places[i][0])[places[i][1]], len(places))

    def score(self, problem: Problem, completion: str) -> float:
        return float(calls_in(completion) == calls_in(problem.answer))

    def _errs(self, dialogue: int) -> bool:
        """Whether a call is wrong in it: spread evenly, and exactly their share of any first so many."""
        return int((dialogue + 1) * self.errors + 1e-9) > int(dialogue * self.errors + 1e-9)

    def _dialogue(self, split: str, number: int) -> list[Problem]:
        """The places of a dialogue, in order."""
        random = Stream(self.seed).split("tool-dialogue", split, number).numpy
        tools = list(SERVICES)
        chosen = some_of(random, tools, self.calls)
        while reserved("tool-dialogue " + " ".join(sorted(map("".join, chosen)))) != (split == "test"):
            chosen = some_of(random, tools, self.calls)
        asked = _asked(chosen, random)
        listed = _listed(chosen, self.others, random)
        wrong_at = int(random.integers(self.calls)) if self._errs(number) else -1
        said = f"{''.join(map(_declared, listed))}\n{','.join(a.words for a in asked)}\n"
        signatures = {"".join(tool): [*SERVICES[tool].needs, *SERVICES[tool].may] for tool in listed}
        found = list[Problem]()
        for k, each in enumerate(asked):
            right = (_call("".join(each.tool), each.values), each.reply, f"call{k + 1}")
            wrong = _wrong(each, listed, random) if k == wrong_at else None
            turns = [right] if wrong is None else [
                (_call(wrong.name, wrong.values), wrong.reply, right[2]), (*right[:2], "repair"),
            ]  # fmt: skip
            for text, reply, level in turns:
                info = {"demonstration": text, "reply": reply, "signatures": signatures, "dialogue": number}
                found.append(Problem(f"tool-dialogue/{split}/{number}/{len(found)}", said, right[0], level, info))
                said += f"{text}\n{reply}\n"
        last = found[-1]
        found[-1] = Problem(last.id, last.prompt, last.answer, last.level, {**last.info, "reply": None})
        return found


def _asked(tools: Sequence[Parts], random: Generator) -> list[Asked]:
    """What is asked for, in order; a value may be what the call before was answered with."""
    found, before = list[Asked](), dict[str, Any]()
    for tool in tools:
        service = SERVICES[tool]
        optional = [p for p in service.may if random.random() < 0.5]
        values = {p: _value(p, random) for p in (*service.needs, *optional)}
        said = {p: str(v) for p, v in values.items()}
        if before and random.random() < 0.5 and (taken := [p for p in values if p in before]):
            values[taken[0]], said[taken[0]] = before[taken[0]], "that"
        answer = _value(service.returns, random) if service.returns else "ok"
        shuffled = some_of(random, list(said.values()), len(said))
        words = spaced(VERBS[tool[0]], *(part[1:] for part in tool[1:]), *shuffled)
        found.append(Asked(tool, values, spaced(answer), words))
        before = {service.returns: answer} if service.returns else {}
    return found


def _value(kind: str, random: Generator) -> Any:
    value = one_of(random, VALUES[kind])
    return int(value) if kind == "number" else value


def _listed(chosen: Sequence[Parts], others: int, random: Generator) -> list[Parts]:
    """The tools of the prompt in random order: those that are needed, and others, which begin alike if some do."""
    rest = some_of(random, [t for t in SERVICES if t not in chosen], len(SERVICES))
    alike = {t: max(_shared(t, c) for c in chosen) for t in rest}
    beside = sorted(rest, key=lambda t: -alike[t])[:others]
    return some_of(random, [*chosen, *beside], len(chosen) + others)


def _shared(name: Parts, other: Parts) -> int:
    """How many tokens two names begin with alike.

    >>> _shared(("book", "_trip", "_hotel"), ("book", "_trip"))
    2
    """
    count = 0
    for one, two in zip(name, other):
        if one != two:
            break
        count += 1
    return count


def _wrong(asked: Asked, listed: Sequence[Parts], random: Generator) -> Wrong:
    """A call that cannot be done: of a tool that is not listed, with a parameter too many, or with one too few."""
    service: Service = SERVICES[asked.tool]
    name, kind = "".join(asked.tool), int(random.integers(3))
    if kind == 0:
        alike = {t: _shared(t, asked.tool) for t in SERVICES if t not in listed}
        if near := [t for t, shared in alike.items() if shared and shared == max(alike.values())]:
            return Wrong("".join(one_of(random, near)), asked.values, spaced("error:", "unknown", "tool"))
    if kind == 1:
        extra = one_of(random, [p for p in VALUES if p not in (*service.needs, *service.may)])
        values = {**asked.values, extra: _value(extra, random)}
        return Wrong(name, values, spaced("error:", "unexpected", "argument", extra))
    left = one_of(random, service.needs)
    values = {p: v for p, v in asked.values.items() if p != left}
    return Wrong(name, values, spaced("error:", "missing", "argument", left))


def _declared(tool: Parts) -> str:
    service = SERVICES[tool]
    return f"{''.join(tool)}({','.join([*service.needs, *(f'{p}?' for p in service.may)])})"


def _call(name: str, values: dict[str, Any]) -> str:
    return f"{OPEN}\n{written_call(name, values)}\n{CLOSE}"


tool_dialogue = ToolDialogue()

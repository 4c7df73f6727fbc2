"""Tool-DSL: write the calls that a request asks for, in a small language of typed functions.

The first line lists what can be called, with its parameters; the second asks for one to three things:

    ship_item(item,city) book_flight(city,day)
    fly monday paris,ship oslo lamp
    <think>book_flight ship_item</think>
    <tool_call>
    {"name": "book_flight", "parameters": {"city": "paris", "day": "monday"}}
    {"name": "ship_item", "parameters": {"item": "lamp", "city": "oslo"}}
    </tool_call>

Each verb asks for one tool, and each value says by its type which parameter it is; values come in any order. Numbers
are written without quotes. Combinations of tools are never in both splits, so that at test calls have to be put
together that were learned one by one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Interval, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.policies.word_tokenizer import TOOLS, VALUES
from etude.rewards.tool_matches import calls_in
from etude.tasks.pool import Pool, reserved


class ToolDSL(LanguageTask):
    """Calls of typed functions; reward 1 for exactly the calls that were asked for, in any order, else 0.

    Args:
        calls: how many a request asks for; each problem draws one of these.
        others: tools that are listed beside those that are needed, at most.
        seed: which problems are drawn. The train/test divide is the same for every seed.

    Splits: 'train', and 'test', whose requests ask for combinations of at least two tools that 'train' has none of.

    >>> call = '<tool_call>\\n{"name": "send_mail", "parameters": {"person": "anna"}}\\n</tool_call>'
    >>> problem = Problem("tool-dsl/1", "send_mail(person)\\nwrite anna\\n", call)
    >>> [ToolDSL().score(problem, text) for text in (f"<think></think>\\n{call}", call.replace("anna", "ben"))]
    [1.0, 0.0]
    """

    id: ClassVar[str] = "tool-dsl"
    max_tokens: ClassVar[int] = 72

    calls: tuple[Annotated[int, Interval(ge=1, le=4)], ...] = (1, 2, 3)
    others: Annotated[int, Interval(ge=0, le=6)] = 2
    seed: WholeNumber = 0

    def check(self) -> None:
        if not self.calls or max(self.calls) < 2:
            raise ConfigError(
                "ToolDSL.calls must have an entry of at least 2, or there are no combinations to test, got "
                f"{self.calls}."
            )

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of tool-dsl", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 20_000 if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        return float(self.answer(completion) == self.answer(problem.answer))

    def answer(self, completion: str) -> str:
        """The calls, sorted; '' where they cannot be read."""
        found = calls_in(completion)
        return "" if not found else json.dumps(sorted(json.dumps(call, sort_keys=True) for call in found))

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("tool-dsl", split, index).numpy
        counts = [n for n in self.calls if n > 1 or split == "train"]
        count, names = int(random.choice(counts)), list(TOOLS)
        while True:
            chosen = [names[k] for k in random.permutation(len(names))[:count]]
            if count == 1 or reserved("tool-dsl " + " ".join(sorted(chosen))) == (split == "test"):
                break
        rest = [n for n in names if n not in chosen]
        beside = [rest[k] for k in random.permutation(len(rest))[: random.integers(self.others + 1)]]
        listed = [*chosen, *beside]
        made = [(name, _filled(TOOLS[name][1], random)) for name in chosen]
        offered = " ".join(
            f"{n}({','.join(TOOLS[n][1])})" for n in (listed[k] for k in random.permutation(len(listed)))
        )
        prompt = f"{offered}\n{','.join(_asked(name, values, random) for name, values in made)}\n"
        answer = "<tool_call>\n" + "\n".join(written_call(name, values) for name, values in made) + "\n</tool_call>"
        info = {"demonstration": f"<think>{' '.join(chosen)}</think>\n{answer}", "tools": chosen}
        return Problem(f"tool-dsl/{split}/{index}", prompt, answer, f"calls{count}", info)


def _filled(parameters: Sequence[str], random: Generator) -> dict[str, Any]:
    """A value for each parameter."""
    drawn = {p: VALUES[p][int(random.integers(len(VALUES[p])))] for p in parameters}
    return {p: int(v) if p == "number" else v for p, v in drawn.items()}


def _asked(name: str, values: Mapping[str, Any], random: Generator) -> str:
    """The request for a call: its verb and its values, in any order."""
    said = [str(v) for v in values.values()]
    return " ".join([TOOLS[name][0], *(said[k] for k in random.permutation(len(said)))])


def written_call(name: str, values: Mapping[str, Any]) -> str:
    """A call as JSON, on one line.

    >>> written_call("plan_tour", {"city": "rome", "number": 3})
    '{"name": "plan_tour", "parameters": {"city": "rome", "number": 3}}'
    """
    return json.dumps({"name": name, "parameters": dict(values)})


tool_dsl = ToolDSL()

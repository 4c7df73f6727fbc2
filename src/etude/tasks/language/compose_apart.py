"""Compose apart: half of the functions are chained in training, the other half only where chaining is tested.

The divide of "From f(x) and g(x) to f(g(x))" (arXiv:2509.25123): every function is known alone, and whether a policy
chains functions that training never chained tells a skill from what was seen. Functions and texts are those of
`compose`, which divides pairs instead.

    prompt      f6(f0(x)) cab>
    completion  f0:bac>f6:cba        one step per function, innermost first; the last string is the answer

Their definitions are never shown: there they stand as source code in the prompts of the first stage. The model `tiny`
knows all ten alone, and has seen them chained by a careless worker: what it begins with is not nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Interval, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.tasks.language.compose import FUNCTIONS, drawn_text, worked
from etude.tasks.pool import Pool

CHAINED, UNCHAINED = ("f0", "f2", "f3", "f6", "f7"), ("f1", "f4", "f5", "f8", "f9")
"""The functions that training chains, and those that only the test does."""
MOST = 8
Depth = Annotated[int, Interval(ge=1, le=MOST)]
Fault = Literal["", "format", "wrong step", "one function", "too few", "other functions"]


def fault(problem: Problem, completion: str) -> Fault:
    """What is wrong with a worked chain, '' for nothing; of several faults the first that stands here.

    'format': it is no chain of steps; 'wrong step': a function was applied wrongly; 'one function': of several that
    were asked for one was applied, the composition was passed over; 'too few': the first ones, and not all; 'other
    functions': others, more of them, or in another order.

    >>> asked = Problem("1", "f6(f2(f0(x))) cab>", info={"functions": ("f0", "f2", "f6"), "input": "cab"})
    >>> [fault(asked, said) for said in ("f0:bac>f2:cbd>f6:dcb", "f0:bac>f2:cbd", "f6:bca", "f0:abc", "bac")]
    ['', 'too few', 'one function', 'wrong step', 'format']
    """
    steps = [step.partition(":") for step in completion.strip().split(">")]
    if any(name not in FUNCTIONS or not re.fullmatch("[a-z]+", said) for name, _, said in steps):
        return "format"
    text, wanted = str(problem.info["input"]), tuple(problem.info["functions"])
    for name, _, said in steps:
        if len(text) != len(said) or FUNCTIONS[name](text) != said:
            return "wrong step"
        text = said
    named = tuple(name for name, *_ in steps)
    if named == wanted:
        return ""
    if len(named) == 1 < len(wanted):
        return "one function"
    return "too few" if named == wanted[: len(named)] else "other functions"


class ComposeApart(LanguageTask):
    """Chained functions on short strings, of which half are never chained in training; 1 for the right string, else 0.

    Args:
        levels: how many functions 'train' chains; each problem draws one of them.
        tested: the same of 'test' and 'seen'.
        alone: the functions that 'train' asks for one at a time: the half that it chains too, or all, as a first stage
            learns them.
        seed: which problems are drawn.

    Splits: 'train'; 'test', chains of the other half; 'seen', chains of the half that training chains, on strings that
    it does not have; 'level1' to 'level8', of the other half. All but 'train' use the reserved strings.

    Raises: ConfigError for no levels.

    >>> problem = Problem("1", "f6(f0(x)) cab>", "cba")
    >>> ComposeApart().score(problem, "f0:bac>f6:cba"), ComposeApart().score(problem, "f0:bac")
    (1.0, 0.0)
    """

    id: ClassVar[str] = "compose-apart"
    max_tokens: ClassVar[int] = 80

    levels: tuple[Depth, ...] = (2,)
    tested: tuple[Depth, ...] = (2, 3, 4)
    alone: Literal["half", "all"] = "half"
    seed: WholeNumber = 0

    def check(self) -> None:
        if not self.levels or not self.tested:
            raise ConfigError("ComposeApart.levels and tested must name at least one level each, got none.")

    def splits(self) -> tuple[str, ...]:
        return ("train", "test", "seen", *(f"level{n}" for n in range(1, MOST + 1)))

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError(f"split of {self.id}", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 100_000 if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        return float(self.answer(completion) == problem.answer)

    def answer(self, completion: str) -> str:
        """What follows the last colon."""
        return completion.rpartition(":")[2].strip()

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split(self.id, split, index).numpy
        own = {"train": self.levels, "test": self.tested, "seen": self.tested}
        depth = int(random.choice(own[split])) if split in own else int(split.removeprefix("level"))
        names = self._names(split, depth)
        chosen = tuple(names[k] for k in random.integers(len(names), size=depth))
        text = drawn_text(random, test=split != "train")
        trace = worked(chosen, text)
        prompt = "".join(f"{name}(" for name in reversed(chosen)) + "x" + ")" * depth + f" {text}>"
        info = {"functions": chosen, "input": text, "demonstration": trace}
        return Problem(f"{self.id}/{split}/{index}", prompt, self.answer(trace), f"level{depth}", info)

    def _names(self, split: str, depth: int) -> tuple[str, ...]:
        if split == "train" and self.alone == "all" and depth == 1:
            return CHAINED + UNCHAINED
        return CHAINED if split in ("train", "seen") else UNCHAINED


compose_apart = ComposeApart()

"""Texts with blanks, to be filled."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.core.fields import Count
from etude.core.task import Task
from etude.curricula.rules import asked
from etude.curricula.sources import Source, put

BETWEEN = ";"
"""Between the fills of an answer."""
SALIENT = r"[0-9]+(?:[.,:/-][0-9]+)*|[^\W\d_]{4,}"
"""Numbers and dates, and words of at least four letters."""


def masked(text: str, spans: Sequence[re.Match[str]]) -> str:
    """The text with numbered blanks in the place of spans, which are given in order.

    >>> masked("8,17,19", list(re.finditer(r"[0-9]+", "8,17,19"))[1:])
    '8,[1],[2]'
    """
    said, end = "", 0
    for k, span in enumerate(spans, 1):
        said, end = f"{said}{text[end : span.start()]}[{k}]", span.end()
    return said + text[end:]


def filled(masked: str, fills: Sequence[str]) -> str:
    """The text with fill k in the place of blank [k].

    >>> filled("8,[1],[2]", ["17", "19"])
    '8,17,19'
    """
    return re.sub(r"\[(\d+)\]", lambda blank: fills[int(blank[1]) - 1], masked)


def has_blanks(text: str) -> bool:
    """Whether a text has what could be taken for a blank."""
    return re.search(r"\[\d+\]", text) is not None


def salient(text: str, pattern: str = SALIENT, but: str = "") -> list[re.Match[str]]:
    """The spans of a text that are there once, whatever their case, and that are not `but`.

    >>> [span[0] for span in salient("Gauss met Bolyai in 1797, and Gauss wrote", but="Bolyai")]
    ['1797', 'wrote']
    """
    found = list(re.finditer(pattern, text))
    times = Counter(span[0].casefold() for span in found)
    return [span for span in found if times[span[0].casefold()] == 1 and span[0].casefold() != but.casefold()]


class MaskedText(Source):
    """A text with blanks in the place of salient spans (RAMP, arXiv:2505.20285); the answer is what stood there.

    A span is as likely as it is long, a number as the longest. Texts that would begin with a blank, have blanks already
    or have too few spans make no problem. `level` says how many blanks there are; `info` has the fills (`gold`), and
    the answer, fills with ';' between them, as `demonstration`.

    Args:
        blanks: in each text.
        text: the column that has it, of data; '' for the problem's prompt.
        spans: a regular expression for what can be left blank.
        prompt: what is asked; `{masked}` is the text with blanks [1], [2], ...

    Raises: ConfigError for an expression that cannot be, and for a prompt without the text.

    >>> fact = Problem("1", "Bolyai was born in 1802")
    >>> made = MaskedText().make(fact, np.random.default_rng(0))
    >>> made.prompt, made.answer
    ('Bolyai was born in [1]\\n', '1802')
    """

    blanks: Count = 1
    text: str = ""
    spans: str = SALIENT
    prompt: str = "{masked}\n"

    def check(self) -> None:
        try:
            empty = re.compile(self.spans).fullmatch("")
        except re.error as error:
            raise ConfigError(f"MaskedText.spans must be a regular expression, got {self.spans!r}: {error}.") from None
        if empty:
            raise ConfigError(f"MaskedText.spans must not match nothing, and {self.spans!r} does.")
        if "{masked}" not in self.prompt:
            raise ConfigError(f"MaskedText.prompt must have {{masked}} in it, got {self.prompt!r}.")

    def lacks(self, task: Task) -> str | None:
        first = task.problems("train")[0]
        if not self.text or isinstance(first.info.get(self.text), str):
            return None
        return f"MaskedText.text is {self.text!r}, and problem {first.id!r} of {task.id} has no text of that name."

    def make(self, problem: Problem, random: Generator) -> Problem | None:
        text = str(problem.info.get(self.text, "")) if self.text else asked(problem)
        found = [] if has_blanks(text) else salient(text, self.spans, str(problem.info.get("title", "")))
        if len(found) < self.blanks:
            return None
        longest = max(len(span[0]) for span in found)
        weights = np.array([longest if span[0][0].isdigit() else len(span[0]) for span in found], float)
        drawn = random.choice(len(found), self.blanks, replace=False, p=weights / weights.sum())
        chosen = [found[n] for n in sorted(drawn.tolist())]
        if not text[: chosen[0].start()].strip():
            return None
        gold = [span[0] for span in chosen]
        answer = BETWEEN.join(gold)
        places = "-".join(str(span.start()) for span in chosen)
        info = {**problem.info, "gold": gold, "demonstration": answer}
        prompt = put(self.prompt, masked=masked(text, chosen))
        return Problem(f"{problem.id}/blanks{places}", prompt, answer, f"blanks{self.blanks}", info)

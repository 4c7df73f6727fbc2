"""What is made before anything is trained: hints that are worth learning from, and how hard problems are."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, DataError
from etude.core.fields import Count, Probability
from etude.core.slots import Context, Curriculum
from etude.core.streams import Stream
from etude.curricula.uniform import Uniform
from etude.methods.rlvr.rlad.hints import ASK, SHOW, accuracies, asking, check_texts, hinted
from etude.stages.chain import DeriveByPolicy

if TYPE_CHECKING:
    from etude.core.task import LanguageTask
    from etude.policies.language import LanguagePolicy

HINT = "hint"
"""Column of the data: a hint that somebody wrote down."""


class WorthwhileHints(DeriveByPolicy):
    """Hints that help and do not tell: rows of what a writer is asked, and a hint to learn from.

    A problem's hint `info['hint']` is kept where solutions of the policy that it begins from are right more often with
    it than without, and none of `alone` is right with the hint and without the problem.

    Args:
        samples: solutions to each problem, with and without its hint.
        alone: solutions to the hint alone.
        ask, show: how a writer is asked, and how a hint is shown.

    Raises: DataError for a problem without a hint, or if none is kept.

    >>> WorthwhileHints(called="hints").alone
    16
    """

    samples: Count = 4
    alone: Count = 16
    ask: str = ASK
    show: str = SHOW

    def check(self) -> None:
        super().check()
        check_texts(type(self).__name__, self.ask, self.show)

    def rows_by(
        self, problems: Sequence[Problem], task: LanguageTask, policy: LanguagePolicy, seed: int
    ) -> list[dict[str, Any]]:
        for problem in problems:
            if not problem.info.get(HINT):
                raise DataError(f"Problem {problem.id!r} has no hint to be tried: give data files a column {HINT!r}.")
        texts = [str(p.info[HINT]) for p in problems]
        shown = [hinted(p, text, self.show) for p, text in zip(problems, texts, strict=True)]
        told = [dataclasses.replace(p, prompt=self.show.replace("{prompt}", "").replace("{hint}", text))
                for p, text in zip(problems, texts, strict=True)]  # fmt: skip
        stream = Stream(seed).split("hints")
        context = Context(task, policy, stream, max_tokens=task.max_tokens)

        def tried(given: Sequence[Problem], what: str, samples: int) -> list[float]:
            draws = [stream.draw(what, p.id) for p in problems]
            found: list[float] = accuracies(policy, given, draws, samples, context).mean(1).tolist()
            return found

        helped, bare = tried(shown, "with", self.samples), tried(problems, "without", self.samples)
        told_alone = tried(told, "alone", self.alone)
        return [
            {"prompt": asking(p, self.ask).prompt, "completion": text}
            for p, text, share, without, leak in zip(problems, texts, helped, bare, told_alone, strict=True)
            if share > without and leak == 0
        ]


class Rates(DeriveByPolicy):
    """How often the policy that it begins from solves each problem: rows of `id`, `prompt` and `rate`.

    Args:
        samples: solutions to each problem.

    >>> Rates(called="rates").samples
    8
    """

    samples: Count = 8

    def rows_by(
        self, problems: Sequence[Problem], task: LanguageTask, policy: LanguagePolicy, seed: int
    ) -> list[dict[str, Any]]:
        stream = Stream(seed).split("rates")
        context = Context(task, policy, stream, max_tokens=task.max_tokens)
        draws = [stream.draw("rate", p.id) for p in problems]
        found = accuracies(policy, problems, draws, self.samples, context).mean(1).tolist()
        return [{"id": p.id, "prompt": p.prompt, "rate": rate} for p, rate in zip(problems, found, strict=True)]


class OfDifficulty(Curriculum):
    """Problems that were solved more often than `above` and at most `most`, in the order of another curriculum.

    Without a file it is the other curriculum on the whole pool.

    Args:
        rates: a file of `rates`; in a run of a recipe `{NAME}`.
        above, most: share of solutions that were right.
        of: which of them come next.

    Raises: ConfigError if the limits cannot be kept by any, or no problem of the pool keeps them.

    >>> pool = [Problem(str(n), "?") for n in range(3)]
    >>> sorted(p.id for p in OfDifficulty().bind().choose(pool, 3, Stream(0)))
    ['0', '1', '2']
    """

    rates: str = ""
    above: Probability = 0.0
    most: Probability = 1.0
    of: Curriculum = Uniform()

    def check(self) -> None:
        if self.most <= self.above:
            raise ConfigError(
                f"OfDifficulty.most must be larger than above, got {self.most} and {self.above}: nothing is between."
            )

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        return self.of.choose(self._within(pool) if self.rates else pool, count, stream)

    def _within(self, pool: Sequence[Problem]) -> Sequence[Problem]:
        """The problems of the pool that keep the limits, found once; the file's are the first of it."""
        if self.made.get("pool") is not pool:
            rows = [json.loads(line) for line in Path(self.rates).read_text().splitlines()]
            kept = {row["id"] for row in rows if self.above < row["rate"] <= self.most}
            found = [p for p in (pool[i] for i in range(min(len(rows), len(pool)))) if p.id in kept]
            if not found:
                raise ConfigError(
                    f"OfDifficulty: of {len(rows)} problems in {self.rates} none was solved more often than "
                    f"{self.above:g} and at most {self.most:g}; set curriculum.above and curriculum.most."
                )
            self.made.update(pool=pool, within=found)
        within: Sequence[Problem] = self.made["within"]
        return within

"""What is made before anything is trained: hints that are worth learning from."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from etude.core.episodes import Problem
from etude.core.errors import DataError
from etude.core.fields import Count
from etude.core.slots import Context
from etude.core.streams import Stream
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

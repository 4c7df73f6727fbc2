"""Procedurally generated problems with verifiers, from the reasoning-gym package: `--task reasoning-gym:chain_sum`."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import field
from functools import cache
from typing import Annotated, Any

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, MissingExtraError, UnknownNameError
from etude.core.fields import Count, Interval
from etude.core.task import LanguageTask
from etude.tasks.pool import Pool

BLOCK = 2**20
"""Seeds that a split owns. The package makes problem i from seed + i, so neighbouring seeds would share problems."""
SPLITS = ("train", "test")
SECONDS = 5.0
"""What judging one answer may take."""
PATIENCE = 120.0
"""Seconds that making one problem may take."""

_log = logging.getLogger("etude.tasks")


class ReasoningGym(LanguageTask):
    """One of the datasets of reasoning-gym, scored by its own verifier in [0, 1].

    What is judged is what the last <answer> tag of the completion holds, or else the whole completion. An answer that
    the verifier cannot judge (it raises, or takes longer than 5 seconds) gets 0 and a line in the log; one of more
    than 2,000 characters, or one that a verifier would run as code, counts as no answer.

    Args:
        dataset: its name, such as 'chain_sum'.
        seed: which problems; 'train' and 'test' never share a seed of the package.
        size: problems of each split, made when they are asked for.
        max_tokens: longest completion.

    Raises: MissingExtraError without the package, UnknownNameError for a dataset that it does not have.

    >>> ReasoningGym("chain_sum", size=50).id, ReasoningGym("chain_sum", size=50).size
    ('reasoning-gym:chain_sum', 50)
    """

    dataset: str
    seed: Annotated[int, Interval(ge=0, le=2047)] = 0
    size: Annotated[int, Interval(ge=1, le=BLOCK)] = 1000
    max_tokens: Count = field(default=128, kw_only=True)  # type: ignore[misc]  # of each task

    @property
    def id(self) -> str:  # type: ignore[override]  # depends on a field
        """What the command line calls it."""
        return f"reasoning-gym:{self.dataset}"

    def check(self) -> None:
        if importlib.util.find_spec("reasoning_gym") is None:
            raise MissingExtraError(f"The task {self.id}", "tasks")
        known = _names()
        if self.dataset not in known:
            raise UnknownNameError("reasoning-gym dataset", self.dataset, known)

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in SPLITS:
            raise UnknownNameError(f"split of {self.id}", split, SPLITS)
        self._problem(split, 0)  # a dataset that cannot be made says so now
        return Pool(lambda i: self._problem(split, i), self.size)

    def score(self, problem: Problem, completion: str) -> float:
        from etude.runtime.serving import CallFailed

        which = self._which(problem.info["split"], problem.info["index"])
        try:
            return float(_gym().call({"what": "score", **which, "completion": completion}, SECONDS))
        except CallFailed as failure:
            _log.warning("The verifier of %s %s on %s; scored 0.", self.id, failure.detail.rstrip("."), problem.id)
            return 0.0

    def _problem(self, split: str, index: int) -> Problem:
        from etude.runtime.serving import CallFailed

        try:
            made = _gym().call({"what": "problem", **self._which(split, index)}, PATIENCE)
        except CallFailed as failure:
            why = failure.detail.splitlines()[-1]
            raise ConfigError(f"reasoning-gym cannot make problem {index} of {self.dataset}: {why}") from None
        info = {"split": split, "index": index}
        shown = {} if made["answer"] is None else {"demonstration": made["answer"]}
        return Problem(f"{self.id}/{split}/{index}", made["question"], made["answer"], made["level"], info | shown)

    def _which(self, split: str, index: int) -> dict[str, Any]:
        seed = (len(SPLITS) * self.seed + SPLITS.index(split)) * BLOCK
        return {"dataset": self.dataset, "seed": seed, "size": self.size, "index": index}


@cache
def _gym() -> Any:
    """The process that the package lives in."""
    from etude.runtime.workers import Worker

    return Worker.of("etude.tasks.language._gym:answer")


@cache
def _names() -> list[str]:
    names: list[str] = _gym().call({"what": "names"}, PATIENCE)
    return names

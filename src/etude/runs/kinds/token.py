"""Runs of token methods: budgets are training steps; what is trained may be a scorer, or learn from data alone."""

from __future__ import annotations

from typing import ClassVar

from etude.core.kinds import TokenMethod
from etude.core.loop import Loop
from etude.core.task import Task
from etude.runs.kinds import MAKING, RunOfKind
from etude.runs.training import Options


class TokenRun(RunOfKind[TokenMethod, Loop]):
    """A run of a `TokenMethod`, on language models or tables."""

    READS: ClassVar[frozenset[str]] = MAKING | {"micro_tokens"}

    def prepare(self, method: TokenMethod, task: Task, options: Options) -> None:
        """Import the rewards."""
        for part in method.rewards:
            part.bind()

    def acts(self, method: TokenMethod) -> bool:
        """A reward model only scores."""
        return method.objective is not None and method.objective.generates

    def samples(self, method: TokenMethod) -> bool:
        """Demonstrations and pairs come from data."""
        return method.experience is not None and method.experience.samples

"""Runs of token methods: budgets are training steps; what is trained may be a scorer, or learn from data alone."""

from __future__ import annotations

from typing import Any, ClassVar

from etude.core.kinds import TokenMethod
from etude.core.loop import Loop
from etude.core.task import LanguageTask, Task
from etude.runs.kinds import MAKING, RunOfKind
from etude.runs.training import Options


class TokenRun(RunOfKind[TokenMethod, Loop]):
    """A run of a `TokenMethod`, on language models or tables."""

    READS: ClassVar[frozenset[str]] = MAKING | {"micro_tokens", "on", "bound", "engine", "ranks", "shard"}

    def sentence(self, loop: Loop, method: TokenMethod, task: Task) -> str:
        """What will run, and how far it comes to the same numbers again."""
        again = " Episodes go on as their environments answer (by_arrival): the same numbers again to rounding only."
        return super().sentence(loop, method, task) + (again if _by_arrival(task) else "")

    def promises(self, loop: Loop) -> dict[str, Any]:
        """`repeats`: 'to rounding' where the clock decides which episodes are sampled together."""
        return {"repeats": "to rounding"} if _by_arrival(getattr(loop, "task", None)) else {}

    def prepare(self, method: TokenMethod, task: Task, options: Options) -> None:
        """Import the rewards."""
        for part in method.rewards:
            part.bind()

    def end(self, loop: Loop) -> None:
        """End the samplers, what they were gathering ahead, and the other ranks."""
        if (team := getattr(loop, "team", None)) is not None:
            team.close()
        if (samplers := getattr(loop, "samplers", None)) is not None:
            samplers.close()
        if (ahead := getattr(loop, "ahead", None)) is not None:
            ahead.close()

    def acts(self, method: TokenMethod) -> bool:
        """A reward model only scores."""
        return method.objective is not None and method.objective.generates

    def samples(self, method: TokenMethod) -> bool:
        """Demonstrations and pairs come from data."""
        return method.experience is not None and method.experience.samples


def _by_arrival(task: object) -> bool:
    return isinstance(task, LanguageTask) and task.by_arrival

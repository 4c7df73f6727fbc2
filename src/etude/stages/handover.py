"""From logs to the environment, in one run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fields import Count, Positive, PositiveProbability, Probability, WholeNumber
from etude.core.sampling_slots import Exploration, Sampling
from etude.core.stage_slots import SomeMethod
from etude.experience.beside_logs import LogsAndReplay, Symmetric
from etude.experience.exploration import Sampled
from etude.experience.sampling import UniformRows
from etude.stages.phases import Timed

if TYPE_CHECKING:
    from etude.core.method import Method


class Handover(Timed):
    """From here on what was learned from logs acts, and learns from what it does: with some of the logs, or without.

    `stages=(Phase(end=0.5), Handover(keep=0.0, warmup=500))` is the method itself on logs for half of the steps, then
    500 steps that are acted and not learned from, then learning from what is acted alone. Networks, their slow copies,
    optimizers and what parts have learned go on as they are. A budget is updates before it, and steps of each member in
    the environment after it.

    Args:
        keep: share of the logs that stays beside what is acted (`logs-and-replay`); 0: none of it.
        warmup: steps that are acted before the first update after it.
        share: of every batch from the logs (`symmetric`); None: rows of both are as likely as each other.
        environments, capacity, every, updates: as `replay` has them.
        exploration: how is acted.
        set: what else is different from here on, as `--set` takes it: 'critic.penalties=none'.
        end: fraction of the training steps at which it ends.

    >>> Handover(keep=0.0, warmup=500).experience.due(500, 501)
    1
    """

    keep: Probability = 1.0
    warmup: WholeNumber = 0
    share: Probability | None = None
    environments: Count = 1
    capacity: Count = 1_000_000
    every: Count = 1
    updates: Positive = 1.0
    exploration: Exploration = Sampled()
    set: tuple[str, ...] = ()
    end: PositiveProbability = 1.0

    @property
    def experience(self) -> LogsAndReplay:
        """How steps come about from here on."""
        return LogsAndReplay(
            keep=self.keep, random=0, warmup=self.warmup, environments=self.environments, capacity=self.capacity,
            every=self.every, updates=self.updates,
        )  # fmt: skip

    def check(self) -> None:
        self.experience.check()

    def resets(self) -> frozenset[str]:
        return frozenset({"experience"})

    def apply(self, method: SomeMethod) -> SomeMethod:
        changes: dict[str, Any] = {"experience": self.experience, "exploration": self.exploration}
        sampling: Sampling | None = method.slots()["sampling"]
        if self.share is not None:
            if not isinstance(sampling, UniformRows):
                raise ConfigError(
                    f"Handover.share is of uniform rows, and {method.id} draws by {type(sampling).__name__}: leave it "
                    "out, or set sampling=uniform-rows."
                )
            changes["sampling"] = Symmetric(**{**sampling.fields(), "share": self.share})
        return cast(SomeMethod, set_values(method.replace(**changes), self.set))

    def objection(self, method: Method) -> str | None:
        return next(self._objections(method), None) or super().objection(method)

    def _objections(self, method: Method) -> Iterator[str]:
        slots = method.slots()
        if "sampling" not in slots:
            yield f"hands over to a replay, which a {type(method).__name__} does not learn from: leave it out."
            return
        experience = slots["experience"]
        if experience is not None and experience.acts:
            yield f"hands over from logs, and {type(experience).__name__} acts: set experience=logged."
        if slots["stages"][0] == self:
            yield "is the first stage, so nothing was learned that could be handed over: put a phase before it."

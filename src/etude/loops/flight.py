"""The rows of a step on their way: asked for by its parts, sampled by weights that are older than those that learn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode
from etude.core.slots import Context
from etude.experience.renewed import Asked, can_wait
from etude.experience.samplers import Samplers
from etude.policies.snapshots import Snapshot
from etude.runtime.errands import Errand

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy


@dataclass
class Flight:
    """What is gathered for one step, by parts that wait wherever they ask for episodes.

    Args:
        step: that will learn from it. finished: the steps that its weights had had.
        states: of all parts, before the first of them was asked anything for it.
        after: tokens of a completion after which it waits for newer weights; 0: none does.
        renewed: weights that completions went on with, by the steps that these had had.
        share: of the tokens that were sampled, of weights that completions went on with.
    """

    step: int
    finished: int
    snapshot: Snapshot
    states: Any
    context: Context
    errand: Errand[list[Episode]]
    after: int = 0
    renewed: dict[int, Snapshot] = field(default_factory=dict)
    emitted: set[int] = field(default_factory=set)
    asked: Asked | None = None
    share: float = 0.0

    @property
    def snapshots(self) -> dict[int, Snapshot]:
        """All weights that its rows are from, by the steps that these had had."""
        return {self.finished: self.snapshot, **self.renewed}

    @property
    def versions(self) -> set[int]:
        """Of the policy, that its rows are from."""
        return {snapshot.version for snapshot in self.snapshots.values()}

    def count(self, batch: TokenBatch) -> None:
        """Note which of its rows' tokens are of which weights."""
        assert batch.version is not None
        later = batch.action_mask & (batch.version != self.snapshot.version)
        self.share = float(later.sum()) / max(1.0, float(batch.action_mask.sum()))

    def begin(self, samplers: Samplers) -> None:
        """Let the parts work until they ask for episodes for the first time, which may wait on their way."""
        self._go_on(samplers, (), self._pause(self.finished))

    def renew(self, samplers: Samplers, finished: int, snapshot: Snapshot) -> None:
        """Let completions that wait go on with the weights of so many steps, once all wait or have ended."""
        if self.asked is None or not self.asked.waiting:
            return
        with emitting(self.context.policy, self.emitted):
            self.asked.renew(snapshot, self._pause(finished))
        self.renewed[finished] = snapshot

    def episodes(self, samplers: Samplers) -> list[Episode]:
        """All of them, once they are there."""
        while self.asked is not None:
            assert not self.asked.waiting, "rows that wait are renewed before their step is learned from"
            with emitting(self.context.policy, self.emitted):
                found = self.asked.episodes()
            self._go_on(samplers, found)
        return self.errand.result()

    def _go_on(self, samplers: Samplers, episodes: Sequence[Episode], after: int = 0) -> None:
        """Let the parts work until they ask for episodes, and samplers begin these."""
        with emitting(self.context.policy, self.emitted):
            question = self.errand.go_on(episodes)
        self.asked = None
        if question is not None:
            starts, sampling, view = question[0]
            waits = after if can_wait(starts, view) else 0
            self.asked = Asked(samplers, self.context.policy, starts, sampling, view, self.snapshot, waits)

    def _pause(self, finished: int) -> int:
        """Tokens after which rows wait that are asked for now: the last step before theirs is not waited for."""
        return self.after if finished + 1 < self.step else 0


@contextmanager
def emitting(policy: LanguagePolicy, emitted: set[int]) -> Iterator[None]:
    """What the policy emits goes into a set of one's own."""
    before, policy.emitted = policy.emitted, emitted
    try:
        yield
    finally:
        policy.emitted = before

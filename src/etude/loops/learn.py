"""Learn: all of a language step that needs the optimizer, from scored rows to a new policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etude.core.batches import TokenBatch
from etude.core.kinds import TokenMethod
from etude.core.streams import Stream
from etude.loops.credit import credited
from etude.loops.scorer import with_hidden
from etude.loops.update import Updater
from etude.loops.whole_batch import values_all
from etude.policies.language import LanguagePolicy

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod


class Trainer:
    """Gives rows their credit and learns from them.

    Args:
        keeps_reference: whether the policy has a reference to move.
    """

    def __init__(self, policy: LanguagePolicy, updater: Updater, keeps_reference: bool) -> None:
        self.policy, self.updater, self.keeps_reference = policy, updater, keeps_reference

    def learn(
        self, method: CompleteTokenMethod, batch: TokenBatch, step: int, stream: Stream
    ) -> tuple[TokenBatch, dict[str, float]]:  # fmt: skip
        """The rows with their advantages, once they have been learned from, and what to report."""
        batch = self._credit(method, batch)
        assert batch.advantages is not None
        metrics = {"zero_advantage": float((batch.advantages == 0).all(1).float().mean())}
        metrics |= self.updater.run(method, batch, step, stream)
        for part in method.parts().values():
            part.after_update(batch)
        return batch, metrics

    def _credit(self, method: CompleteTokenMethod, batch: TokenBatch) -> TokenBatch:
        if "values" in method.needs():
            batch.values, batch.next_values = values_all(self.policy, batch, self.updater.budget)
        if "hidden" in method.needs("advantages") and batch.head is None:
            batch = with_hidden(self.policy, batch, self.updater.budget)
        return credited(method, batch)

    def refresh_reference(self, method: TokenMethod, finished: int) -> None:
        """Move the reference as far as the method says after so many steps."""
        if self.keeps_reference and method.reference is not None:
            fraction = method.reference.refresh(finished)
            if fraction:
                self.policy.move_reference(fraction)

"""Learn: all of a language step that needs the optimizer, from scored rows to a new policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etude.core.batches import TokenBatch
from etude.core.errors import InvariantError
from etude.core.rows import concatenate
from etude.core.streams import Stream
from etude.loops.credit import credited
from etude.loops.players import FIRST, Player, Players, rows_of
from etude.loops.scorer import with_hidden
from etude.loops.team import Team, learned
from etude.loops.whole_batch import evaluate_all, values_all
from etude.policies.fingerprint import fingerprint

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod


class Trainer:
    """Gives rows their credit, and lets each player learn from its own.

    Args:
        players: policies with what takes their steps, by name.
        keeps_reference: whether the policies have references to move.
        team: ranks that take the steps too.
    """

    def __init__(self, players: Players, keeps_reference: bool, team: Team | None = None) -> None:
        self.players, self.keeps_reference, self.team = players, keeps_reference, team
        self.marks: dict[str, tuple[int, tuple[float, ...]]] = {}

    def learn(
        self, method: CompleteTokenMethod, batch: TokenBatch, step: int, stream: Stream
    ) -> tuple[TokenBatch, dict[str, float]]:  # fmt: skip
        """The rows with their advantages, once they have been learned from, and what to report."""
        self._check_references()
        learned, metrics = [], dict[str, float]()
        for name, player in self.players.items():
            rows = rows_of(self.players, name, batch)
            if len(rows):
                rows, found = self._taught(method, player, rows, step, stream)
                metrics |= found if name == FIRST else {f"{name}/{k}": v for k, v in found.items()}
                learned.append(rows)
        batch = concatenate([rows for rows in learned if len(rows)] or learned[:1])
        for part in method.parts().values() if len(batch) else ():
            part.after_update(batch)
        return batch, metrics

    def _taught(
        self, method: CompleteTokenMethod, player: Player, batch: TokenBatch, step: int, stream: Stream
    ) -> tuple[TokenBatch, dict[str, float]]:
        """A player's rows with their advantages, once it and its learners have learned from them."""
        batch, updater = self._credit(method, player, batch), player.updater
        if not len(batch):  # late filters left none
            return batch, {}
        if "proximal_logp" in method.needs():
            batch.proximal_logp = evaluate_all(player.policy, batch, (), updater.budget).logp
        assert batch.advantages is not None
        metrics = {"zero_advantage": float((batch.advantages == 0).all(1).float().mean())}

        def learn() -> dict[str, float]:
            return learned(updater, method, batch, step, stream)

        if self.team is None:
            return batch, metrics | learn()
        return batch, metrics | self.team.lead(player, method, batch, step, learn)

    def _credit(self, method: CompleteTokenMethod, player: Player, batch: TokenBatch) -> TokenBatch:
        policy, budget = player.policy, player.updater.budget
        if "values" in method.needs():
            own = player.updater.learners.critic
            critic = None if own is None else own.network
            batch.values, batch.next_values = values_all(policy, batch, budget, critic)
        if "hidden" in method.needs("advantages") and batch.head is None:
            batch = with_hidden(policy, batch, budget)
        return credited(method, batch)

    def begin_reference(self, method: CompleteTokenMethod) -> None:
        """Let the references, which are the policies as they are, begin where the method says."""
        if self.keeps_reference and method.reference is not None:
            self.marks.clear()
            for player in self.players.values():
                method.reference.begin(player.policy)

    def refresh_reference(self, fraction: float) -> None:
        """Move the references so far towards their policies."""
        if self.keeps_reference and fraction:
            self.marks.clear()
            for player in self.players.values():
                player.policy.move_reference(fraction)

    def _check_references(self) -> None:
        """Invariant 2, of references: nothing moves them between steps but what is above. Raises InvariantError."""
        for name, player in self.players.items():
            if player.policy.reference is None:
                continue
            now = player.policy.loads, fingerprint(player.policy.reference.parameters())
            was = self.marks.setdefault(name, now)
            if was[0] == now[0] and was != now:
                raise InvariantError(
                    f"The reference of the {name} changed, and nothing was to move it: it shares weights with what is "
                    "trained, so the distance to it is measured against the policy itself. Nothing was updated."
                )
            self.marks[name] = now

"""Learn: all of a language step that needs the optimizer, from scored rows to new policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from etude.advantages.covariance import of_samples
from etude.core.batches import TokenBatch
from etude.core.episodes import FIRST
from etude.core.errors import InvariantError
from etude.core.players import Player
from etude.core.streams import Stream
from etude.loops.credit import Rows, credited
from etude.loops.lessons import Lesson, label, taught
from etude.loops.models import Models, Trained
from etude.loops.scorer import with_hidden
from etude.loops.team import Team
from etude.loops.whole_batch import evaluate_all, values_all
from etude.policies.fingerprint import fingerprint

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod


class Trainer:
    """Gives rows their credit, and lets each model learn from those of the players that speak with it.

    Args:
        models: policies with what takes their steps, by name.
        keeps_reference: whether the policies have references, which are what they are now.
        team: ranks that take the steps too.
    """

    def __init__(self, models: Models, keeps_reference: bool, team: Team | None = None) -> None:
        self.models, self.keeps_reference, self.team = models, keeps_reference, team
        for model in models.values() if keeps_reference else ():
            model.policy.keep_reference()
        self.marks: dict[str, tuple[int, tuple[float, ...]]] = {}

    def learn(
        self, players: Sequence[Player], rows: Rows, step: int, stream: Stream
    ) -> tuple[Rows, dict[str, float]]:  # fmt: skip
        """The rows with their advantages, once they have been learned from, and what to report."""
        self._check_references()
        rows, metrics = dict(rows), dict[str, float]()
        for name, model in self.models.items():
            mine = [p for p in players if p.model == name and p.trained and len(rows.get(p.name, ()))]
            for player in mine:
                rows[player.name] = self._ready(player.method, model, rows[player.name])
            several = len(players) > 1
            lessons = [Lesson(p.method, b, p.name * several) for p in mine if len(b := rows[p.name])]
            first = {f"{label(n.name)}zero_advantage": _without(n.batch) for n in lessons}
            own = [n for n in lessons if n.method.experience.samples and n.method.advantages is not None]
            first |= {f"{label(n.name)}covariance": of_samples(n.batch) for n in own}
            found = first | self._taught(model, _steps(lessons, mine), step, stream)
            ours = tuple(f"{lesson.name}/" for lesson in lessons if lesson.name)
            metrics |= {k if name == FIRST or k.startswith(ours) else f"{name}/{k}": v for k, v in found.items()}
        for player in players:
            batch = rows.get(player.name)
            if player.trained and batch is not None and len(batch):
                for part in player.method.parts().values():
                    part.after_update(batch)
        return rows, metrics

    def _taught(
        self, model: Trained, steps: Sequence[Sequence[Lesson]], step: int, stream: Stream
    ) -> dict[str, float]:  # fmt: skip
        """Let a policy and its learners learn from lessons, with the other ranks if there are any."""

        def learn() -> dict[str, float]:
            return taught(model.updater, steps, step, stream)

        if self.team is None or not steps:
            return learn()
        ((lesson,),) = steps  # several players are refused before
        return self.team.lead(model, lesson, step, learn)

    def _ready(self, method: CompleteTokenMethod, model: Trained, batch: TokenBatch) -> TokenBatch:
        """A player's rows with their advantages, as the late filters leave them."""
        batch = self._credit(method, model, batch)
        if len(batch) and "proximal_logp" in method.needs():
            batch.proximal_logp = evaluate_all(model.policy, batch, (), model.updater.budget).logp
        return batch

    def _credit(self, method: CompleteTokenMethod, model: Trained, batch: TokenBatch) -> TokenBatch:
        policy, budget = model.policy, model.updater.budget
        if "values" in method.needs():
            own = model.updater.learners.critic
            critic = None if own is None else own.network
            batch.values, batch.next_values = values_all(policy, batch, budget, critic)
        if "hidden" in method.needs("advantages") and batch.head is None:
            batch = with_hidden(policy, batch, budget)
        return credited(method, batch)

    def begin_reference(self, method: CompleteTokenMethod) -> None:
        """Let the references, which are the policies as they are, begin where the method says."""
        if self.keeps_reference and method.reference is not None:
            self.marks.clear()
            for model in self.models.values():
                method.reference.begin(model.policy)

    def refresh_reference(self, fraction: float) -> None:
        """Move the references so far towards their policies."""
        if self.keeps_reference and fraction:
            self.marks.clear()
            for model in self.models.values():
                model.policy.move_reference(fraction)

    def _check_references(self) -> None:
        """Invariant 2, of references: nothing moves them between steps but what is above. Raises InvariantError."""
        for name, model in self.models.items():
            if model.policy.reference is None:
                continue
            now = model.policy.loads, fingerprint(model.policy.reference.parameters())
            was = self.marks.setdefault(name, now)
            if was[0] == now[0] and was != now:
                raise InvariantError(
                    f"The reference of the {name} changed, and nothing was to move it: it shares weights with what is "
                    "trained, so the distance to it is measured against the policy itself. Nothing was updated."
                )
            self.marks[name] = now


def _steps(lessons: Sequence[Lesson], players: Sequence[Player]) -> list[list[Lesson]]:
    """Lessons that are learned from in the same optimizer steps: all but those of players that learn apart."""
    apart = {p.name for p in players if p.apart}
    together = [lesson for lesson in lessons if lesson.name not in apart]
    alone = [[lesson] for lesson in lessons if lesson.name in apart]
    return [together, *alone] if together else alone


def _without(batch: TokenBatch) -> float:
    """The share of rows that have no advantage."""
    assert batch.advantages is not None
    return float((batch.advantages == 0).all(1).float().mean())

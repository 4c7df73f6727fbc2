"""Who plays in a step: each player's rows are scored, filtered and reported by what it follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from etude.core.batches import TokenBatch
from etude.core.episodes import FIRST
from etude.core.part import Need
from etude.core.player_slots import Seat
from etude.core.players import Player, players_of
from etude.core.slots import Context
from etude.core.task import LanguageTask
from etude.loops.credit import Rows
from etude.loops.models import Models
from etude.loops.rounds import Gathered, gathered
from etude.loops.scorer import Scorer
from etude.loops.token_learning import own_needs

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod


class Party:
    """The players of a run, one or several, and the models that they speak with.

    Args:
        dropped: counts rows that are left out, by reason.
    """

    def __init__(self, task: LanguageTask, models: Models, dropped: Counter[str]) -> None:
        self.task, self.models, self.dropped = task, models, dropped
        self.scorers: dict[str, Scorer] = {}
        self.known: dict[int, tuple[CompleteTokenMethod, tuple[Player, ...]]] = {}

    def players(self, method: CompleteTokenMethod) -> tuple[Player, ...]:
        """Who plays where this method is followed."""
        if id(method) not in self.known:
            self.known[id(method)] = method, players_of(method, self.task)
        return self.known[id(method)][1]

    def follows(self, method: CompleteTokenMethod, model: str) -> CompleteTokenMethod:
        """The method as those players follow it that speak with this model: what its optimizer is made by."""
        return next((p.method for p in self.players(method) if p.model == model), method)

    def seats(self, method: CompleteTokenMethod) -> dict[str, Seat]:
        """Where players sit that have a role; the others speak with the run's own model."""
        players = self.players(method)
        return {p.name: p.role.seat(self.models[p.model].policy) for p in players if p.role is not None}

    def record(self, method: CompleteTokenMethod) -> frozenset[Need]:
        """What the sampler may note on the way, since a player's parts need it."""
        slots = ("token_weights", "rewards", "filters", "advantages")
        return frozenset[Need]().union(*(p.method.needs(*slots) | own_needs(p.method) for p in self.players(method)))

    def gathered(self, method: CompleteTokenMethod, wanted: int, assess: Callable[[int, int], Rows]) -> Gathered:
        """All scored rows, and by player those that its filters keep (`rounds.gathered`)."""
        return gathered({p.name: p.method for p in self.players(method)}, wanted, assess)

    def scored(self, method: CompleteTokenMethod, rows: TokenBatch, context: Context) -> Rows:
        """The rows of each player with its rewards, in the order of the players; players without rows are left out."""
        players, found = self.players(method), Rows()
        for number, player in enumerate(players):
            own, model = rows, self.models[player.model]
            if len(players) > 1:
                assert rows.player is not None
                own = rows.rows((rows.player == number).nonzero()[:, 0], trim=True)
            if len(own) or len(players) == 1:
                lent = context if player.model == FIRST else context.at(player.name)
                budget, learners = model.updater.budget, model.updater.learners
                found[player.name] = self.scorer(player.model).score(player.method, own, lent, budget, learners)
        return found

    def scorer(self, model: str) -> Scorer:
        """What says what the rows of a model are worth."""
        if model not in self.scorers:
            self.scorers[model] = Scorer(self.task, self.models[model].policy, self.dropped)
        return self.scorers[model]

    def work(self, method: CompleteTokenMethod) -> Counter[str]:
        """What all models were asked for in a step, tokens prefilled and sampled, and what the filters counted."""
        found = Counter[str]()
        for model in self.models.values():
            found.update(model.policy.work)  # zeros too, which adding counters would drop
        for part in (part for player in self.players(method) for part in player.method.filters):
            found.update(part.counts())
        return found

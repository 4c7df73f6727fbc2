"""Who sits at which environment, and what each sees there: one player, or several who take turns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from etude.core.episodes import Episode, StopReason
from etude.core.slots import Context
from etude.experience.lines import Lines
from etude.experience.looks import Looks, Views
from etude.experience.texts import Texts
from etude.experience.views import View
from etude.policies.sampling import Sampling

if TYPE_CHECKING:
    from etude.experience.rollout import Start
    from etude.policies.language import LanguagePolicy
    from etude.policies.protocols import Engine


@dataclass
class Speaker:
    """A model with a view of episodes: all seats that have both are sampled together."""

    policy: LanguagePolicy
    texts: Texts
    lines: Lines
    looks: Looks


class Seats:
    """Seats are numbered, those at one environment one after another; each has an episode, as its player sees it.

    Args:
        view: of players that have none of their own.
        engine: what samples in place of the context's policy; None: the policy itself.
    """

    def __init__(
        self, starts: Sequence[Start], context: Context, view: View, sampling: Sampling, engine: Engine | None = None
    ) -> None:  # fmt: skip
        self.starts, self.context, self.engine = starts, context, engine
        self.players: tuple[str, ...] = context.task.players
        self.size = max(1, len(self.players))
        self.episodes = [made for start in starts for made in self._made(start)]
        self.now = [world * self.size for world in range(len(starts))]
        """The seat at each environment whose turn it is."""
        self.ends: dict[int, StopReason] = {}
        """How the last thing ended that a player said who has passed the turn on."""
        kinds = {name: self._kind(name, view) for name in dict.fromkeys(e.player for e in self.episodes)}
        self.whose = [kinds[e.player] for e in self.episodes]
        self.speakers = {kind: self._speaker(*kind, sampling) for kind in kinds.values()}

    def _made(self, start: Start) -> list[Episode]:
        if not self.players:
            return [blank(start)]
        draws = [start.draw.child("player", k) if k else start.draw for k in range(self.size)]
        own = [start._replace(player=name, draw=draw) for name, draw in zip(self.players, draws)]
        episodes = [blank(each) for each in own]
        for episode in episodes[1:]:
            episode.seed = episodes[0].seed
        return episodes

    def _kind(self, player: str, view: View) -> tuple[int, View]:
        """The number of a player's model, and its view."""
        seat = self.context.seat(player)
        number = next(n for n, p in enumerate(self._policies()) if p is seat.policy)
        return number, view if seat.view is None else seat.view

    def _policies(self) -> list[LanguagePolicy]:
        return [self.context.policy, *(seat.policy for seat in self.context.seats.values())]

    def _speaker(self, number: int, view: View, sampling: Sampling) -> Speaker:
        policy = self._policies()[number]
        engine = self.engine if number == 0 else None
        texts = Texts(Context(self.context.task, policy, self.context.stream))
        lines = Lines(engine or policy.converse())
        if view.whole:
            return Speaker(policy, texts, lines, Looks(self.episodes))
        draws = [e.draw for e in self.episodes if e.draw is not None]
        return Speaker(policy, texts, lines, Views(self.episodes, view, draws, texts, lines, sampling))

    def world(self, seat: int) -> int:
        """The environment that a seat is at."""
        return seat // self.size

    def at(self, seat: int) -> Speaker:
        """Who speaks there."""
        return self.speakers[self.whose[seat]]

    def speaking(self, going: Sequence[int]) -> Iterator[tuple[Speaker, list[int], list[int]]]:
        """Who speaks at seats whose turn it is: a speaker, its seats, and those of the speakers behind it."""
        left = list(going)
        for kind, speaker in self.speakers.items():
            mine = left if len(self.speakers) == 1 else [seat for seat in left if self.whose[seat] == kind]
            left = [] if mine is left else [seat for seat in left if self.whose[seat] != kind]
            yield speaker, mine, left

    def table(self, world: int) -> list[Episode]:
        """The episodes of all seats at an environment."""
        return self.episodes[world * self.size : (world + 1) * self.size]

    def firsts(self) -> list[Episode]:
        """One episode of each environment."""
        return self.episodes[:: self.size]

    def named(self, world: int, player: str) -> int:
        """The seat of a player at an environment."""
        return world * self.size + self.players.index(player)

    def waiting(self, going: Collection[int]) -> list[int]:
        """Seats where others speak now, of environments that go on: what they have been shown is gone on from."""
        if self.size == 1:
            return []
        ours = {self.world(seat) for seat in going}
        known = set(going)
        return [s for w in sorted(ours) for s in range(w * self.size, (w + 1) * self.size) if s not in known]

    def end(self, seat: int, why: StopReason) -> None:
        """The episode ends here, for everybody at this table."""
        for episode in self.table(self.world(seat)):
            episode.stop = why

    def played(self) -> list[Episode]:
        """One episode for each environment, its first player's, with those of the others beside it."""
        for speaker in self.speakers.values():
            speaker.looks.finish()
        for first, *others in (self.table(world) for world in range(len(self.starts))):
            first.beside = [e for e in others if e.action_count]
        return self.firsts()


def blank(start: Start) -> Episode:
    """An episode in which nothing has happened yet."""
    seed = start.draw.child("environment").key % (1 << 31) if start.seed is None else start.seed
    return Episode(
        start.problem, group=start.group, player=start.player, seed=seed, draw=start.draw, parent=start.parent,
        fork_turn=start.turns if start.segments else None,
    )  # fmt: skip

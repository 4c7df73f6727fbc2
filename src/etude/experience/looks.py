"""What episodes show while they are played, and the rows that this makes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from etude.core.draws import Draw
from etude.core.episodes import Episode, Segment, StopReason
from etude.core.errors import DataError
from etude.experience.lines import Lines
from etude.experience.views import Look, View, count, only_seen
from etude.policies.sampling import Sampling

if TYPE_CHECKING:
    from etude.experience.texts import Texts


class Looks:
    """Episodes of which everything is seen: each is its own view, and its own row."""

    def __init__(self, episodes: Sequence[Episode]) -> None:
        self.episodes = episodes

    def ready(self, going: Sequence[int], away: Collection[int]) -> list[int]:
        """The episodes that have a view to go on from; the others end here.

        Args:
            away: others, that will be gone on with.
        """
        return list(going)

    def tokens(self, i: int) -> list[int]:
        """What episode i shows now."""
        return self.episodes[i].tokens

    def said(self, going: Sequence[int]) -> None:
        """These have said something, each the last of its segments."""

    def finish(self) -> None:
        """All episodes are over."""


class Views(Looks):
    """Episodes of which a view is seen. They end with the rows that were sampled from (`Episode.views`)."""

    def __init__(
        self, episodes: Sequence[Episode], view: View, draws: Sequence[Draw], texts: Texts, lines: Lines,
        sampling: Sampling,
    ) -> None:  # fmt: skip
        super().__init__(episodes)
        self.view, self.draws, self.texts, self.lines, self.sampling = view, draws, texts, lines, sampling
        self.now: dict[int, Look] = {}
        self.rows: list[list[list[Segment]]] = [[] for _ in episodes]

    def ready(self, going: Sequence[int], away: Collection[int]) -> list[int]:
        """The episodes that have a view, those that are asked for a summary with it already written."""
        left = self._looked(going)
        while asked := [i for i in left if self.now[i].summary]:
            self._summarise(asked, {*left, *away})
            seen = {*self._looked(asked)}
            left = [i for i in left if i not in asked or i in seen]
        return left

    def tokens(self, i: int) -> list[int]:
        return _tokens(self.now[i].segments)

    def said(self, going: Sequence[int]) -> None:
        for i in going:
            _add(self.rows[i], self.now.pop(i).segments, self.episodes[i].segments[-1])

    def finish(self) -> None:
        """The rows; the last with what was answered last, where it goes on to there."""
        for episode, rows in zip(self.episodes, self.rows):
            if rows:  # else nothing was said there, or in another view
                _end(episode, rows, self.view, self.texts)

    def _looked(self, going: Sequence[int]) -> list[int]:
        """Look at episodes; those that are not full."""
        left = []
        for i in going:
            look = self.view.look(self.episodes[i], self.sampling.max_tokens, self.texts)
            if look is None:
                self.episodes[i].stop = StopReason.CONTEXT_OVERFLOW
            else:
                self.now[i] = look
                left.append(i)
        return left

    def _summarise(self, asked: Sequence[int], others: Collection[int]) -> None:
        """Have the policy write a summary of what each of these shows."""
        for size in sorted({self.now[i].summary for i in asked}):
            some = [i for i in asked if self.now[i].summary == size]
            numbers = [sum(s.role == "summary" for s in self.episodes[i].segments) for i in some]
            draws = [self.draws[i].child("summary", n, "tokens") for i, n in zip(some, numbers)]
            how = dataclasses.replace(self.sampling, max_tokens=size, stop=())
            views = {i: self.tokens(i) for i in some}
            for i, completion in zip(some, self.lines.sample(views, how, draws, [0] * len(some), False, others)):
                request = self.now[i].segments[-1]
                self.episodes[i].segments += [request, self.texts.said(completion, "summary")]
            self.said(some)


def as_seen(episode: Episode, view: View, texts: Texts) -> Episode:
    """A written episode with the rows that it would have if its turns had been taken in a view.

    Raises: DataError where the view would have a summary written, or ends the episode, before one of the turns.
    """
    if view.whole:
        return episode
    again, rows = dataclasses.replace(episode, segments=[]), list[list[Segment]]()
    for segment in episode.segments:
        if any(segment.action_mask):
            look = view.look(again, len(segment.tokens), texts)
            if look is None or look.summary:
                turn = 1 + sum(any(s.action_mask) for s in again.segments)
                raise DataError(
                    f"Turn {turn} of the worked answer to problem {episode.problem.id!r} has no room in "
                    f"{type(view).__name__} (experience.view) without a summary, which nobody wrote: choose another "
                    "view, or give it more room."
                )
            _add(rows, look.segments, segment)
        again.segments.append(segment)
    if rows:
        _end(again, rows, view, texts)
    return again


def _add(rows: list[list[Segment]], seen: Sequence[Segment], said: Segment) -> None:
    """A turn that was taken in a view: in the last row if the view goes on from that, else in a row of its own."""
    if rows and (rest := _behind(rows[-1], seen)) is not None:
        rows[-1] += [*rest, said]
    else:
        rows.append([*map(only_seen, seen), said])


def _end(episode: Episode, rows: list[list[Segment]], view: View, texts: Texts) -> None:
    """Give an episode that is over its rows; the last with what was answered last, where it goes on to there."""
    if not any(episode.segments[-1].action_mask):
        look = view.look(episode, 0, texts)
        rest = None if look is None or look.summary else _behind(rows[-1], look.segments)
        rows[-1] += rest or []
    if len(rows) != 1 or _tokens(rows[0]) != episode.tokens:
        episode.views = rows


def _tokens(segments: Sequence[Segment]) -> list[int]:
    return [t for s in segments for t in s.tokens]


def _behind(row: Sequence[Segment], seen: Sequence[Segment]) -> list[Segment] | None:
    """What a view shows behind the tokens of a row; None where it does not go on from them."""
    held, skip = _tokens(row), count(row)
    if _tokens(seen)[:skip] != held:
        return None
    rest = list[Segment]()
    for s in seen:
        size = len(s.tokens)
        if skip < size:
            rest.append(_from(only_seen(s), skip))
        skip = max(0, skip - size)
    return rest


def _from(segment: Segment, place: int) -> Segment:
    """What a segment has from some token on."""
    if not place:
        return segment
    return dataclasses.replace(
        segment, tokens=segment.tokens[place:], action_mask=segment.action_mask[place:],
        behaviour_logp=segment.behaviour_logp[place:],
    )  # fmt: skip

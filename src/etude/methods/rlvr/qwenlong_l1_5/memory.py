"""What a memory agent sees of a text that is longer than its context (MemAgent; arXiv:2512.12967)."""

from __future__ import annotations

from etude.core.episodes import Episode
from etude.experience.texts import Texts
from etude.experience.views import Look, View, parted
from etude.policies.chat import conversational


class MemoryAndChunk(View):
    """The first message, what the policy said last (its memory), and what was shown after it (the next piece).

    Everything else is gone: a piece was seen once, and what was not written down is lost. Before the first memory it
    is all that the episode began with. Every memory is a row of its own, and all rows of an episode share its
    advantage. Where there are no conversations, a line break stands for the token that ended the memory.

    >>> from types import SimpleNamespace
    >>> from etude.core.episodes import Segment
    >>> play = [Segment("user", "?c3", tokens=[5]), Segment("user", "first", tokens=[6, 6])]
    >>> for memory in (7, 8):
    ...     play += [Segment("assistant", tokens=[memory], action_mask=[1]), Segment("user", tokens=[9])]
    >>> texts = SimpleNamespace(line=lambda said: Segment("assistant", tokens=[*said.tokens, 0]))
    >>> [s.tokens for s in MemoryAndChunk().look(Episode(None, play), room=4, texts=texts).segments]
    [[5], [8, 0], [9]]
    """

    def look(self, episode: Episode, room: int, texts: Texts) -> Look:
        opening, turns = parted(episode.segments)
        if not turns:
            return Look(opening)
        said, *answers = turns[-1]
        return Look([opening[0], said if conversational(opening) else texts.line(said), *answers])

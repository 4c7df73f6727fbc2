"""What the policy sees of an episode before it says something: a view.

Every view that was sampled from becomes a training row (`Episode.views`), whose only actions are the tokens that were
sampled in it. A view that goes on from the one before, token for token, stays in its row: with the full history an
episode is one row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from etude.core.episodes import Episode, Segment
from etude.core.fields import Count, WholeNumber
from etude.core.part import Part
from etude.policies.chat import conversational

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.core.task import LanguageTask, Task
    from etude.experience.texts import Texts


class Look(NamedTuple):
    """What the policy sees now.

    Args:
        segments: of which it sees the tokens.
        summary: tokens that a summary of them may have, which it writes before its next turn; 0: the turn comes now.
    """

    segments: list[Segment]
    summary: int = 0

    @property
    def size(self) -> int:
        """Tokens that are seen."""
        return count(self.segments)


class View(Part, abstract=True):
    """What the policy sees of an episode."""

    slot = "view"
    whole: ClassVar[bool] = False
    """Whether that is always everything, so that nobody needs to ask."""

    def look(self, episode: Episode, room: int, texts: Texts) -> Look | None:
        """What is seen after all that happened in an episode so far; None: there is no room left, and it ends here.

        Args:
            room: tokens that the next turn may have.
            texts: makes tokens of what is written into a view.
        """
        raise NotImplementedError


class FullHistory(View):
    """Everything that happened, until the context is full.

    >>> said = Segment("assistant", tokens=[7, 8], action_mask=[1, 1])
    >>> FullHistory().look(Episode(None, [Segment("user", tokens=[5]), said]), room=4, texts=None).size
    3
    """

    whole: ClassVar[bool] = True

    def look(self, episode: Episode, room: int, texts: Texts) -> Look:
        return Look(episode.segments)


class LastTurns(View):
    """What the episode began with, and the last `turns` turns with what was answered.

    >>> play = [Segment("user", tokens=[5])]
    >>> for _ in range(3):
    ...     play += [Segment("assistant", tokens=[7, 8], action_mask=[1, 1]), Segment("user", tokens=[9])]
    >>> LastTurns(turns=2).look(Episode(None, play), room=4, texts=None).size  # of 10
    7
    """

    turns: Count = 4

    def look(self, episode: Episode, room: int, texts: Texts) -> Look:
        opening, turns = parted(episode.segments)
        return Look([*opening, *(s for turn in turns[-self.turns :] for s in turn)])


class LastObservation(View):
    """What was said last to the policy, alone: of games whose every observation tells the whole state, as chess.

    In a conversation it is its only message, but for the system's. Where nothing was said after a turn, what was said
    before it stays in view.

    >>> play = [Segment("user", tokens=[5]), Segment("assistant", tokens=[7, 8], action_mask=[1, 1])]
    >>> LastObservation().look(Episode(None, play), room=4, texts=None).size
    1
    """

    def look(self, episode: Episode, room: int, texts: Texts) -> Look:
        opening, turns = parted(episode.segments)
        answers = next((answers for _, *answers in reversed(turns) if answers), [])
        if not answers:
            return Look(opening)
        system = [s for s in opening if s.role == "system"] if conversational(opening) else []
        return Look(texts.opened([dataclasses.replace(s) for s in (*system, *answers)]))


class Where(Part, abstract=True):
    """Which observations."""

    slot = "where"

    def chosen(self, segment: Segment, age: int) -> bool:
        """Whether this is one, which answered the turn that `age` turns have followed since."""
        raise NotImplementedError


class OlderThan(Where):
    """Those that answered an older turn than the last `turns`.

    >>> [OlderThan(turns=2).chosen(Segment("user"), age) for age in (0, 1, 2)]
    [False, False, True]
    """

    turns: Count = 1

    def chosen(self, segment: Segment, age: int) -> bool:
        return age >= self.turns


class Tagged(Where):
    """Those that the environment, or a judgement, has tagged: `segment.info[tag]` is true.

    >>> Tagged(tag="noise").chosen(Segment("tool", info={"noise": True}), age=0)
    True
    """

    tag: str = "noise"

    def chosen(self, segment: Segment, age: int) -> bool:
        return bool(segment.info.get(self.tag))


class DropObservations(View):
    """Everything but some of the observations.

    Args:
        where: which are left out.
        instead: text that stands in the place of each; through the chat template in a conversation.

    >>> play = [Segment("user", tokens=[5])]
    >>> for _ in range(3):
    ...     play += [Segment("assistant", tokens=[7, 8], action_mask=[1, 1]), Segment("user", tokens=[9, 9])]
    >>> DropObservations(where=OlderThan(turns=1)).look(Episode(None, play), room=4, texts=None).size  # of 13
    9
    """

    where: Where = OlderThan()
    instead: str = ""

    def look(self, episode: Episode, room: int, texts: Texts) -> Look:
        opening, turns = parted(episode.segments)
        seen = list(opening)
        for age, (said, *answers) in zip(range(len(turns) - 1, -1, -1), turns):
            out = [self.where.chosen(s, age) for s in answers]
            seen.append(said)
            if not any(out):
                seen += answers
            elif conversational(opening):
                kept = [self._empty(s) if left else s for s, left in zip(answers, out)]
                seen += texts.answered(kept, said, episode)
            else:
                kept = [self._empty(s) if left else s for s, left in zip(answers, out)]
                seen += [texts.plain(s) if left and s.text else s for s, left in zip(kept, out)]
        return Look(seen)

    def _empty(self, segment: Segment) -> Segment:
        info = {k: v for k, v in segment.info.items() if k != "said"}
        return Segment(segment.role, self.instead, info=info)


class SummaryAt(View):
    """What the episode began with and, where all would not fit, a summary that the policy wrote (arXiv:2510.06727).

    Before a turn that might pass `limit` the policy is asked for a summary of what it sees; what it sees then is the
    beginning of the episode, the summary, and what happens from there on. The summary is sampled like a turn, and is
    trained like one. Where not even the request fits, the last turn is left out of what is summarised, with its answer.

    Args:
        limit: most tokens of a view with what is said in it; at most the model's context.
        most: summaries in an episode; with none left it ends (`StopReason.CONTEXT_OVERFLOW`).
        tokens: most tokens of a summary.
        request: text that asks for it; a user's message in a conversation.

    Three turns of three tokens fit behind a prompt of one where there is room for the next:

    >>> play = [Segment("user", tokens=[5])]
    >>> for _ in range(3):
    ...     play += [Segment("assistant", tokens=[7, 8], action_mask=[1, 1]), Segment("user", tokens=[9])]
    >>> SummaryAt(limit=12).look(Episode(None, play), room=2, texts=None).summary
    0
    >>> SummaryAt(limit=11, most=0).look(Episode(None, play), room=2, texts=None) is None
    True
    """

    limit: Count = 512
    most: WholeNumber = 4
    tokens: Count = 64
    request: str = "Summary:"

    def look(self, episode: Episode, room: int, texts: Texts) -> Look | None:
        opening, turns = parted(episode.segments)
        places = [n for n, turn in enumerate(turns) if turn[0].role == "summary"]
        live = turns[places[-1] + 1 :] if places else turns
        begin = _resumed(opening, turns[places[-1]][0], texts) if places else opening
        if count(begin) + sum(map(count, live)) + room <= self.limit:
            return Look([*begin, *(s for turn in live for s in turn)])
        if len(places) == self.most:
            return None
        for last in range(len(live), 0, -1):
            seen = [
                *begin,
                *(s for turn in live[: last - 1] for s in turn),
                *_asked(live[last - 1], self, texts, episode),
            ]
            if count(seen) + self.tokens <= self.limit:
                return Look(seen, self.tokens)
        return None


def _resumed(opening: Sequence[Segment], summary: Segment, texts: Texts) -> list[Segment]:
    """The beginning of an episode with a summary of what followed: in the last message of a conversation."""
    if not conversational(opening):
        return [*opening, texts.line(summary)]
    added = [*opening[:-1], _longer(opening[-1], "\n" + summary.text)]
    return texts.opened(added)


def _longer(segment: Segment, text: str) -> Segment:
    info: dict[str, Any] = dict(segment.info)
    if said := info.get("said"):
        content = said.get("content")
        more = [*content, {"type": "text", "text": text}] if isinstance(content, list) else (content or "") + text
        info["said"] = {**said, "content": more}
    return Segment(segment.role, segment.text + text, info=info)


def _asked(turn: Sequence[Segment], view: SummaryAt, texts: Texts, episode: Episode) -> list[Segment]:
    """A turn and what was answered, with the request for a summary behind it."""
    said, *answers = turn
    request = Segment("user", view.request, info={"request": True})
    if not conversational(episode.segments):
        return [said, *answers, texts.plain(request)]
    request.info["message"] = True
    return [said, *texts.answered([*answers, request], said, episode)]


def view_of(method: Method, task: LanguageTask) -> View:
    """What the policy of a method sees before each turn; everything of one turn, and without a view of its own."""
    view = getattr(method.slots().get("experience"), "view", None)
    return view if isinstance(view, View) and task.max_turns > 1 else FullHistory()


def unused(view: View, task: Task) -> str | None:
    """Why a view is none of a task, as a sentence; None if it can be."""
    if view.whole or getattr(task, "max_turns", 1) > 1:
        return None
    return (
        f"{type(view).__name__} (experience.view) is what is seen before each turn, and task {task.id!r} has one turn: "
        "set experience.view=full-history."
    )


def parted(segments: Sequence[Segment]) -> tuple[list[Segment], list[list[Segment]]]:
    """What an episode began with, and its turns: what the policy sampled, each with what was answered to it."""
    opening, turns = list[Segment](), list[list[Segment]]()
    for s in segments:
        if any(s.action_mask):
            turns.append([s])
        else:
            (turns[-1] if turns else opening).append(s)
    return opening, turns


def count(segments: Sequence[Segment]) -> int:
    """Tokens of segments."""
    return sum(len(s.tokens) for s in segments)


def only_seen(segment: Segment) -> Segment:
    """A segment as a view shows it that it was not sampled in: nothing of it is learned or paid there."""
    if not any(segment.action_mask) and not segment.reward:
        return segment
    return dataclasses.replace(segment, action_mask=[0] * len(segment.tokens), reward=0.0, info={})

"""Playing episodes: all of them advance together, turn by turn, through the environment of the task.

Tokens are the only record of what was sampled. Text goes one way: from tokens to the environment; what the
environment answers is encoded once and never decoded back.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from etude.core.draws import Draw
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import DataError
from etude.core.meters import note
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.answers import Faults, check_observations, check_result
from etude.experience.lines import Lines
from etude.experience.looks import Looks, Views
from etude.experience.texts import Texts, observed
from etude.experience.views import FullHistory, View
from etude.experience.worlds import Answer, Worlds, worlds_of
from etude.policies.sampling import Completion, Sampling
from etude.policies.showing import shown

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy


class Start(NamedTuple):
    """Where an episode begins: at its problem, or inside another episode of the same problem.

    Args:
        draw: where its random numbers come from: a child of its own for each turn, and one for its environment. Those
            of another episode, at the same turn, say again what that one said, wherever it was interrupted.
        segments: what the policy said there, to be said again; the environment answers it anew, under the same `seed`.
            None of these tokens are trained on.
        open: whether the last of them is only the beginning of a turn, which the policy goes on with.
        hint: text that the policy is shown after the prompt and what was said, before a turn that it goes on with.
        parent: index of the other episode.
    """

    problem: Problem
    group: int
    draw: Draw
    segments: tuple[Segment, ...] = ()
    open: bool = False
    hint: str = ""
    seed: int | None = None
    parent: int | None = None

    @property
    def turns(self) -> int:
        """Whole turns before the first that the policy says something in."""
        return len(self.segments) - self.open

    @property
    def begun(self) -> int:
        """Tokens of that turn that were said already."""
        return len(self.segments[-1].tokens) if self.open else 0


def fresh(problems: Sequence[Problem], size: int | Sequence[int], stream: Stream) -> list[Start]:
    """`size` starts at each problem, or as many as `size` says of each; their group is the problem's place.

    The stream says when: its address, the problem, how often the problem stood in the list before, and the number of
    the sample are the address of an episode's draw. So the starts of a step are made together, and played in any order.
    """
    sizes = [size] * len(problems) if isinstance(size, int) else size
    starts = []
    for group, (problem, number, count) in enumerate(zip(problems, occurrences(problems), sizes, strict=True)):
        draw = stream.draw("problem", problem.id, number)
        starts += [Start(problem, group, draw.child(sample)) for sample in range(count)]
    return starts


def occurrences(problems: Sequence[Problem]) -> list[int]:
    """How often each problem stood in the list before."""
    seen: Counter[str] = Counter()
    numbers = []
    for problem in problems:
        numbers.append(seen[problem.id])
        seen[problem.id] += 1
    return numbers


def first_tokens(segment: Segment, count: int, policy: LanguagePolicy) -> Segment:
    """The beginning of a turn, `count` tokens long, to go on from (`Start.open`)."""
    kept = segment.tokens[:count]
    return dataclasses.replace(
        segment, text=policy.decode(kept), tokens=kept, action_mask=segment.action_mask[:count],
        behaviour_logp=segment.behaviour_logp[:count], info={},
    )  # fmt: skip


EVERYTHING = FullHistory()


def rollout(
    starts: Sequence[Start], context: Context, sampling: Sampling, view: View = EVERYTHING
) -> list[Episode]:  # fmt: skip
    """One episode per start, by the run's samplers if it has any; which others are played with it changes none.

    Args:
        view: what the policy sees of an episode; of starts inside of others it sees everything.
    """
    play = played if context.samplers is None else context.samplers.play
    episodes: list[Episode] = play(starts, context, sampling, view)
    return episodes


def played(starts: Sequence[Start], context: Context, sampling: Sampling, view: View = EVERYTHING) -> list[Episode]:
    """One episode per start, played in this process.

    A turn is sampled for all that have one, then all their environments answer: in this process or, if the task has
    `workers`, many at once in processes of their own; there an episode need not wait for the others (`by_arrival`).
    Episodes whose environment raised, or did not answer there, end
    with `StopReason.FAULT`.

    Raises EnvironmentFault if environments keep failing, one hangs in this process, or returns a reward that is not a
    finite number or an observation that is not text.
    """
    episodes = [blank(start) for start in starts]
    with worlds_of(context.task, episodes) as worlds:
        play, lines = _Play(starts, episodes, worlds, context), Lines(context.policy.converse())
        turns, going = [start.turns for start in starts], play.begin()
        looks = Looks(episodes) if view.whole else Views(episodes, view, starts, play.texts, lines, sampling)
        while going or play.away:
            going = looks.ready([i for i in going if _has_turn(episodes[i], turns[i], context)], play.away)
            views = {i: tokens for i in going if _has_room(episodes[i], tokens := looks.tokens(i), context)}
            if going := list(views):
                draws = [starts[i].draw.child("turn", turns[i], "tokens") for i in going]
                begun = [starts[i].begun if turns[i] == starts[i].turns else 0 for i in going]
                last = all(turns[i] + 1 >= context.task.max_turns for i in going)
                play.say(going, lines.sample(views, sampling, draws, begun, last, play.away))
                looks.said(going)
                for i in going:
                    turns[i] += 1
            going = play.hear()
        looks.finish()
    return episodes


def blank(start: Start) -> Episode:
    """An episode in which nothing has happened yet."""
    seed = start.draw.child("environment").key % (1 << 31) if start.seed is None else start.seed
    return Episode(
        start.problem, group=start.group, seed=seed, draw=start.draw, parent=start.parent,
        fork_turn=start.turns if start.segments else None,
    )  # fmt: skip


def _has_turn(episode: Episode, turn: int, context: Context) -> bool:
    """Whether there is this turn; otherwise the episode ends here."""
    if turn < context.task.max_turns:
        return True
    episode.stop = StopReason.MAX_TURNS
    return False


def _has_room(episode: Episode, view: Sequence[int], context: Context) -> bool:
    """Whether there is room for at least one more token behind what is seen; otherwise the episode ends here."""
    if len(view) < context.policy.context:
        return True
    episode.stop = StopReason.CONTEXT_OVERFLOW
    return False


class _Play:
    """What happens in episodes between the policy's turns."""

    def __init__(
        self, starts: Sequence[Start], episodes: Sequence[Episode], worlds: Worlds, context: Context
    ) -> None:  # fmt: skip
        self.starts, self.episodes, self.worlds, self.context = starts, episodes, worlds, context
        self.faults, self.texts = Faults(), Texts(context)
        self.away: dict[int, tuple[Segment, StopReason]] = {}
        """What episodes said whose environments have not answered."""

    def begin(self) -> list[int]:
        """Reset the environments and replay what was said; the episodes that go on from there."""
        all_of_them = range(len(self.episodes))
        going = [i for i, answer in zip(all_of_them, self.worlds.reset(all_of_them)) if self._open(i, answer)]
        for turn in range(max((start.turns for start in self.starts), default=0)):
            again = [i for i in going if turn < self.starts[i].turns]
            said = [_said_again(self.starts[i].segments[turn], replayed=True) for i in again]
            self._tell(again, said, [StopReason.END_OF_TEXT] * len(again))
            kept = set[int]()
            while self.away:
                kept.update(self.hear())
            going = [i for i in going if turn >= self.starts[i].turns or i in kept]
        for i in going:
            self._show_rest(i)
        return going

    def say(self, going: Sequence[int], completions: Sequence[Completion]) -> None:
        """Give the environments what the policy said."""
        said = [self._said(self.episodes[i], completion) for i, completion in zip(going, completions)]
        self._tell(going, said, [c.stop for c in completions])

    def hear(self) -> list[int]:
        """The episodes that go on, of those whose environments answered."""
        return [i for i, answer in self.worlds.hear() if self._take(i, *self.away.pop(i), answer)]

    def _tell(self, which: Sequence[int], said: Sequence[Segment], stops: Sequence[StopReason]) -> None:
        for i, segment, stop in zip(which, said, stops):
            self.episodes[i].segments.append(segment)
            self.away[i] = segment, stop
        self.worlds.tell(which, said)

    def _open(self, i: int, answer: Answer) -> bool:
        """Show what an environment was reset to; False if the episode is lost."""
        episode, context = self.episodes[i], self.context
        if answer.fault:
            return self.faults.lost(episode, answer)
        self.faults.fine()
        check_observations(answer.returned, episode, context)
        segments = shown(answer.returned, context.task, context.policy)
        if answer.used is not None and segments:
            note(segments[0], answer.used, answer.seconds)
        for segment, tokens in zip(segments, self.texts.opening(segments)):
            _observe(episode, segment, tokens)
        if not episode.tokens:
            raise DataError(
                f"Problem {episode.problem.id!r} has an empty prompt; the policy needs a token to go on from."
            )
        return True

    def _show_rest(self, i: int) -> None:
        """What comes between a start's whole turns and the first that the policy says something in."""
        start, episode = self.starts[i], self.episodes[i]
        if start.hint:
            hint = Segment("critique", start.hint, info={"hint": True})
            _observe(episode, hint, self.context.policy.encode(start.hint))
        if start.open:
            episode.segments.append(_said_again(start.segments[-1], replayed=True, open=True))

    def _said(self, episode: Episode, completion: Completion) -> Segment:
        """The segment of what the policy said, whole where its turn was begun elsewhere."""
        segment, before = self.texts.said(completion), episode.segments[-1]
        if before.info.get("open"):
            segment = _joined(before, segment, self.context.policy)
            episode.segments.pop()
        return segment

    def _take(self, i: int, segment: Segment, stop: StopReason, answer: Answer) -> bool:
        """Write down what an environment answered; True if the episode goes on."""
        episode, context, result = self.episodes[i], self.context, answer.returned
        if answer.fault:
            return self.faults.lost(episode, answer)
        self.faults.fine()
        check_result(result, episode, context)
        note(segment, answer.used, answer.seconds)
        segment.reward = float(result.reward)
        if result.info:
            episode.info.update(result.info)
        if result.terminated:
            episode.stop = stop if stop.cut else StopReason.TERMINATED
            return False
        reply = self.texts.reply(result.segments, episode, stop)
        if result.truncated:
            episode.stop = StopReason.TRUNCATED
            if len(episode.tokens) + sum(map(len, reply)) > context.policy.context:
                return False
        for extra, tokens in zip(result.segments, reply):
            _observe(episode, extra, tokens)  # also of a truncated episode, whose value goes on from there
        return not result.truncated


def _said_again(segment: Segment, **info: bool) -> Segment:
    """What was said elsewhere and is not trained on here."""
    return dataclasses.replace(segment, action_mask=[0] * len(segment.tokens), info=info)


def _joined(begun: Segment, rest: Segment, policy: LanguagePolicy) -> Segment:
    """One turn from its replayed beginning and what was sampled after it."""
    tokens = begun.tokens + rest.tokens
    return Segment(
        "assistant", policy.decode(tokens), tokens, begun.action_mask + rest.action_mask,
        begun.behaviour_logp + rest.behaviour_logp, rest.version,
        info={**rest.info, "begun": len(begun.tokens)},
    )  # fmt: skip


def _observe(episode: Episode, segment: Segment, tokens: list[int]) -> None:
    episode.segments.append(observed(segment, tokens))

"""Playing episodes: all of them advance together, turn by turn, through the environment of the task.

Tokens are the only record of what was sampled. Text goes one way: from tokens to the environment; what the
environment answers is encoded once and never decoded back.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from etude.core.draws import Draw
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import DataError, EnvironmentFault
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import StepResult
from etude.experience.worlds import Answer, Worlds, whose, worlds_of
from etude.policies.chat import arguments, conversational, opening, reply
from etude.policies.sampling import Completion, Sampling
from etude.policies.showing import shown

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy
    from etude.policies.protocols import Engine

MAX_FAULTS = 3
"""Episodes in a row that an environment may lose before the run stops."""


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


def rollout(starts: Sequence[Start], context: Context, sampling: Sampling) -> list[Episode]:
    """One episode per start, by the run's samplers if it has any; which others are played with it changes none."""
    play = played if context.samplers is None else context.samplers.play
    episodes: list[Episode] = play(starts, context, sampling)
    return episodes


def played(starts: Sequence[Start], context: Context, sampling: Sampling) -> list[Episode]:
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
        play, lines = _Play(starts, episodes, worlds, context), _Lines(context.policy.converse())
        turns, going = [start.turns for start in starts], play.begin()
        while going or play.away:
            if going := [i for i in going if _fits(episodes[i], turns[i], context)]:
                views = {i: episodes[i].tokens for i in going}
                draws = [starts[i].draw.child("turn", turns[i], "tokens") for i in going]
                begun = [starts[i].begun if turns[i] == starts[i].turns else 0 for i in going]
                last = all(turns[i] + 1 >= context.task.max_turns for i in going)
                play.say(going, lines.sample(views, sampling, draws, begun, last, play.away))
                for i in going:
                    turns[i] += 1
            going = play.hear()
    return episodes


class _Lines:
    """The rows of a conversation by episode: what an episode shows is read once, as far as it goes on from before."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.rows = engine, dict[int, int]()

    def sample(
        self,
        views: Mapping[int, list[int]],
        sampling: Sampling,
        draws: Sequence[Draw],
        begun: Sequence[int],
        last: bool,
        away: Collection[int] = (),
    ) -> list[Completion]:
        """One completion after each view; `last`: none of them is gone on with; `away`: others that will be."""
        self.engine.close([self.rows.pop(i) for i in [*self.rows] if i not in views and i not in away])
        known = [i for i in views if i in self.rows]
        held = {i: self.engine.tokens(self.rows[i]) for i in known}
        longer = [i for i in known if views[i][: len(held[i])] == held[i]]
        self.engine.extend([self.rows[i] for i in longer], [views[i][len(held[i]) :] for i in longer])
        others = [self.rows.pop(i) for i in known if i not in {*longer}]
        self.engine.close(others)
        new = [i for i in views if i not in self.rows]
        self.rows.update(zip(new, self.engine.open([views[i] for i in new])))
        said = self.engine.sample([self.rows[i] for i in views], sampling, draws, begun, last)
        if last:
            self.rows = {i: row for i, row in self.rows.items() if i not in views}
        return said


def blank(start: Start) -> Episode:
    """An episode in which nothing has happened yet."""
    seed = start.draw.child("environment").key % (1 << 31) if start.seed is None else start.seed
    return Episode(
        start.problem, group=start.group, seed=seed, draw=start.draw, parent=start.parent,
        fork_turn=start.turns if start.segments else None,
    )  # fmt: skip


class _Texts:
    """Tokens of what environments say and text of what the policy says: the same comes again and again."""

    def __init__(self, context: Context) -> None:
        self.policy, self.add_bos = context.policy, context.task.add_bos
        self.known: dict[tuple[object, ...], list[list[int]]] = {}
        self.spelled: dict[tuple[int, ...], str] = {}

    def opening(self, segments: Sequence[Segment]) -> list[list[int]]:
        """Tokens of each segment of an episode's beginning."""
        return self._once(_identity(segments), lambda: opening(segments, self.policy, self.add_bos))

    def reply(self, segments: Sequence[Segment], episode: Episode, stop: StopReason) -> list[list[int]]:
        """Tokens of each segment that answers: through the chat template in a conversation, else as they are."""
        if not conversational(episode.segments):
            return self._once(tuple(s.text for s in segments), lambda: [self.policy.encode(s.text) for s in segments])
        closed, given = stop is StopReason.END_OF_TEXT, arguments(episode.segments)
        key = (closed, repr(given), *_identity(segments))
        return self._once(key, lambda: reply(segments, self.policy, closed, given))

    def text(self, tokens: list[int]) -> str:
        """What tokens say."""
        key = tuple(tokens)
        if key not in self.spelled:
            self.spelled[key] = self.policy.decode(tokens)
        return self.spelled[key]

    def _once(self, key: tuple[object, ...], make: Callable[[], list[list[int]]]) -> list[list[int]]:
        if key not in self.known:
            self.known[key] = make()
        return [list(tokens) for tokens in self.known[key]]


def _identity(segments: Sequence[Segment]) -> tuple[object, ...]:
    """All that the tokens of segments depend on."""
    return tuple((s.role, s.text, *(repr(s.info.get(k)) for k in ("message", "said", "arguments"))) for s in segments)


def _fits(episode: Episode, turn: int, context: Context) -> bool:
    """Whether there is this turn, and room for at least one more token; otherwise the episode ends here."""
    if turn >= context.task.max_turns:
        episode.stop = StopReason.MAX_TURNS
        return False
    if sum(len(s.tokens) for s in episode.segments) < context.policy.context:
        return True
    episode.stop = StopReason.CONTEXT_OVERFLOW
    return False


class _Play:
    """What happens in episodes between the policy's turns."""

    def __init__(
        self, starts: Sequence[Start], episodes: Sequence[Episode], worlds: Worlds, context: Context
    ) -> None:  # fmt: skip
        self.starts, self.episodes, self.worlds, self.context = starts, episodes, worlds, context
        self.faults, self.texts = _Faults(), _Texts(context)
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
        _check_observations(answer.returned, episode, context)
        segments = shown(answer.returned, context.task, context.policy)
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
        segment = Segment(
            "assistant",
            self.texts.text(completion.tokens),
            completion.tokens,
            [1] * len(completion.tokens),
            completion.logp,
            self.context.policy.version,
        )
        if completion.entropy:
            segment.info["entropy"] = completion.entropy
        if completion.hidden is not None:
            segment.info["hidden"] = completion.hidden
        before = episode.segments[-1]
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
        _check_result(result, episode, context)
        segment.duration, segment.reward = answer.seconds, float(result.reward)
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
    segment.tokens, segment.action_mask = tokens, [0] * len(tokens)
    segment.behaviour_logp = [0.0] * len(tokens)
    episode.segments.append(segment)


# What an environment may not do


def _check_result(result: object, episode: Episode, context: Context) -> None:
    if not isinstance(result, StepResult):
        raise EnvironmentFault(f"{whose(context.task, episode)} returned {result!r}; a step must return a StepResult.")
    number = result.reward
    if isinstance(number, str) or not hasattr(number, "__float__") or float(number) - float(number) != 0:
        raise EnvironmentFault(
            f"{whose(context.task, episode)} returned the reward {number!r}; a reward must be a finite number."
        )
    _check_observations(result.segments, episode, context)


def _check_observations(segments: object, episode: Episode, context: Context) -> None:
    if not isinstance(segments, (list, tuple)):
        raise EnvironmentFault(f"{whose(context.task, episode)} returned {segments!r} instead of a list of Segments.")
    for s in segments:
        if not isinstance(s, Segment) or not isinstance(s.text, str):
            shown = repr(s.text) if isinstance(s, Segment) else repr(s)
            raise EnvironmentFault(
                f"{whose(context.task, episode)} returned the observation {shown}; it must be a Segment with text."
            )


class _Faults:
    """Counts environments that failed: one lost episode is survivable, a broken environment is not."""

    def __init__(self) -> None:
        self.row = 0

    def fine(self) -> None:
        self.row = 0

    def lost(self, episode: Episode, answer: Answer) -> bool:
        """Discard the episode. Raises EnvironmentFault after too many in a row."""
        episode.stop = StopReason.FAULT
        episode.info["fault"] = answer.fault
        self.row += 1
        if self.row >= MAX_FAULTS:
            raise EnvironmentFault(
                f"The environment failed in {self.row} episodes in a row; the last time, for problem "
                f"{episode.problem.id!r}: {answer.fault.rstrip('.')}."
            ) from answer.error
        return False

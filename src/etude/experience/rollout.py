"""Playing episodes: all of them advance together, turn by turn, through the environment of the task.

Tokens are the only record of what was sampled. Text goes one way: from tokens to the environment; what the
environment answers is encoded once and never decoded back.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from etude.core.draws import Draw
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import DataError, EnvironmentFault, EtudeError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.core.task import Environment, StepResult
from etude.experience.deadline import deadline
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
    """One episode per start; which others are played with it changes none of them.

    Episodes whose environment raised end with `StopReason.FAULT`.

    Raises EnvironmentFault if the environment keeps raising, hangs, or returns a reward that is not a finite number
    or an observation that is not text.
    """
    episodes = [_blank(start) for start in starts]
    worlds = [context.task.environment() for _ in starts]
    faults, texts, lines = _Faults(), _Texts(context), _Lines(context.policy.converse())
    going = [i for i, start in enumerate(starts) if _start(start, episodes[i], worlds[i], context, faults, texts)]
    turn = 0
    while going := [i for i in going if _fits(episodes[i], starts[i].turns + turn, context)]:
        views = {i: episodes[i].tokens for i in going}
        draws = [starts[i].draw.child("turn", starts[i].turns + turn, "tokens") for i in going]
        begun = [0 if turn else starts[i].begun for i in going]
        last = all(starts[i].turns + turn + 1 >= context.task.max_turns for i in going)
        completions = lines.sample(views, sampling, draws, begun, last)
        going = [i for i, c in zip(going, completions) if _answer(episodes[i], worlds[i], c, context, faults, texts)]
        turn += 1
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
    ) -> list[Completion]:
        """One completion after each view; `last`: none of them is gone on with."""
        self.engine.close([self.rows.pop(i) for i in [*self.rows] if i not in views])
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
            self.rows.clear()
        return said


def _blank(start: Start) -> Episode:
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


def _start(
    start: Start, episode: Episode, world: Environment, context: Context, faults: _Faults, texts: _Texts
) -> bool:
    """Reset the environment and replay what was said; True if the episode goes on from there."""
    try:
        with deadline(context.task.step_timeout, lambda: _hangs(world, episode, context)):
            segments = world.reset(episode.problem, episode.seed)
    except EtudeError:
        raise
    except Exception as error:
        return faults.lost(episode, error)
    faults.fine()
    _check_observations(segments, episode, context)
    segments = shown(segments, context.task, context.policy)
    for segment, tokens in zip(segments, texts.opening(segments)):
        _observe(episode, segment, tokens)
    if not episode.tokens:
        raise DataError(f"Problem {episode.problem.id!r} has an empty prompt; the policy needs a token to go on from.")
    for spoken in start.segments[: start.turns]:
        again = dataclasses.replace(spoken, action_mask=[0] * len(spoken.tokens), info={"replayed": True})
        episode.segments.append(again)
        if not _respond(episode, world, again, StopReason.END_OF_TEXT, context, faults, texts):
            return False
    if start.hint:
        hint = Segment("critique", start.hint, info={"hint": True})
        _observe(episode, hint, context.policy.encode(start.hint))
    if start.open:
        begun = start.segments[-1]
        episode.segments.append(
            dataclasses.replace(begun, action_mask=[0] * len(begun.tokens), info={"replayed": True, "open": True})
        )
    return True


def _fits(episode: Episode, turn: int, context: Context) -> bool:
    """Whether there is this turn, and room for at least one more token; otherwise the episode ends here."""
    if turn >= context.task.max_turns:
        episode.stop = StopReason.MAX_TURNS
        return False
    if sum(len(s.tokens) for s in episode.segments) < context.policy.context:
        return True
    episode.stop = StopReason.CONTEXT_OVERFLOW
    return False


def _answer(
    episode: Episode, world: Environment, completion: Completion, context: Context, faults: _Faults, texts: _Texts
) -> bool:
    """Give the environment what the policy said; True if the episode goes on."""
    policy, before = context.policy, episode.segments[-1]
    segment = Segment(
        "assistant",
        texts.text(completion.tokens),
        completion.tokens,
        [1] * len(completion.tokens),
        completion.logp,
        policy.version,
    )
    if completion.entropy:
        segment.info["entropy"] = completion.entropy
    if completion.hidden is not None:
        segment.info["hidden"] = completion.hidden
    if before.info.get("open"):  # a turn that was begun elsewhere
        segment = _joined(before, segment, policy)
        episode.segments.pop()
    episode.segments.append(segment)
    return _respond(episode, world, segment, completion.stop, context, faults, texts)


def _joined(begun: Segment, rest: Segment, policy: LanguagePolicy) -> Segment:
    """One turn from its replayed beginning and what was sampled after it."""
    tokens = begun.tokens + rest.tokens
    return Segment(
        "assistant", policy.decode(tokens), tokens, begun.action_mask + rest.action_mask,
        begun.behaviour_logp + rest.behaviour_logp, rest.version,
        info={**rest.info, "begun": len(begun.tokens)},
    )  # fmt: skip


def _respond(
    episode: Episode, world: Environment, segment: Segment, stop: StopReason, context: Context, faults: _Faults,
    texts: _Texts,
) -> bool:  # fmt: skip
    """Let the environment answer a turn of the policy; True if the episode goes on."""
    begun = time.monotonic()
    try:
        with deadline(context.task.step_timeout, lambda: _hangs(world, episode, context)):
            result = world.step(segment)
    except EtudeError:
        raise
    except Exception as error:
        return faults.lost(episode, error)
    faults.fine()
    _check_result(result, episode, context)
    segment.duration = time.monotonic() - begun
    segment.reward = float(result.reward)
    if result.info:
        episode.info.update(result.info)
    if result.terminated:
        episode.stop = stop if stop.cut else StopReason.TERMINATED
        return False
    answer = texts.reply(result.segments, episode, stop)
    if result.truncated:
        episode.stop = StopReason.TRUNCATED
        if len(episode.tokens) + sum(map(len, answer)) > context.policy.context:
            return False
    for extra, tokens in zip(result.segments, answer):
        _observe(episode, extra, tokens)  # also of a truncated episode, whose value goes on from there
    return not result.truncated


def _observe(episode: Episode, segment: Segment, tokens: list[int]) -> None:
    segment.tokens, segment.action_mask = tokens, [0] * len(tokens)
    segment.behaviour_logp = [0.0] * len(tokens)
    episode.segments.append(segment)


# What an environment may not do


def _check_result(result: object, episode: Episode, context: Context) -> None:
    if not isinstance(result, StepResult):
        raise EnvironmentFault(f"{_whose(episode, context)} returned {result!r}; a step must return a StepResult.")
    number = result.reward
    if isinstance(number, str) or not hasattr(number, "__float__") or float(number) - float(number) != 0:
        raise EnvironmentFault(
            f"{_whose(episode, context)} returned the reward {number!r}; a reward must be a finite number."
        )
    _check_observations(result.segments, episode, context)


def _check_observations(segments: object, episode: Episode, context: Context) -> None:
    if not isinstance(segments, (list, tuple)):
        raise EnvironmentFault(f"{_whose(episode, context)} returned {segments!r} instead of a list of Segments.")
    for s in segments:
        if not isinstance(s, Segment) or not isinstance(s.text, str):
            shown = repr(s.text) if isinstance(s, Segment) else repr(s)
            raise EnvironmentFault(
                f"{_whose(episode, context)} returned the observation {shown}; it must be a Segment with text."
            )


def _hangs(world: Environment, episode: Episode, context: Context) -> EnvironmentFault:
    return EnvironmentFault(
        f"{_whose(episode, context)} ({type(world).__name__}) did not answer within {context.task.step_timeout:g} s: "
        "it hangs. If it is only slow, give its task a larger `step_timeout`."
    )


def _whose(episode: Episode, context: Context) -> str:
    """The start of a sentence about an environment: whose it is, and where in the episode."""
    turn = sum(s.role == "assistant" for s in episode.segments)
    return (
        f"The environment of task {context.task.id or type(context.task).__name__!r}, for problem "
        f"{episode.problem.id!r}, {f'at turn {turn}' if turn else 'when it was reset'},"
    )


class _Faults:
    """Counts environments that raised: one lost episode is survivable, a broken environment is not."""

    def __init__(self) -> None:
        self.row = 0

    def fine(self) -> None:
        self.row = 0

    def lost(self, episode: Episode, error: Exception) -> bool:
        """Discard the episode. Raises EnvironmentFault after too many in a row."""
        episode.stop = StopReason.FAULT
        episode.info["fault"] = f"{type(error).__name__}: {error}"
        self.row += 1
        if self.row >= MAX_FAULTS:
            raise EnvironmentFault(
                f"The environment raised in {self.row} episodes in a row; the last time, for problem "
                f"{episode.problem.id!r}: {type(error).__name__}: {error}."
            ) from error
        return False

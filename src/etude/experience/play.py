"""What happens in episodes between the turns that are sampled: environments answer, and pass the turn on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from etude.core.episodes import FIRST, Episode, Segment, StopReason
from etude.core.errors import DataError, EnvironmentFault
from etude.core.meters import note
from etude.core.slots import Context
from etude.core.task import VALID, StepResult
from etude.experience.answers import Faults, check_observations, check_result
from etude.experience.seats import Seats
from etude.experience.texts import observed
from etude.experience.worlds import Answer, Worlds
from etude.policies.sampling import Completion
from etude.policies.showing import shown

if TYPE_CHECKING:
    from etude.experience.rollout import Start
    from etude.policies.language import LanguagePolicy


class Play:
    """Episodes and their environments."""

    def __init__(self, starts: Sequence[Start], seats: Seats, worlds: Worlds, context: Context) -> None:
        self.starts, self.seats, self.worlds, self.context = starts, seats, worlds, context
        self.episodes, self.faults = seats.episodes, Faults()
        self.away: dict[int, tuple[Segment, StopReason]] = {}
        """What was said at seats whose environments have not answered."""

    def begin(self) -> list[int]:
        """Reset the environments and replay what was said; the seats that go on from there."""
        seats, starts, every = self.seats, self.starts, range(len(self.starts))
        going = [seats.now[w] for w, answer in zip(every, self.worlds.reset(every)) if self._open(w, answer)]
        for turn in range(max((start.turns for start in starts), default=0)):
            again = [s for s in going if turn < starts[seats.world(s)].turns]
            said = [_said_again(starts[seats.world(s)].segments[turn], replayed=True) for s in again]
            self._tell(again, said, [StopReason.END_OF_TEXT] * len(again))
            kept = list[int]()
            while self.away:
                kept += self.hear()
            going = [s for s in going if turn >= starts[seats.world(s)].turns] + kept
            going.sort(key=seats.world)
        for seat in going:
            self._show_rest(seat)
        return going

    def say(self, going: Sequence[int], completions: Sequence[Completion]) -> None:
        """Give the environments what was said at these seats."""
        said = [self._said(seat, completion) for seat, completion in zip(going, completions)]
        self._tell(going, said, [c.stop for c in completions])

    def hear(self) -> list[int]:
        """The seats that go on, of the environments that answered."""
        now = self.seats.now
        answers = ((w, now[w], answer) for w, answer in self.worlds.hear())
        return [now[w] for w, seat, answer in answers if self._take(seat, *self.away.pop(seat), answer)]

    def others(self, mine: Sequence[int], later: Sequence[int]) -> set[int]:
        """Seats that are gone on with besides these."""
        others = {*self.away, *later}
        return others.union(self.seats.waiting(others.union(mine)))

    def _tell(self, which: Sequence[int], said: Sequence[Segment], stops: Sequence[StopReason]) -> None:
        for seat, segment, stop in zip(which, said, stops):
            self.episodes[seat].segments.append(segment)
            self.away[seat] = segment, stop
        self.worlds.tell([self.seats.world(seat) for seat in which], said)

    def _open(self, world: int, answer: Answer) -> bool:
        """Show what an environment was reset to; False if the episode is lost."""
        first, context = self.seats.now[world], self.context
        if answer.fault:
            return self._lost(first, answer)
        self.faults.fine()
        check_observations(answer.returned, self.episodes[first], context)
        self._show_first(first, answer.returned)
        if answer.used is not None:
            note(self.episodes[first].segments[0], answer.used, answer.seconds)
        return True

    def _show_first(self, seat: int, segments: Sequence[Segment]) -> None:
        """Show a player what its episode begins with. Raises DataError where that is nothing."""
        episode, speaker, prompt = self.episodes[seat], self.seats.at(seat), self._prompt(seat)
        opening = shown([*prompt, *segments], self.context.task, speaker.policy)
        for segment, tokens in zip(opening, speaker.texts.opening(opening)):
            _observe(episode, segment, tokens)
        if episode.tokens:
            return
        if episode.player != FIRST:
            raise DataError(
                f"The player {episode.player!r} is shown nothing before its first turn for problem "
                f"{episode.problem.id!r}, and needs a token to go on from: give its role a prompt "
                f"(roles.{episode.player}.prompt), or let the environment show it something."
            )
        raise DataError(f"Problem {episode.problem.id!r} has an empty prompt; the policy needs a token to go on from.")

    def _prompt(self, seat: int) -> list[Segment]:
        """What its role shows a player before all else."""
        text = self.context.seat(self.episodes[seat].player).prompt
        return [Segment("system", text)] if text else []

    def _show_rest(self, seat: int) -> None:
        """What comes between a start's whole turns and the first that the policy says something in."""
        start, episode = self.starts[self.seats.world(seat)], self.episodes[seat]
        if start.hint:
            hint = Segment("critique", start.hint, info={"hint": True})
            _observe(episode, hint, self.seats.at(seat).policy.encode(start.hint))
        if start.open:
            episode.segments.append(_said_again(start.segments[-1], replayed=True, open=True))

    def _said(self, seat: int, completion: Completion) -> Segment:
        """The segment of what was said at a seat, whole where its turn was begun elsewhere."""
        episode, speaker = self.episodes[seat], self.seats.at(seat)
        segment, before = speaker.texts.said(completion), episode.segments[-1]
        if before.info.get("open"):
            segment = _joined(before, segment, speaker.policy)
            episode.segments.pop()
        return segment

    def _take(self, seat: int, segment: Segment, stop: StopReason, answer: Answer) -> bool:
        """Write down what an environment answered; True if the episode goes on."""
        seats, episode, result = self.seats, self.episodes[seat], answer.returned
        if answer.fault:
            return self._lost(seat, answer)
        self.faults.fine()
        check_result(result, episode, self.context)
        note(segment, answer.used, answer.seconds)
        segment.reward = float(result.reward)
        if result.info and VALID in result.info:  # of each turn: the episode's own info has the last
            segment.info[VALID] = bool(result.info[VALID])
        world = seats.world(seat)
        for each in seats.table(world) if result.info else ():
            each.info.update(result.info)
        for name, amount in result.pays.items():
            _pay(self.episodes[seats.named(world, name)], amount)
        if result.terminated:
            seats.end(seat, stop if stop.cut else StopReason.TERMINATED)
            return False
        seats.ends[seat] = stop
        if result.player and not result.truncated:
            seats.now[world] = seat = seats.named(world, result.player)
        return self._answered(seat, result)

    def _answered(self, seat: int, result: StepResult) -> bool:
        """Show a player what an environment answered; True if it speaks next."""
        episode, speaker = self.episodes[seat], self.seats.at(seat)
        if not episode.segments:
            self._show_first(seat, result.segments)
            return True
        reply = speaker.texts.reply(result.segments, episode, self.seats.ends[seat])
        if result.truncated:
            self.seats.end(seat, StopReason.TRUNCATED)
            if len(episode.tokens) + sum(map(len, reply)) > speaker.policy.context:
                return False
        for extra, tokens in zip(result.segments, reply):
            _observe(episode, extra, tokens)  # also of a truncated episode, whose value goes on from there
        return not result.truncated

    def _lost(self, seat: int, answer: Answer) -> bool:
        """Discard an episode, all that its players saw of it."""
        self.seats.end(seat, StopReason.FAULT)
        return self.faults.lost(self.episodes[seat], answer)


def _pay(episode: Episode, amount: float) -> None:
    """Pay a player for the last thing that it said. Raises EnvironmentFault where it has said nothing."""
    said = next((s for s in reversed(episode.segments) if any(s.action_mask)), None)
    if said is None:
        raise EnvironmentFault(
            f"The player {episode.player!r} is paid {amount:g} for problem {episode.problem.id!r} and has said nothing "
            "yet: `StepResult.pays` is for the last thing that somebody said."
        )
    said.reward += float(amount)


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

"""Long completions in pieces: what is not finished within a step goes on in the next."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

from etude.core.batches import TokenBatch
from etude.core.draws import Draw
from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import ConfigError
from etude.core.fields import Count
from etude.core.kept import stored_problem, stored_segment
from etude.core.slots import Context
from etude.experience.groups import Groups
from etude.experience.rollout import Start, fresh, rollout
from etude.rewards.unexpected import repeats

Begun: TypeAlias = tuple[Problem, str, Segment, Draw]
"""An unfinished completion: its problem, the visit that it belongs to, what was said so far, its draw."""
Waiting: TypeAlias = tuple[Problem, str, Segment | None, Draw]
"""The same, or one of which nothing was said yet."""


class Pieces(Groups, abstract=True):
    """Completions that grow by at most `cap` tokens at a time, and go on in later steps.

    What the policy of a step adds is trained on in that step; the older tokens are what it goes on from, and count
    among the row's `earlier` ones. Single-turn tasks, whose problems are JSON values.
    """

    cap: Count = 16

    def check_task(self, context: Context) -> None:
        """Raises ConfigError for a task of several turns."""
        if context.task.max_turns > 1:
            raise ConfigError(
                f"{type(self).__name__} cuts a single turn into pieces, and this task has several; use groups."
            )

    def begin(self, problems: Sequence[Problem], context: Context) -> list[Waiting]:
        """Those that wait from earlier steps, and new ones; `state["open"]` has the former, `visits` counts."""
        waiting: list[Waiting] = [self._restored(item) for item in self.state["open"]]
        visits, self.state["visits"] = self.state["visits"] + 1, self.state["visits"] + len(problems)
        for start in fresh(problems, self.size, context.stream):
            waiting.append((start.problem, f"{visits + start.group}/{start.problem.id}", None, start.draw))
        return waiting

    def keep(self, begun: Sequence[Begun]) -> None:
        """Go on with these in the next step."""
        self.state["open"] = [_stored(*item) for item in begun]

    def limit(self, context: Context) -> int:
        """Most tokens of a completion."""
        return self.max_tokens or context.max_tokens

    def extend(
        self, waiting: Sequence[Waiting], context: Context
    ) -> tuple[list[tuple[Episode, str]], list[tuple[Episode, Begun]]]:  # fmt: skip
        """Let completions grow by one piece: those that ended, with their visits, and those that go on."""
        visits = list(dict.fromkeys(visit for _, visit, *_ in waiting))
        number = {visit: i for i, visit in enumerate(visits)}
        limit, done, left = self.limit(context), list[tuple[Episode, str]](), list[tuple[Episode, Begun]]()
        rooms = [min(self.cap, limit - (len(said.tokens) if said else 0)) for _, _, said, _ in waiting]
        for room in sorted(set(rooms), reverse=True):
            chosen = [item for item, r in zip(waiting, rooms) if r == room]
            starts = [
                Start(p, number[v], draw, (said,) if said else (), said is not None) for p, v, said, draw in chosen
            ]
            sampling = dataclasses.replace(self.sampling(context), max_tokens=room)
            for episode, (problem, visit, said, draw) in zip(rollout(starts, context, sampling), chosen):
                if said and episode.segments:
                    whole, earlier = episode.segments[-1], len(said.tokens)
                    versions = [*said.versions, *[whole.version] * (len(whole.tokens) - earlier)]
                    whole.info |= {"earlier": earlier, "versions": versions}
                if self.goes_on(episode, limit):
                    left.append((episode, (problem, visit, episode.segments[-1], draw)))
                else:
                    done.append((episode, visit))
        return sorted(done, key=lambda found: found[0].group), left

    def goes_on(self, episode: Episode, limit: int) -> bool:
        """Whether there is more to come of it."""
        said = episode.segments[-1].tokens if episode.segments else []
        return episode.stop is StopReason.MAX_TOKENS and len(said) < limit

    def _restored(self, item: dict[str, Any]) -> Begun:
        said = Segment(**{"role": "assistant", **item["said"]})
        return Problem(**item["problem"]), item["visit"], said, Draw(item["draw"])


class PartialRollouts(Pieces):
    """Groups of which no completion grows by more than `cap` tokens per step (Kimi k1.5, arXiv:2501.12599, 2.6.2).

    A completion that has not ended by then is kept and goes on in the next step, under the policy of then; only what
    that policy adds is trained on, the older tokens are what it goes on from. It joins the batch once it has ended, is
    as long as the limit, or has begun to loop. `episode.info` says with whom to compare it: `visit` names the group
    that it was started in, `earlier` has the scores of those of them that ended in steps before. If nothing ends in
    a step, completions go on for another `cap` tokens.

    Single-turn tasks, whose problems are JSON values.

    Args:
        cap: tokens that a completion may grow by in one step.
        times, longest: a run of at most `longest` tokens that stands `times` times in a row is a loop.

    Shapes: remembers the scores [B] of every scored batch.

    A completion of 40 tokens takes three steps:

    >>> -(-40 // PartialRollouts(cap=16).cap)
    3
    """

    cap: Count = 16
    times: Count = 5
    longest: Count = 16

    def initial_state(self) -> dict[str, Any]:
        return {"open": [], "scores": {}, "visits": 0}

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        self.check_task(context)
        waiting, done, begun = self.begin(problems, context), list[Episode](), list[Begun]()
        for _ in range(-(-self.limit(context) // self.cap)):
            ended, left = self.extend(begun or waiting, context)
            begun = [item for _, item in left]
            for episode, visit in ended:
                episode.info |= {"visit": visit, "earlier": list(self.state["scores"].get(visit, ()))}
                done.append(episode)
            if done or not begun:
                break
        self.keep(begun)
        going = {visit for _, visit, *_ in begun} | {e.info["visit"] for e in done}
        self.state["scores"] = {v: s for v, s in self.state["scores"].items() if v in going}
        return done

    def before_update(self, batch: TokenBatch) -> None:
        """Remember what those that ended were worth, for those of their group that have not."""
        for episode, score in zip(batch.episodes, batch.scores.tolist()):
            self.state["scores"].setdefault(episode.info["visit"], []).append(score)

    def goes_on(self, episode: Episode, limit: int) -> bool:
        going = super().goes_on(episode, limit)
        return going and not repeats(episode.segments[-1].tokens, self.times, self.longest)


def _stored(problem: Problem, visit: str, said: Segment, draw: Draw) -> dict[str, Any]:
    """An unfinished completion as JSON values."""
    kept = {**stored_segment(said), "info": {"versions": said.versions}}
    return {"problem": stored_problem(problem), "visit": visit, "said": kept, "draw": draw.key}

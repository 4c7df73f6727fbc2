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
from etude.core.slots import Context
from etude.experience.groups import Groups
from etude.experience.rollout import Start, fresh, rollout
from etude.rewards.unexpected import repeats

Begun: TypeAlias = tuple[Problem, str, Segment, Draw]
"""An unfinished completion: its problem, the visit that it belongs to, what was said so far, its draw."""
Waiting: TypeAlias = tuple[Problem, str, Segment | None, Draw]
"""The same, or one of which nothing was said yet."""


class PartialRollouts(Groups):
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
        if context.task.max_turns > 1:
            raise ConfigError("PartialRollouts cuts a single turn into pieces, and this task has several; use groups.")
        waiting: list[Waiting] = [self._restored(item) for item in self.state["open"]]
        visits, self.state["visits"] = self.state["visits"] + 1, self.state["visits"] + len(problems)
        for start in fresh(problems, self.size, context.stream):
            waiting.append((start.problem, f"{visits + start.group}/{start.problem.id}", None, start.draw))
        done, begun = list[Episode](), list[Begun]()
        for _ in range(-(-self._limit(context) // self.cap)):
            ended, begun = self._extend(begun or waiting, context)
            done += ended
            if done or not begun:
                break
        self.state["open"] = [_stored(*item) for item in begun]
        going = {visit for _, visit, *_ in begun} | {e.info["visit"] for e in done}
        self.state["scores"] = {v: s for v, s in self.state["scores"].items() if v in going}
        return done

    def before_update(self, batch: TokenBatch) -> None:
        """Remember what those that ended were worth, for those of their group that have not."""
        for episode, score in zip(batch.episodes, batch.scores.tolist()):
            self.state["scores"].setdefault(episode.info["visit"], []).append(score)

    def _limit(self, context: Context) -> int:
        return self.max_tokens or context.max_tokens

    def _extend(self, waiting: Sequence[Waiting], context: Context) -> tuple[list[Episode], list[Begun]]:
        """Let completions grow by one piece: those that ended, and what is left to do."""
        visits = list(dict.fromkeys(visit for _, visit, *_ in waiting))
        number = {visit: i for i, visit in enumerate(visits)}
        limit, done, left = self._limit(context), list[Episode](), list[Begun]()
        rooms = [min(self.cap, limit - (len(said.tokens) if said else 0)) for _, _, said, _ in waiting]
        for room in sorted(set(rooms), reverse=True):
            chosen = [item for item, r in zip(waiting, rooms) if r == room]
            starts = [
                Start(p, number[v], draw, (said,) if said else (), said is not None) for p, v, said, draw in chosen
            ]
            sampling = dataclasses.replace(self.sampling(context), max_tokens=room)
            for episode, (problem, visit, _, draw) in zip(rollout(starts, context, sampling), chosen):
                episode.info |= {"visit": visit, "earlier": list(self.state["scores"].get(visit, ()))}
                if self._goes_on(episode, limit):
                    left.append((problem, visit, episode.segments[-1], draw))
                else:
                    done.append(episode)
        return sorted(done, key=lambda e: e.group), left

    def _goes_on(self, episode: Episode, limit: int) -> bool:
        said = episode.segments[-1].tokens if episode.segments else []
        cut = episode.stop is StopReason.MAX_TOKENS and len(said) < limit
        return cut and not repeats(said, self.times, self.longest)

    def _restored(self, item: dict[str, Any]) -> Begun:
        return Problem(**item["problem"]), item["visit"], Segment("assistant", **item["said"]), Draw(item["draw"])


def _stored(problem: Problem, visit: str, said: Segment, draw: Draw) -> dict[str, Any]:
    """An unfinished completion as JSON values."""
    kept = {"text": said.text, "tokens": list(said.tokens), "action_mask": list(said.action_mask),
            "behaviour_logp": list(said.behaviour_logp), "version": said.version}  # fmt: skip
    facts = {f.name: getattr(problem, f.name) for f in dataclasses.fields(problem)}
    return {"problem": {**facts, "info": dict(problem.info)}, "visit": visit, "said": kept, "draw": draw.key}

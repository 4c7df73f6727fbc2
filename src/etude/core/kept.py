"""What is kept of earlier steps: problems or episodes, in a state that a checkpoint can hold."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from etude.core.episodes import Episode, Problem, Segment

if TYPE_CHECKING:
    from numpy.random import Generator

Order = Literal["newest", "oldest"]


class Kept:
    """Episodes by problem, with their age in steps.

    What an episode says is kept as it was sampled, token for token, with the log-probabilities of then, and the JSON
    values in its `info["facts"]`. Of a problem alone an episode that says nothing is kept. Problems must be JSON
    values.

    Args:
        state: `empty()`, or what became of one.
        order: which are taken first, those of the newest step or of the oldest; those of one step as they came.
        limit: how many there are at most, and `each`, of one problem; the oldest leave. None: no limit.
        age: after how many steps they leave; None: never.

    >>> kept = Kept(Kept.empty(), order="newest")
    >>> for name in "ab":
    ...     kept.put([Episode(Problem(f"{name}{i}", "?")) for i in range(2)])
    ...     kept.step()
    >>> [e.problem.id for e in kept.take(3)], len(kept)
    (['b0', 'b1', 'a0'], 1)
    """

    def __init__(
        self, state: dict[str, Any], order: Order = "newest", limit: int | None = None, each: int | None = None,
        age: int | None = None,
    ) -> None:  # fmt: skip
        self.state, self.order, self.limit, self.each, self.age = state, order, limit, each, age

    @staticmethod
    def empty() -> dict[str, Any]:
        """A buffer of nothing, at its first step: what is kept, in the order in which it is taken."""
        return {"items": [], "now": 0}

    def __len__(self) -> int:
        return len(self.state["items"])

    def put(self, episodes: Sequence[Episode]) -> None:
        """Keep these, and let go what is too much."""
        items, new = self.state["items"], [{**stored(e), "step": self.state["now"]} for e in episodes]
        if self.order == "oldest":
            self._keep([*items, *new])
        else:
            same = sum(item["step"] == self.state["now"] for item in items)  # of this step, in an earlier round
            self._keep([*items[:same], *new, *items[same:]])

    def take(self, count: int) -> list[Episode]:
        """The first `count`, or all that there are; they leave."""
        taken, self.state["items"] = self.state["items"][:count], self.state["items"][count:]
        return [restored(item) for item in taken]

    def take_each(self, count: int) -> list[Episode]:
        """The first `count` of each problem, or all that there are; they leave."""
        seen, taken, left = Counter[str](), list[Episode](), list[dict[str, Any]]()
        for item in self.state["items"]:
            seen[item["problem"]["id"]] += 1
            if seen[item["problem"]["id"]] <= count:
                taken.append(restored(item))
            else:
                left.append(item)
        self.state["items"] = left
        return taken

    def of(self, problem: str) -> list[Episode]:
        """Those of the problem with this id; they stay."""
        return [restored(item) for item in self.state["items"] if item["problem"]["id"] == problem]

    def forget(self, problem: str) -> None:
        """Let go what is kept of the problem with this id."""
        self.state["items"] = [item for item in self.state["items"] if item["problem"]["id"] != problem]

    def ages(self) -> list[int]:
        """Of each, in the order in which they are taken, how many steps ago it was kept."""
        return [self.state["now"] - item["step"] for item in self.state["items"]]

    def drawn(self, count: int, random: Generator) -> list[Episode]:
        """`count` at random, none twice, or all that there are; they stay."""
        places = random.permutation(len(self))[:count].tolist()
        return [restored(self.state["items"][place]) for place in places]

    def clear(self) -> None:
        """Let go all of it."""
        self.state["items"] = []

    def step(self) -> None:
        """A step has ended: everything is a step older."""
        self.at(self.state["now"] + 1)

    def at(self, step: int) -> None:
        """It is this step now: what is too old leaves."""
        self.state["now"] = step
        self._keep(self.state["items"])

    def _keep(self, items: Sequence[dict[str, Any]]) -> None:
        """Those of these items, in their order, that no limit sends away."""
        young = [item for item in items if self.age is None or self.state["now"] - item["step"] < self.age]
        by_age = sorted(young, key=lambda item: -item["step"])  # the newest first; sorting is stable
        chosen, seen = list[int](), Counter[str]()
        for item in by_age:
            seen[item["problem"]["id"]] += 1
            if self.each is None or seen[item["problem"]["id"]] <= self.each:
                chosen.append(id(item))
        last = set(chosen if self.limit is None else chosen[: self.limit])
        self.state["items"] = [item for item in young if id(item) in last]


def stored(episode: Episode) -> dict[str, Any]:
    """An episode's problem, segments and facts as JSON values."""
    said = [stored_segment(s) for s in episode.segments]
    facts = {"facts": episode.info["facts"]} if "facts" in episode.info else {}
    return {"problem": stored_problem(episode.problem), "segments": said, "written": episode.written, **facts}


def restored(item: dict[str, Any]) -> Episode:
    """Undo `stored`."""
    segments = [Segment(**s) for s in item["segments"]]
    info = {"facts": item["facts"]} if "facts" in item else {}
    return Episode(Problem(**item["problem"]), segments, written=item["written"], info=info)


def stored_problem(problem: Problem) -> dict[str, Any]:
    """A problem as JSON values."""
    facts = {f.name: getattr(problem, f.name) for f in dataclasses.fields(problem)}
    return {**facts, "info": dict(problem.info)}


def stored_segment(said: Segment) -> dict[str, Any]:
    """What was sampled in a segment, as JSON values."""
    return {"role": said.role, "text": said.text, "tokens": list(said.tokens), "action_mask": list(said.action_mask),
            "behaviour_logp": list(said.behaviour_logp), "version": said.version}  # fmt: skip

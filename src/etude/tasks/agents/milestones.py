"""Milestones: take the key, open the door, take the thing behind it, bring it where it belongs.

Rooms lie in a row, the last behind a locked door; the first line has them in their order, then comes what lies where,
what is wanted, and where the player stands. Each turn it says what it does, and is told where it is:

     hall attic kitchen | cellar
     key attic lamp cellar rope hall
     bring lamp attic
     kitchen                        go attic
     attic                          take key
     got key                        go kitchen
     kitchen                        open
     opened                         go cellar
     ...                            put lamp

One can go to the room beside one's own, take what lies there, put down what one has, and open the door from the room
before it with the key. What cannot be done costs a turn and is answered with `no`. Each of the four milestones counts
once: key, door, thing, delivery; the last ends the game.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.core.fields import Count, Interval
from etude.policies.agent_words import ROOMS, THINGS
from etude.tasks.agents.games import Game, Heard, Posed, TurnTask, one_of, some_of, spaced

MILESTONES = ("key", "door", "thing", "delivery")


class Milestones(TurnTask):
    """Rooms in a row and a locked door; 1 for the delivery, or a quarter for each milestone, within `max_turns` turns.

    Args:
        rooms: how many there are, the last behind the door.
        decoys: other things that lie around, which nobody wants.
        pays: 'success', 1 for the delivery; 'milestones', 1/4 for each in the turn in which it is reached; or 'share',
            all of that in the last turn.
        max_turns, slips, seed: as of `TurnTask`.

    Splits: 'train' and 'test', which share no problem. Levels say how many turns the shortest way has.
    `info` of a step: `milestones`, how many are reached.

    >>> game, problem = milestones.environment(), milestones.problems("test")[0]
    >>> print(game.reset(problem, 0)[0].text)
     garage studio attic | hall
     key studio lamp hall rope garage
     bring lamp garage
     garage
    <BLANKLINE>
    """

    id: ClassVar[str] = "milestones"
    max_tokens: ClassVar[int] = 4

    rooms: Annotated[int, Interval(ge=3, le=len(ROOMS))] = 4
    decoys: Annotated[int, Interval(ge=0, le=3)] = 1
    pays: Literal["success", "milestones", "share"] = "success"
    max_turns: Count = 16  # type: ignore[misc]

    def check(self) -> None:
        if self.max_turns < (most := 3 * (self.rooms - 1) + 3):
            raise ConfigError(f"Milestones.max_turns must be at least {most} for {self.rooms} rooms, got "
                              f"{self.max_turns}.")  # fmt: skip

    def posed(self, random: Generator) -> Posed:
        row = some_of(random, ROOMS, self.rooms)
        thing, *decoys = some_of(random, THINGS, 1 + self.decoys)
        key, goal, start = (int(random.integers(self.rooms - 1)) for _ in range(3))
        last = self.rooms - 1
        lies = {"key": row[key], thing: row[last]} | {d: one_of(random, row) for d in decoys}
        steps = abs(start - key) + (last - 1 - key) + (last - (last - 1)) + (last - goal) + 4
        lines = (
            spaced(*row[:-1], "|", row[-1]), spaced(*(word for pair in lies.items() for word in pair)),
            spaced("bring", thing, row[goal]), spaced(row[start]),
        )  # fmt: skip
        info = {"row": row, "lies": lies, "thing": thing, "goal": row[goal], "start": row[start]}
        return Posed("\n".join(lines) + "\n", None, f"steps{steps}", info)

    def environment(self) -> Walk:
        return Walk(self)


class Walk(Game):
    """One game."""

    def __init__(self, task: Milestones) -> None:
        super().__init__(task)
        self.task = task

    def begun(self, problem: Problem) -> dict[str, Any]:
        info = problem.info
        return {
            "row": list(info["row"]), "lies": dict(info["lies"]), "thing": info["thing"], "goal": info["goal"],
            "at": info["start"], "has": [], "open": False, "reached": [],
        }  # fmt: skip

    def said(self, words: Sequence[str]) -> Heard:
        match words:
            case ["go", room] if self._beside(room):
                self.state["at"], reply = room, spaced(room)
            case ["take", thing] if self.state["lies"].get(thing) == self.state["at"]:
                self.state["has"].append(thing)
                del self.state["lies"][thing]
                reply = spaced("got", thing)
            case ["put", thing] if thing in self.state["has"]:
                self.state["has"].remove(thing)
                self.state["lies"][thing] = self.state["at"]
                reply = spaced("put", thing)
            case ["open"] if self._can_open():
                self.state["open"], reply = True, spaced("opened")
            case _:
                worth = self._worth(0, False)
                return Heard(spaced("no"), worth, valid=False, more={"milestones": len(self.state["reached"])})
        return self._judged(reply)

    def _judged(self, reply: str) -> Heard:
        """What was reached just now, after something that could be done."""
        state, before = self.state, len(self.state["reached"])
        thing, door = state["thing"], "key" in state["has"]
        now = (door, state["open"], thing in state["has"], state["lies"].get(thing) == state["goal"])
        state["reached"] += [name for name, is_so in zip(MILESTONES, now) if is_so and name not in state["reached"]]
        fresh, done = len(state["reached"]) - before, "delivery" in state["reached"]
        return Heard(reply, self._worth(fresh, done), done, done, more={"milestones": len(state["reached"])})

    def _worth(self, fresh: int, done: bool) -> float:
        """What a turn is paid in which so many milestones were reached, the last one or not."""
        if self.task.pays == "success":
            return float(done)
        if self.task.pays == "milestones":
            return fresh / len(MILESTONES)
        last = done or self.turn >= self.task.max_turns
        return len(self.state["reached"]) / len(MILESTONES) if last else 0.0

    def _place(self, room: str) -> int:
        return int(self.state["row"].index(room))

    def _beside(self, room: str) -> bool:
        row, at = self.state["row"], self._place(self.state["at"])
        if room not in row or abs(self._place(room) - at) != 1:
            return False
        return bool(self.state["open"]) or room != row[-1]

    def _can_open(self) -> bool:
        before_the_door = self.state["at"] == self.state["row"][-2]
        return before_the_door and "key" in self.state["has"] and not self.state["open"]

    def best(self, random: Generator) -> str:
        state, thing = self.state, self.state["thing"]
        if thing in state["has"]:
            return spaced("put", thing) if state["at"] == state["goal"] else self._towards(state["goal"])
        if state["open"]:
            where = state["lies"][thing]
            return spaced("take", thing) if state["at"] == where else self._towards(where)
        if "key" in state["has"]:
            before = state["row"][-2]
            return spaced("open") if state["at"] == before else self._towards(before)
        where = state["lies"]["key"]
        return spaced("take", "key") if state["at"] == where else self._towards(where)

    def _towards(self, room: str) -> str:
        at, there = self._place(self.state["at"]), self._place(room)
        return spaced("go", self.state["row"][at + (1 if there > at else -1)])

    def anything(self, random: Generator) -> str:
        things = ["key", self.state["thing"], *self.state["lies"]]
        kind = int(random.integers(6))
        if kind < 3:
            return spaced("go", one_of(random, self.state["row"]))
        return spaced(*(("take", one_of(random, things)), ("put", one_of(random, things)), ("open",))[kind - 3])

    def tools(self) -> list[dict[str, Any]]:
        """What can be said."""
        things = ["key", *THINGS]
        return [
            {"name": "go", "example": " go hall", "arguments": {"room": list(ROOMS)}},
            {"name": "take", "example": " take key", "arguments": {"thing": things}},
            {"name": "put", "example": " put lamp", "arguments": {"thing": things}},
            {"name": "open", "example": " open", "arguments": {}},
        ]


milestones = Milestones()

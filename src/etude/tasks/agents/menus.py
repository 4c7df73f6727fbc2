"""Menus: settings of a phone, three menus deep.

     set wifi on spam off
     home device accounts apps
                                    tap device
     device network battery mail
                                    tap network
     network wifi off bluetooth on hotspot off
                                    tap wifi
     network wifi on bluetooth on hotspot off
                                    back
     ...

The first line says what is wanted, the next one which screen is shown. A tap on a folder opens it, one on a setting
switches it on or off; `back` leads to the screen above. Which menu has a setting is the same in every game and is
never told. The game ends when all that is wanted is so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.fields import Count, Interval
from etude.core.streams import Stream
from etude.policies.agent_words import APPS, FOLDERS, SETTINGS
from etude.tasks.agents.games import Game, Heard, Posed, TurnTask, one_of, some_of, spaced

HOME = "home"


class Menus(TurnTask):
    """A phone with nine menus of three settings each; 1 when all that is wanted is so, within `max_turns` taps.

    Args:
        wanted: how many settings have to be other than they are.
        elsewhere: whether a game may begin on any screen, or at home.
        max_turns, slips, seed: as of `TurnTask`; the seed also draws which folder has which menu.

    Splits: 'train' and 'test', which share no set of wanted settings. Levels say how many taps are needed.
    `info` of a step: `right`, how many of the wanted settings are so.

    >>> from etude.core.episodes import Segment
    >>> game, problem = menus.environment(), menus.problems("test")[0]
    >>> print(game.reset(problem, 0)[0].text + game.step(Segment("assistant", " back")).segments[0].text, end="")
     set rotate on flash off
     sound ring off vibrate off music on
     accounts maps photos sound
    """

    id: ClassVar[str] = "menus"
    max_tokens: ClassVar[int] = 3

    wanted: Annotated[int, Interval(ge=1, le=4)] = 2
    elsewhere: bool = True
    max_turns: Count = 16  # type: ignore[misc]

    @property
    def tree(self) -> Mapping[str, tuple[str, ...]]:
        """What each screen shows; settings are shown by none."""
        return _tree(self.seed)

    def posed(self, random: Generator) -> Posed:
        on = {s: bool(random.integers(2)) for s in SETTINGS}
        wanted = {s: not on[s] for s in some_of(random, SETTINGS, self.wanted)}
        screen = one_of(random, [*self.tree]) if self.elsewhere else HOME
        state = {"on": on, "wanted": wanted, "screen": screen}
        asked = spaced("set", *(w for s, value in wanted.items() for w in (s, switch(value))))
        return Posed(f"{asked}\n{shown(self.tree, screen, on)}\n", None, f"taps{_taps(self.tree, state)}", state)

    def divided(self, posed: Posed) -> str:
        return " ".join(sorted(posed.info["wanted"]))

    def environment(self) -> Screen:
        return Screen(self)


@cache
def _tree(seed: int) -> Mapping[str, tuple[str, ...]]:
    menus = some_of(Stream(seed).split("menus", "tree").numpy, [*APPS], len(APPS))
    each = len(APPS) // len(FOLDERS)
    folders = {folder: tuple(menus[i * each : (i + 1) * each]) for i, folder in enumerate(FOLDERS)}
    return {HOME: FOLDERS, **folders, **APPS}


def above(tree: Mapping[str, tuple[str, ...]], screen: str) -> str:
    """The screen that shows this one, or this setting; home is above itself."""
    return next((up for up, below in tree.items() if screen in below), HOME)


def switch(value: bool) -> str:
    """How a setting is called that is so."""
    return "on" if value else "off"


def shown(tree: Mapping[str, tuple[str, ...]], screen: str, on: Mapping[str, bool]) -> str:
    """A screen, as it is told."""
    entries = [word for entry in tree[screen] for word in ((entry, switch(on[entry])) if entry in on else (entry,))]
    return spaced(screen, *entries)


def towards(tree: Mapping[str, tuple[str, ...]], screen: str, setting: str) -> str:
    """What is tapped next on the way from a screen to a setting and on it; `back` where it is below another screen."""
    way = [setting]
    while way[-1] != HOME:
        if above(tree, way[-1]) == screen:
            return way[-1]
        way.append(above(tree, way[-1]))
    return "back"


def _taps(tree: Mapping[str, tuple[str, ...]], state: Mapping[str, Any]) -> int:
    """Taps that are needed for what is wanted, in the order in which it was asked for."""
    screen, taps = state["screen"], 0
    for setting in state["wanted"]:
        tapped = ""
        while tapped != setting:
            tapped = towards(tree, screen, setting)
            screen = above(tree, screen) if tapped == "back" else tapped if tapped in tree else screen
            taps += 1
    return taps


class Screen(Game):
    """One game."""

    def __init__(self, task: Menus) -> None:
        super().__init__(task)
        self.task = task

    def begun(self, problem: Problem) -> dict[str, Any]:
        info = problem.info
        return {"on": dict(info["on"]), "wanted": dict(info["wanted"]), "screen": info["screen"]}

    def said(self, words: Sequence[str]) -> Heard:
        state, tree = self.state, self.task.tree
        match words:
            case ["back"]:
                state["screen"] = above(tree, state["screen"])
            case ["tap", entry] if entry in tree[state["screen"]]:
                if entry in tree:
                    state["screen"] = entry
                else:
                    state["on"][entry] = not state["on"][entry]
            case _:
                return Heard(spaced("no"), valid=False, more={"right": self._right()})
        done = self._right() == len(state["wanted"])
        return Heard(shown(tree, state["screen"], state["on"]), float(done), done, done, more={"right": self._right()})

    def _right(self) -> int:
        return sum(self.state["on"][s] == value for s, value in self.state["wanted"].items())

    def best(self, random: Generator) -> str:
        """A tap on the way to the first wanted setting that is not so."""
        setting = next(s for s, value in self.state["wanted"].items() if self.state["on"][s] != value)
        tapped = towards(self.task.tree, self.state["screen"], setting)
        return spaced("back") if tapped == "back" else spaced("tap", tapped)

    def anything(self, random: Generator) -> str:
        entries = self.task.tree[self.state["screen"]]
        return spaced(*one_of(random, [("back",), *(("tap", entry) for entry in entries)]))

    def tools(self) -> list[dict[str, Any]]:
        """What can be said."""
        entries = [*FOLDERS, *APPS, *SETTINGS]
        return [
            {"name": "tap", "example": " tap wifi", "arguments": {"entry": entries}},
            {"name": "back", "example": " back", "arguments": {}},
        ]


menus = Menus()

"""Recorded dialogues as a task: what methods learn from that need no environment, and the game, if it can be played.

etude train ilql --task dialogues.jsonl                       # nothing is played
etude train ilql --task text-maze --data dialogues.jsonl      # evaluated in the maze
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from etude.core.episodes import Episode, Problem, Segment, StopReason
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import PositiveProbability
from etude.core.streams import Stream
from etude.core.task import Environment, LanguageTask
from etude.experience.dialogues import Dialogue, read_dialogues

OF_GAME = (
    "max_tokens", "max_turns", "stop", "step_timeout", "workers", "by_arrival",
    "add_bos", "chat", "system", "template_arguments", "tools",
)  # fmt: skip
"""What is as of the game, where there is one: limits, and how it is shown."""


class Dialogues(LanguageTask):
    """Dialogues with rewards from a file of JSON lines (`experience/dialogues.py`).

    Every dialogue is a problem of 'train', which is shown how it went, with the rewards of its turns. 'test', and all
    that is played, is the game's.

    Args:
        data: the file.
        game: what the dialogues are of, where it can be played; None: nothing is.
        top: the share of the dialogues with the highest returns that is learned from, the first of those that are
            alike: filtered behaviour cloning where it is below 1.

    Raises: DataError, with file and line, when the problems are first asked for.

    >>> Dialogues(data="logs/shop.jsonl", top=0.2).id
    'shop'
    """

    shows_how: ClassVar[bool] = False
    data: str = ""
    game: LanguageTask | None = None
    top: PositiveProbability = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in OF_GAME if self.game is not None else ():
            object.__setattr__(self, name, getattr(self.game, name))

    def check(self) -> None:
        if self.game is not None and self.game.players:
            raise ConfigError(f"Dialogues are of one player, and {self.game.id} has {len(self.game.players)}.")

    @property
    def id(self) -> str:  # type: ignore[override]  # depends on a field
        """The game's, else what the file is called."""
        return Path(self.data).stem if self.game is None else self.game.id

    @cached_property
    def _kept(self) -> list[Dialogue]:
        """Those that are learned from, in the order of the file."""
        found = read_dialogues(self.data)
        best = sorted(range(len(found)), key=lambda i: -found[i].total)[: max(1, round(self.top * len(found)))]
        return [found[i] for i in sorted(best)]

    @cached_property
    def _problems(self) -> list[Problem]:
        return [
            Problem(f"{self.id}/{number}", d.opening, level=d.level, info={"dialogue": number, "return": d.total})
            for number, d in enumerate(self._kept)
        ]

    def splits(self) -> tuple[str, ...]:
        return ("train",) if self.game is None else ("train", *(s for s in self.game.splits() if s != "train"))

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError(f"split of {self.data}", split, self.splits())
        return self._problems if split == "train" or self.game is None else self.game.problems(split)

    def script(self, problem: Problem, stream: Stream) -> list[Segment]:
        """A recorded dialogue, with rewards."""
        dialogue = self._kept[problem.info["dialogue"]]
        said = [Segment(s.role, s.text, reward=s.reward) for s in dialogue.segments]
        if dialogue.truncated:
            said[-1].info["stop"] = StopReason.TRUNCATED
        return said

    def needs_reward(self) -> str | None:
        if self.game is not None:
            return self.game.needs_reward()
        return "Dialogues alone cannot be played: name their game (--task GAME --data FILE), or learn from them alone."

    def environment(self) -> Environment:
        if self.game is None:
            raise ConfigError(str(self.needs_reward()))
        return self.game.environment()

    def success(self, episode: Episode) -> bool:
        if "dialogue" in episode.problem.info:
            told = self._kept[episode.problem.info["dialogue"]].success
            return episode.reward >= 1.0 if told is None else told
        return super().success(episode) if self.game is None else self.game.success(episode)

    def answer(self, completion: str) -> str:
        return super().answer(completion) if self.game is None else self.game.answer(completion)

"""Text as control: a language task whose state is the prompt and the symbols so far, and whose action is the next one.

Transitions are known and certain, and the only reward is what the task pays at the end (arXiv:2310.06147, section 3).
An episode can begin behind any prefix. Methods that learn from a replay are for control alone, and have the task's text
here as one-hot vectors.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from etude.core.control import ControlTask, VectorEnvironment
from etude.core.episodes import Problem
from etude.core.errors import ConfigError

if TYPE_CHECKING:
    from etude.core.task import LanguageTask

LOOKED = 200
"""Problems whose prompts say how long prompts are, and of which characters."""


class TokenMDP(gym.Env[NDArray[np.float32], np.int64]):
    """A language task of one turn, symbol by symbol.

    `reset(options={"problem": problem, "prefix": text})` begins behind a prefix; both may be left out, and then the
    problem is drawn and the prefix empty. The last action ends the text; so does its last place, as a limit of tokens
    cuts a completion: what the task pays is paid there, and 0 before.

    Args:
        task: what is asked, and what answers are worth.
        symbols: one action each.
        limit: most symbols of an answer.
        split: whose problems are drawn.

    Shapes: observations [(prompt + limit) * characters], one-hot, prompts right-aligned.

    >>> from etude.tasks.language.checksums import checksums
    >>> world = TokenMDP(checksums, "abcdefgh!", 10)
    >>> problem = checksums.problems("train")[0]
    >>> seen, _ = world.reset(options={"problem": problem, "prefix": problem.info["demonstration"]})
    >>> world.step(np.int64(9))[1:3]  # to end there is right
    (1.0, True)
    """

    def __init__(self, task: LanguageTask, symbols: str, limit: int, split: str = "train") -> None:
        self.task, self.symbols, self.limit, self.pool = task, symbols, limit, task.problems(split)
        known = [str(p.prompt) for name in task.splits() for p in task.problems(name)[:LOOKED]]
        self.longest = max(map(len, known))
        self.places = {c: i for i, c in enumerate(sorted({*symbols, *"".join(known)}))}
        self.action_space = gym.spaces.Discrete(len(symbols) + 1)
        size = (self.longest + limit) * len(self.places)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (size,), np.float32)
        self.problem, self.text = self.pool[0], ""

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        given = options or {}
        drawn = self.pool[int(self.np_random.integers(len(self.pool)))]
        self.problem, self.text = given.get("problem", drawn), str(given.get("prefix", ""))
        self._check(self.problem, self.text)
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        ends = int(action) == len(self.symbols)
        self.text += "" if ends else self.symbols[int(action)]
        over = ends or len(self.text) == self.limit
        return self._seen(), self.task.score(self.problem, self.text) if over else 0.0, over, False, {}

    def _seen(self) -> NDArray[np.float32]:
        seen = np.zeros((self.longest + self.limit, len(self.places)), np.float32)
        prompt = str(self.problem.prompt)
        for place, character in enumerate(prompt + self.text, self.longest - len(prompt)):
            seen[place, self.places[character]] = 1.0
        return seen.ravel()

    def _check(self, problem: Problem, prefix: str) -> None:
        prompt = str(problem.prompt)
        if len(prompt) > self.longest or not set(prompt) <= set(self.places):
            raise ConfigError(
                f"{prompt!r} is longer than the prompts of {self.task.id} are here, {self.longest} characters, or has "
                "others than they have."
            )
        if len(prefix) >= self.limit or not set(prefix) <= set(self.symbols):
            raise ConfigError(
                f"An episode begins behind fewer than {self.limit} of the symbols {self.symbols!r}, got {prefix!r}."
            )


class TokenMDPTask(ControlTask):
    """A language task of one turn as control; the return of an episode is what its text is paid.

    Args:
        of: the language task.
        fields_of: fields of that task, as in task.fields_of={"lengths":[4]}.
        symbols: what an action writes; one more ends the text.
        limit: most symbols of an answer; None: one less than the task's limit of tokens, of which the end is one.

    Shapes: observations [M, E, (prompt + limit) * characters], one-hot; one of len(symbols) + 1 actions.

    >>> TokenMDPTask().make(seeds=[0, 1], count=3).reset().shape
    (2, 3, 204)
    """

    id: ClassVar[str] = "token-mdp"
    steps: ClassVar[int] = 50_000
    of: str = "checksums"
    fields_of: dict[str, Any] = dataclasses.field(default_factory=dict)
    symbols: str = "abcdefgh!"
    limit: int | None = None

    def check(self) -> None:
        if len(set(self.symbols)) != len(self.symbols) or not self.symbols:
            raise ConfigError(f"TokenMDPTask.symbols must be different characters, got {self.symbols!r}.")
        try:
            json.dumps(self.fields_of)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"TokenMDPTask.fields_of must be plain data: {error}.") from None

    @property
    def language(self) -> LanguageTask:
        """The task whose text it is. Raises ConfigError for one of several turns, or of another world."""
        from etude.core.task import LanguageTask
        from etude.tasks import resolve_task

        found = resolve_task(self.of)
        if not isinstance(found, LanguageTask) or found.max_turns > 1 or found.judged_by_reward:
            raise ConfigError(f"{self.of} is no language task of one turn that scores its answers: take checksums.")
        return found.replace(**self.fields_of)

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        from etude.experience.gymnasium_vector import GymnasiumVector

        task = self.language
        limit = self.limit or task.max_tokens - 1
        split = "train" if purpose == "train" else "test"
        make = functools.partial(TokenMDP, task, self.symbols, limit, split)
        return GymnasiumVector(make, seeds, count, purpose, name=f"{self.id} of {self.of}")


token_mdp = TokenMDPTask()

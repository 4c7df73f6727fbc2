"""Searching in the middle of what is said: the policy's query between tags, and what was found between others."""

from __future__ import annotations

from collections.abc import Callable

from etude.core.episodes import Problem, Segment
from etude.core.errors import ConfigError
from etude.core.fields import Count, Positive
from etude.core.task import Environment, LanguageTask, StepResult, Toolbox
from etude.experience.deadline import deadline
from etude.experience.tools.outputs import broken
from etude.experience.tools.served import Failed, called
from etude.rewards.search_tags import NAMES
from etude.runtime.serving import CallFailed

AROUND = ("<information>", "</information>")
MARKS = tuple(f"<{end}{name}>" for name in NAMES for end in ("", "/"))


class TagSearch(Toolbox):
    """`<search>QUERY</search>` is answered with `<information>...</information>`, by the environment's tool `search`.

    A query ends the policy's turn; what was found stands right behind it, and the policy goes on. So whoever has
    learned to write what a search would find goes on the same way from what one does find. A turn without a query at
    its end goes on to the environment itself. Tags in what was found are broken.

    Args:
        seconds: that a search may take.
        longest: characters that are shown of what was found.
        turns: turns of an episode of a task that would end after one: searches, and the answer.

    Raises: ConfigError, when the first episode begins, for an environment without a tool `search`.

    >>> TagSearch(turns=4).ends
    ('</search>',)
    """

    seconds: Positive = 5.0
    longest: Count = 2_000

    @property
    def ends(self) -> tuple[str, ...]:
        return ("</search>",)

    def around(self, environment: Environment, task: LanguageTask) -> Environment:
        return Searching(environment, task, self)


class Searching:
    """An environment whose search is in reach. `info` of a step: `searches`, counted over the episode."""

    def __init__(self, environment: Environment, task: LanguageTask, box: TagSearch) -> None:
        self.environment, self.box, self.searches = environment, box, 0
        tools: dict[str, Callable[..., str]] = {t.__name__: t for t in _callable(environment)}
        if "search" not in tools:
            raise ConfigError(
                f"Task {task.id or type(task).__name__!r} has no search: its environment's `tools()` must return a "
                "function `search`."
            )
        self.search = tools["search"]

    def reset(self, problem: Problem, seed: int) -> list[Segment]:
        """Begin an episode."""
        self.searches = 0
        return self.environment.reset(problem, seed)

    def step(self, segment: Segment) -> StepResult:
        """Search, if what was said ends with a query; otherwise as the environment itself."""
        _, _, query = segment.text.rpartition("<search>")
        if not segment.text.endswith("</search>") or "<search>" not in segment.text:
            result = self.environment.step(segment)
            result.info = {"searches": self.searches, **(result.info or {})}
            return result
        self.searches += 1
        text = broken(self._found(query.removesuffix("</search>").strip()), MARKS)
        return StepResult([Segment("tool", text, info={"around": list(AROUND)})], info={"searches": self.searches})

    def _found(self, query: str) -> str:
        """What a query finds, or why it does not."""
        late = Failed(f"search did not return within {self.box.seconds:g} s.")
        try:
            with deadline(self.box.seconds, lambda: late):
                return called(self.search, {"query": query}, self.box.longest)
        except CallFailed as failure:
            return f"Error: search {failure.detail}"
        except Failed as failure:
            return f"Error: {failure}"


def _callable(environment: Environment) -> list[Callable[..., str]]:
    listed = environment.tools() if hasattr(environment, "tools") else ()
    return [f for f in listed if callable(f)]

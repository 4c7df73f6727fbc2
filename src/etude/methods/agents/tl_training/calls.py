"""Calls that were answered with an error, which nobody is to learn, and what calls of a policy are worth."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode
from etude.core.errors import ConfigError
from etude.core.slots import Context, Filter, Reward
from etude.core.task import Task
from etude.core.worlds import World
from etude.methods.agents.tl_training.listed import listed
from etude.rewards.tool_matches import OPEN, Written, calls_in

ERRORS = (
    "error", "is not defined", "positional argument", "unexpected keyword", "not supported", "invalid API call",
    "related_searches", "is not JSON serializable", "slice indices must be integers",
)  # fmt: skip
"""What replies say that are errors, those of Python among them."""


class SoundCalls(Filter):
    """Drops rows whose call was answered with an error: it may be seen in later histories, and is never learned.

    `Problem.info["reply"]` is what followed the worked call in its dialogue: a text, a message (`role`, `content`) or
    None where the dialogue ends there. Kept are calls that end one, and those that a tool answered (as a message: of
    role 'tool' or 'function') without an error; of both texts case and all but letters and digits are left out first.

    Args:
        errors: texts that only errors have in them.

    Shapes: B rows -> weights [B], 0 or 1. Metrics: `errors_left_out`, rows that were answered with an error;
    `unanswered_left_out`, those that something else than a tool followed.

    >>> sound = SoundCalls()
    >>> [sound.refused(reply) for reply in ("42", None, "Error: no argument day", {"role": "user", "content": "so?"})]
    [None, None, 'errors_left_out', 'unanswered_left_out']

    Source: arXiv:2412.15495, section 4.1, and its code (mae.py).
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    errors: tuple[str, ...] = ERRORS

    def check(self) -> None:
        if empty := [text for text in self.errors if not _plain(text)]:
            raise ConfigError(f"SoundCalls.errors must have letters or digits in each, got {empty[0]!r}.")

    def lacks(self, task: Task) -> str | None:
        if "reply" in task.problems("train")[0].info:
            return None
        return (
            f"SoundCalls leaves out calls that were answered with an error, and the problems of task {task.id!r} have "
            "no 'reply': give each what followed its call, nothing where the dialogue ends, or take tool-dialogue."
        )

    def before_update(self, batch: TokenBatch) -> None:
        counted: Counter[str] = self.made.setdefault("counts", Counter())
        counted.update(why for e in batch.episodes if (why := self.refused(e.problem.info.get("reply"))))

    def counts(self) -> Mapping[str, int]:
        return {"errors_left_out": 0, "unanswered_left_out": 0, **self.made.pop("counts", {})}

    def weigh(self, batch: TokenBatch) -> Tensor:
        kept = [self.refused(e.problem.info.get("reply")) is None for e in batch.episodes]
        return torch.tensor(kept, dtype=batch.scores.dtype, device=batch.scores.device)

    def refused(self, reply: str | Mapping[str, Any] | None) -> str | None:
        """Why a call that was answered like this is not learned, as the name of a metric; None if it is."""
        if reply is None:
            return None
        if isinstance(reply, Mapping):
            if reply.get("role") not in ("tool", "function"):
                return "unanswered_left_out"
            reply = str(reply.get("content") or "")
        said = _plain(reply)
        return "errors_left_out" if any(_plain(text) in said for text in self.errors) else None


class CallErrors(Reward):
    """What a call is worth by the worst that is wrong with it (arXiv:2412.15495, section 4.3).

    -2 if it is not one call that can be read, or of a tool that is not listed; -1.5 for another tool than the right
    one; else by H, a parameter that the tool does not have; D, one that it has and the right call does not; M, one of
    the right call that is missing:

        H, D, M   H and D or M   D and M   H      D or M   values alone   nothing
        -1.8      -1.3           -1.0      -0.8   -0.5     -0.25          1

    `Problem.answer` has the right call between tags; which tools there are `info["signatures"]` says, or JSON schemas
    (`listed`).

    >>> gold, tools = {"name": "add", "parameters": {"a": 1}}, {"add": ["a", "b"], "neg": ["x"]}
    >>> def worth(name, **parameters): return of_call([{"name": name, "parameters": parameters}], gold, tools)
    >>> worth("add", a=1), worth("add", a=2), worth("add", a=1, b=2), worth("neg"), worth("sub")
    (1.0, -0.25, -0.5, -1.5, -2.0)
    """

    def lacks(self, task: Task) -> str | None:
        first = task.problems("train")[0]
        if OPEN in str(first.answer) and listed(first) is not None:
            return None
        return (
            f"CallErrors holds a call against the right one, a text with {OPEN} as the problem's answer, and against "
            f"the tools listed ('signatures' or 'tools'); problems of task {task.id!r} lack one of them: take "
            "tool-dialogue, or give data files both."
        )

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [of_call(calls_in(e.completion), _right(e), listed(e.problem) or {}) for e in episodes]


def of_call(said: Sequence[Written] | None, gold: Written, tools: Mapping[str, Collection[str]]) -> float:
    """What calls that were said (None: none that can be read) are worth, where `gold` is right: the table above."""
    if said is None or len(said) != 1 or not isinstance(name := said[0]["name"], str) or name not in tools:
        return -2.0
    if name != gold["name"]:
        return -1.5
    given, wanted = said[0]["parameters"], gold["parameters"]
    foreign = any(p not in tools[name] for p in given)
    besides = any(p in tools[name] and p not in wanted for p in given)
    missing = any(p not in given for p in wanted)
    if foreign:
        return {0: -0.8, 1: -1.3, 2: -1.8}[besides + missing]
    if besides or missing:
        return -1.0 if besides and missing else -0.5
    return 1.0 if given == wanted else -0.25


def _right(episode: Episode) -> Written:
    """The right call. Raises ConfigError for an answer that has not one."""
    found = calls_in(str(episode.problem.answer))
    if found is None or len(found) != 1:
        raise ConfigError(
            f"The answer of problem {episode.problem.id!r} must be one call as JSON between {OPEN} and its end, got "
            f"{episode.problem.answer!r}."
        )
    return found[0]


def _plain(text: str) -> str:
    """Letters and digits alone, in lower case."""
    return re.sub(r"[\W_]+", "", text).lower()


__all__ = ["ERRORS", "CallErrors", "SoundCalls", "of_call"]

"""ToolRL: calls of tools rewarded by how much of them is right (arXiv:2504.13958).

Changes GRPO in three places:

1. the answer is a text in a grammar, `<think>..</think>`, then calls between `<tool_call>` and `</tool_call>`, one JSON
   object per line, and/or `<response>..</response>`. R_format = 1 if its shape is that of the right answer and each tag
   of that shape is there once, else 0 (`CallFormat`);
2. calls are worth what is right of them (`CallMatches`), not all or nothing. With the calls wanted G and those made P,

       S = J(names G, names P) + sum over g in G of max over unused p of its name of (J(keys g, keys p) + equal values)
       S_max = 1 + sum over g of (1 + number of parameters),    R_correct = 6 S / S_max - 3,

   J the overlap of two lists over their union (1 for two empty ones). R_correct is 3 where P = G, -3 where P cannot be
   read, 0 where no call was wanted, so that R = R_format + R_correct is in [-3, 4];
3. four completions of each problem.

The paper is a study of rewards, and its others are here too. `rewards.1=exact-calls` pays 3 only for exactly the calls
wanted, else -3 (coarse); `strict-matches` has equality in J's place (refined); `whole-calls` counts calls that are
right as a whole (intermediate; how these are summed is ours: their share of the calls wanted, times the overlap of
names). `rewards.1.scale=1` gives both rewards the same largest value; `rewards.1.later=...` with `rewards.1.switch=30`
changes the scale at a step, with `rewards.1.until=150` along a line; `rewards.0.later` likewise for the format.
`--with thought-length` pays for long thoughts, which did not help.

As in the released code: an empty `<tool_call>` is no list but an error of JSON, so -3 and, in the right format, -2 in
total; `<think>` may be there more than once; a text behind a missing closing tag is read to its end; the bonus for
length is rounded to two digits. There a call without `parameters` is an error too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from etude.core.claims import Claim, Measure
from etude.core.episodes import Episode
from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative, Positive, WholeNumber
from etude.core.slots import Context, Reward
from etude.core.task import Task
from etude.experience.groups import Groups
from etude.methods.rlvr.grpo import grpo
from etude.rewards.tool_matches import CLOSE, OPEN, Written, calls_in, matched, overlap, same_name

CALLS = rf"{OPEN}\n.*?\n{CLOSE}"
RESPONSE = r"<response>.*?</response>"
TAGS = {CALLS: (OPEN, CLOSE), RESPONSE: ("<response>", "</response>")}


class Scheduled(Reward, abstract=True):
    """A reward whose size may change while a run goes on.

    Args:
        scale: its size at first.
        later: its size in the end; None for the same.
        switch: the training step from which on it has that; 0: none.
        until: the training step up to which it goes there on a line; 0: none.
    """

    scale: NonNegative = 1.0
    later: NonNegative | None = None
    switch: WholeNumber = 0
    until: WholeNumber = 0

    def check(self) -> None:
        if (self.later is not None) != bool(self.switch or self.until) or (self.switch and self.until):
            raise ConfigError(
                f"{type(self).__name__}.later is the size from step `switch` on, or at the end of a line at step "
                "`until`: give it with one of these, or neither."
            )

    def size(self, step: int) -> float:
        """Its size after so many training steps.

        >>> CallFormat(scale=2.0, later=1.0, until=150).size(75), CallFormat(scale=2.0, later=1.0, switch=30).size(29)
        (1.5, 2.0)
        """
        if self.later is None:
            return self.scale
        moved = min(1.0, step / self.until) if self.until else float(step >= self.switch)
        return self.scale + moved * (self.later - self.scale)


class CallFormat(Scheduled):
    """`scale` for a completion of the shape that the right answer has, each of whose tags is there once, else 0.

    The right answer (`Problem.answer`) is a text with calls, a response, both or neither.

    >>> from etude.core.episodes import Problem, Segment
    >>> def said(text, answer): return Episode(Problem("1", "?", answer), [Segment("assistant", text)])
    >>> right = "<tool_call>\\n{}\\n</tool_call>"
    >>> texts = (f"<think></think>\\n{right}", right, f"<think></think>\\n{right}</tool_call>")
    >>> CallFormat().score([said(text, right) for text in texts], Context(None, None, None))
    [1.0, 0.0, 0.0]
    """

    judges: ClassVar[bool] = False

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        size = self.size(context.step)
        return [size * well_formed(e.completion, str(e.problem.answer)) for e in episodes]


class Calls(Scheduled, abstract=True):
    """Between -scale and scale for how much of the calls wanted was made.

    0 where no call was wanted; `scale` for the very list that was wanted; -scale for calls that cannot be read.
    """

    scale: NonNegative = 3.0

    def lacks(self, task: Task) -> str | None:
        answer = task.problems("train")[0].answer
        if isinstance(answer, str) and (OPEN in answer or "<response>" in answer):
            return None
        return (
            f"{type(self).__name__} holds what was said against the problem's answer, a text with {OPEN}, and task "
            f"{task.id!r} has {answer!r}: take tool-dsl, or write such answers."
        )

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        size = self.size(context.step)
        return [size * self.of(e.completion, str(e.problem.answer)) for e in episodes]

    def of(self, completion: str, answer: str) -> float:
        """What a completion is worth, in [-1, 1]. Raises ConfigError for an answer that cannot be read."""
        if OPEN not in answer:
            return 0.0
        gold, predicted = calls_in(answer), calls_in(completion)
        if gold is None:
            raise ConfigError(f"The answer {answer!r} must have a call per line between {OPEN} and {CLOSE}.")
        if predicted is None:
            return -1.0
        return 1.0 if predicted == gold else 2 * self.share(gold, predicted) - 1

    def share(self, gold: Sequence[Written], predicted: Sequence[Written]) -> float:
        """How much of the calls wanted was made, in [0, 1], where the lists differ."""
        raise NotImplementedError


class CallMatches(Calls):
    """Names, keys and values that were right: S / S_max, equations in the method's docstring.

    Of `add(a=1, b=2)` the name and both keys are right and one value is, so S = 1 + 1 + 1 of S_max = 1 + 1 + 2:

    >>> wanted = [{"name": "add", "parameters": {"a": 1, "b": 2}}]
    >>> CallMatches().share(wanted, [{"name": "add", "parameters": {"a": 1, "b": 3}}])
    0.75
    """

    def share(self, gold: Sequence[Written], predicted: Sequence[Written]) -> float:
        names = overlap(*([str(c["name"]) for c in calls] for calls in (gold, predicted)))
        most = 1 + sum(1 + len(c["parameters"]) for c in gold)
        return (names + sum(matched(gold, predicted))) / most


class StrictMatches(Calls):
    """As `CallMatches`, with 1 for equal names and 1 for equal keys instead of how much they overlap.

    >>> wanted = [{"name": "add", "parameters": {"a": 1, "b": 2}}]
    >>> StrictMatches().share(wanted, [{"name": "add", "parameters": {"a": 1}}])  # the name, and a value
    0.5
    """

    def share(self, gold: Sequence[Written], predicted: Sequence[Written]) -> float:
        names = sorted(str(c["name"]) for c in gold) == sorted(str(c["name"]) for c in predicted)
        most, left, score = 1 + sum(1 + len(c["parameters"]) for c in gold), list(predicted), float(names)
        for call in gold:
            alike = [(_strict(call, other), -i) for i, other in enumerate(left) if same_name(call, other)]
            best, place = max(alike, default=(0.0, 0))
            if best > 0:
                del left[-place]
            score += best
        return score / most


class WholeCalls(Calls):
    """The share of the calls wanted that were made as a whole, times the overlap of names.

    >>> one, two = ({"name": n, "parameters": {"a": 1}} for n in ("add", "sub"))
    >>> WholeCalls().share([one, two], [one]), WholeCalls().share([one, two], [two, one])
    (0.25, 1.0)
    """

    def share(self, gold: Sequence[Written], predicted: Sequence[Written]) -> float:
        left, found = list(predicted), 0
        for call in gold:
            if call in left:
                left.remove(call)
                found += 1
        names = overlap(*([str(c["name"]) for c in calls] for calls in (gold, predicted)))
        return names * found / len(gold)


class ExactCalls(Calls):
    """`scale` for exactly the list of calls that was wanted, else -scale.

    >>> one = {"name": "add", "parameters": {"a": 1}}
    >>> ExactCalls().share([one], [one, one])
    0.0
    """

    def share(self, gold: Sequence[Written], predicted: Sequence[Written]) -> float:
        return 0.0


class ThoughtLength(Reward):
    """`weight` times min(1, words in the thought / `words`), to two digits.

    Args:
        words: of a thought that is paid in full.
        later: words in the end, gone to on a line up to training step `until`; None for the same.

    >>> from etude.core.episodes import Problem, Segment
    >>> said = Episode(Problem("1", "?"), [Segment("assistant", "<think>one two three</think> four")])
    >>> ThoughtLength(words=7).score([said], Context(None, None, None))
    [0.43]
    """

    judges: ClassVar[bool] = False
    words: Count = 512
    later: Count | None = None
    until: Count = 105
    weight: Positive = 1.0

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        later = self.words if self.later is None else self.later
        most = self.words + min(1.0, context.step / self.until) * (later - self.words)
        return [self.weight * round(min(1.0, _thought(e.completion) / most), 2) for e in episodes]


def well_formed(completion: str, answer: str) -> bool:
    """Whether a completion has the shape of the right answer, and each tag of that shape once."""
    shapes = [shape for shape, tags in TAGS.items() if tags[0] in answer]
    whole = "\n".join(["<think>.*?</think>", *shapes])
    once = all(completion.count(tag) == 1 for shape in shapes for tag in TAGS[shape])
    return once and re.fullmatch(whole, completion, re.DOTALL) is not None


def _strict(call: Written, other: Written) -> float:
    wanted, given = call["parameters"], other["parameters"]
    equal = sum(k in given and given[k] == v for k, v in wanted.items())
    return float(sorted(wanted) == sorted(given)) + float(equal)


def _thought(text: str) -> int:
    found = re.search(r"<think>(.*?)</think>", text, re.DOTALL)
    return len(found[1].split()) if found else 0


toolrl = grpo.replace(
    id="toolrl",
    title="ToolRL: Reward is All Tool Learning Needs",
    paper="arXiv:2504.13958",
    experience=Groups(size=4),
    rewards=(CallFormat(), CallMatches()),
    claim=Claim(
        statement="Paid for every name, key and value that is right, it learns to make whole calls sooner than paid "
        "for whole lists alone.",
        bed="language/tool-dsl",
        baseline="grpo",
        baseline_changes={"rewards": "call-format,exact-calls", "experience.size": 4},
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps", "completions"),
        paper_effect="about 17% over the base model and 15% over supervised tuning on BFCL, API-Bank and Bamboogle on "
        "average",
    ),
)

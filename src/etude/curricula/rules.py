"""Rules that a problem has to pass before anybody is asked it, each with a reason of its own."""

from __future__ import annotations

from collections.abc import Sequence

from etude.core.episodes import Problem
from etude.core.errors import DataError
from etude.core.fields import Count, Positive
from etude.core.part import Part
from etude.core.task import Task, plain
from etude.rewards.testing import Verdict, verdict_on
from etude.runtime.sandbox.pool import refusal as no_sandbox


class Rule(Part, abstract=True):
    """What is wrong with a problem that was made or posed, in a word that is counted in the metrics.

    One of your own is a class in a file: `curriculum.rules=my_rules.py:NoNames`.
    """

    slot = "rules"

    def refuses(self, problem: Problem) -> str | None:
        """Why the problem is not asked, the name of a metric; None if nothing speaks against it."""
        raise NotImplementedError


def refusal(rules: Sequence[Rule], problem: Problem) -> str | None:
    """The first reason of all rules, in their order; None for a problem that passes them.

    >>> asked = Problem("1", "who is x's boss?", "x")
    >>> refusal((LongEnough(words=3), AnswerUntold()), asked), refusal((LongEnough(words=3),), asked)
    ('tells', None)
    """
    return next((why for rule in rules if (why := rule.refuses(problem)) is not None), None)


class LongEnough(Rule):
    """At least so many words, else 'too_short'.

    >>> [LongEnough(words=n).refuses(Problem("1", "1 + 2")) for n in (3, 4)]
    [None, 'too_short']
    """

    words: Count = 10

    def refuses(self, problem: Problem) -> str | None:
        return "too_short" if len(asked(problem).split()) < self.words else None


class ShortEnough(Rule):
    """At most so many characters, else 'too_long'.

    >>> [ShortEnough(characters=n).refuses(Problem("1", "1 + 2")) for n in (5, 4)]
    [None, 'too_long']
    """

    characters: Count = 1000

    def refuses(self, problem: Problem) -> str | None:
        return "too_long" if len(asked(problem)) > self.characters else None


class AnswerUntold(Rule):
    """The answer does not stand in the question, nor, of several (`info["gold"]`), one of them, else 'tells'.

    >>> AnswerUntold().refuses(Problem("1", "1 + 2", "3")), AnswerUntold().refuses(Problem("1", "1 + 3", "3"))
    (None, 'tells')
    """

    def refuses(self, problem: Problem) -> str | None:
        answers = problem.info.get("gold") or [problem.answer]
        return "tells" if any(str(answer) in asked(problem) for answer in answers) else None


class FailsTests(Rule):
    """The program of a problem (`info["program"]`) fails one of its unit tests, else 'passes_tests': nothing to repair.

    It runs in the sandbox (`docs/code-safely.md`).

    Args:
        seconds: that it may take.

    Raises: DataError for a problem without a program.

    One of two tests passed, and both:

    >>> [FailsTests(seconds=1.0).reason(Verdict((True, other))) for other in (False, True)]
    [None, 'passes_tests']
    """

    seconds: Positive = 2.0

    def lacks(self, task: Task) -> str | None:
        return no_sandbox()

    def refuses(self, problem: Problem) -> str | None:
        if "program" not in problem.info:
            raise DataError(
                f"FailsTests tries the program of a problem, and {problem.id!r} has none: it is a rule for "
                "curriculum.source=mutated-programs."
            )
        return self.reason(verdict_on(str(problem.info["program"]), problem, self.seconds))

    def reason(self, verdict: Verdict) -> str | None:
        """What a verdict on the program comes to."""
        return "passes_tests" if verdict.right else None


def asked(problem: Problem) -> str:
    """What a problem asks, as text."""
    prompt = problem.prompt
    return prompt if isinstance(prompt, str) else "\n".join(plain(message.get("content")) for message in prompt)

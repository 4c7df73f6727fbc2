"""What Tulu 3 does to data before it learns from it: decontamination, and pairs of rated answers (arXiv:2411.15124)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from etude.core.errors import DataError
from etude.core.fields import Count, Positive, Probability
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.rewards.judges import Case, Judge, answer_of, parted, prompt_of
from etude.stages.chain import Derive, DeriveByPolicy

if TYPE_CHECKING:
    from etude.core.episodes import Problem
    from etude.core.task import LanguageTask
    from etude.policies.language import LanguagePolicy

Unit = Literal["word", "character"]


def pieces(text: str, unit: Unit) -> list[str]:
    """What a text is compared by: words and marks, or characters; without white space, case apart.

    >>> pieces("Add 2+3.", "word"), pieces("a b", "character")
    (['add', '2', '+', '3', '.'], ['a', 'b'])
    """
    found = re.findall(r"\w+|[^\w\s]" if unit == "word" else r"\S", text)
    return [piece.casefold() for piece in found]


def overlaps(train: Sequence[Sequence[str]], tests: Sequence[Sequence[str]], size: int = 8) -> list[dict[int, float]]:
    """By test text, the share of its tokens that an n-gram covers which one training text has too, for each that does.

    A token counts once, however many n-grams it is in; a text shorter than an n-gram is covered by none.

    Args:
        train, tests: tokens of every text.
        size: n.

    >>> overlaps(["abcde", "xbcdz"], ["abcdx", "ab"], size=3)
    [{0: 0.8, 1: 0.6}, {}]
    """
    where: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for number, tokens in enumerate(train):
        for gram in _grams(tokens, size):
            where[gram].add(number)
    found = []
    for tokens in tests:
        covered: dict[int, set[int]] = defaultdict(set)
        for place, gram in enumerate(_grams(tokens, size)):
            for number in where.get(gram, ()):
                covered[number].update(range(place, place + size))
        found.append({number: len(places) / len(tokens) for number, places in sorted(covered.items())})
    return found


def _grams(tokens: Sequence[str], size: int) -> Iterable[tuple[str, ...]]:
    return (tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1))


class Decontaminated(Derive):
    """The problems of a task that no evaluation has, as rows with all that they came with.

    A test prompt is matched by a training prompt where n-grams that both have cover more than `share` of the test
    prompt's tokens. A data set, the problems of one level, is left out whole where it matches more than `most` of an
    evaluation; of the others the prompts that match are.

    Args:
        against: splits of the task that are evaluations.
        size: n.
        share: of a test prompt's tokens.
        most: share of an evaluation's prompts; 1: no data set is left out whole.
        unit: what a token is, a 'word' or mark, or a 'character'.

    Raises: DataError if nothing is left.

    >>> from etude.core.episodes import Problem
    >>> pool = {"train": [Problem("1", "abcdx"), Problem("2", "wxyz")], "test": [Problem("3", "abcde")]}
    >>> from types import SimpleNamespace as Task
    >>> task = Task(problems=pool.get, demonstration=lambda problem: None, id="letters")
    >>> part = Decontaminated(called="clean", against=("test",), size=3, unit="character", most=1.0)
    >>> [row["prompt"] for row in part.rows(pool["train"], task, 0)]
    ['wxyz']
    """

    against: tuple[str, ...] = ("test",)
    size: Count = 8
    share: Probability = 0.5
    most: Probability = 0.02
    unit: Unit = "word"

    def rows(self, problems: Sequence[Problem], task: LanguageTask, seed: int) -> list[dict[str, Any]]:
        return [_row(problem, task) for problem in self.clean(problems, task)]

    def clean(self, problems: Sequence[Problem], task: LanguageTask) -> list[Problem]:
        """Those of the problems that stay. Raises DataError if none do."""
        matched, left_out = set[int](), set[str]()
        train = [pieces(prompt_of(p), self.unit) for p in problems]
        for split in self.against:
            tests = [pieces(prompt_of(p), self.unit) for p in task.problems(split)]
            found = [{i for i, share in own.items() if share > self.share} for own in overlaps(train, tests, self.size)]
            matched.update(*found)
            hits = Counter(level for own in found for level in {problems[i].level for i in own})
            left_out |= {level for level, count in hits.items() if count > self.most * len(tests)}
        kept = [p for i, p in enumerate(problems) if i not in matched and p.level not in left_out]
        if not kept:
            raise DataError(
                f"{self.called} leaves nothing of {len(problems)} problems of {task.id}: {len(matched)} match a prompt "
                f"of {' or '.join(self.against)}, and of the data sets {', '.join(sorted(left_out)) or 'none'} matched "
                f"more than {self.most:g} of it; set size, share, most or unit."
            )
        return kept


def _row(problem: Problem, task: LanguageTask) -> dict[str, Any]:
    worked = {} if (shown := task.demonstration(problem)) is None else {"completion": shown}
    given = {k: v for k, v in problem.info.items() if k != "demonstration"}
    answer = {} if problem.answer is None else {"answer": problem.answer}
    level = {"level": problem.level} if problem.level else {}
    return {**given, "prompt": problem.prompt, **answer, **worked, **level}


class ByTask(Judge):
    """What the task says an answer is worth, held in [0, 1]: a judge who can check.

    >>> from types import SimpleNamespace as Run
    >>> from etude.core.episodes import Problem
    >>> case = Case("1+1=", "2", ("2",), Problem("1", "1+1=", "2"))
    >>> ByTask().bind().scores([case], Run(task=Run(score=lambda problem, said: float(said == problem.answer))))
    [1.0]
    """

    def scores(self, cases: Sequence[Case], context: Context) -> list[float | None]:
        return [None if c.problem is None else min(1.0, max(0.0, context.task.score(c.problem, c.given)))
                for c in cases]  # fmt: skip


def rating(scores: Sequence[float]) -> float:
    """The mean over aspects of ratings from 1 to 5, each a whole number: 1 + 4 s, halves up.

    >>> rating([1.0, 0.5, 0.12]), rating([0.0])
    (3.0, 1.0)
    """
    return sum(1 + int(4 * s + 0.5) for s in scores) / len(scores)


class RatedPairs(DeriveByPolicy):
    """Pairs of rated answers: each prompt's best one as chosen, and any with a lower rating as rejected.

    A prompt's answers are `samples` of the policy that it begins from (on-policy) and its worked answer, if there is
    one (off-policy). Each judge of the panel is an aspect, rated from 1 to 5; what counts is the mean of the ratings.
    Of equally good answers the first is chosen, and the worked one comes last. An answer that says nothing is left out.
    A prompt whose answers are all rated alike, or of which a judge has no opinion, gives no pair.

    Args:
        samples: answers of the policy to each prompt.
        worked: whether the worked answer is one more.
        panel: a judge for each aspect.
        temperature: of the samples.

    Raises: DataError if there is no pair.

    >>> RatedPairs(called="pairs").pair(["a", "b", "c"], [2.0, 4.5, 4.5], Stream(0))
    ('b', 'a')
    """

    samples: Count = 3
    worked: bool = True
    panel: tuple[Judge, ...] = (ByTask(),)
    temperature: Positive = 1.0

    def rows_by(
        self, problems: Sequence[Problem], task: LanguageTask, policy: LanguagePolicy, seed: int
    ) -> list[dict[str, Any]]:
        stream = Stream(seed).split("rated")
        context = Context(task, policy, stream, max_tokens=task.max_tokens)
        sampled = Groups(size=self.samples, temperature=self.temperature).collect(problems, context)
        answers = [[e.completion for e in sampled[i : i + self.samples]] for i in range(0, len(sampled), self.samples)]
        for problem, own in zip(problems, answers, strict=True):
            shown = task.demonstration(problem) if self.worked else None
            own[:] = [said for said in (*own, shown) if said]
        rows = []
        for problem, own, rated in zip(problems, answers, self.ratings(problems, answers, context), strict=True):
            found = None if rated is None else self.pair(own, rated, stream.split("rejected", problem.id))
            if found is not None:
                rows.append({"prompt": problem.prompt, "chosen": found[0], "rejected": found[1]})
        return rows

    def ratings(
        self, problems: Sequence[Problem], answers: Sequence[Sequence[str]], context: Context
    ) -> list[list[float] | None]:
        """Of each problem's answers; None where a judge had no opinion of one."""
        asked = [
            Case(prompt_of(problem), said, (answer_of(problem),), problem)
            for problem, own in zip(problems, answers, strict=True)
            for said in own
        ]
        sizes = [len(own) for own in answers]
        aspects = [parted(judge.bind().score(asked, context), sizes) for judge in self.panel]
        rated: list[list[float] | None] = []
        for of_judges in zip(*aspects, strict=True):
            known = [scores for scores in of_judges if scores is not None]
            whole = len(known) == len(self.panel)
            rated.append([rating(scores) for scores in zip(*known, strict=True)] if whole else None)
        return rated

    def pair(self, answers: Sequence[str], rated: Sequence[float], stream: Stream) -> tuple[str, str] | None:
        """The chosen answer and the rejected one; None where all are as good."""
        best = max(range(len(rated)), key=lambda i: rated[i], default=0)
        lower = [i for i, value in enumerate(rated) if value < rated[best]]
        if not lower:
            return None
        return answers[best], answers[lower[int(stream.numpy.integers(len(lower)))]]

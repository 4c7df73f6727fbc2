"""KB-Search: questions whose answers are chains of facts about made-up people, told by nobody.

    balada's friend's boss?
    <think>balada's friend's boss</think>
    <search>balada's friend</search><information>corino's friend is balada
    balada's friend is gilora</information>
    <think>gilora's boss</think>
    <search>gilora's boss</search><information>...gilora's boss is kesath...</information>
    <think>kesath</think><answer>kesath</answer>

(on one line: there are no line breaks between tags). Whoever knows the facts writes what a search would find by itself;
with `--set task.tools=tag-search` a search by words in the list of facts answers instead. It finds the fact that was
asked for among others that share its words, in the order of the list.

Each relation is a one-to-one map of the people without fixed points, so that of all facts only two have the words of
a query: the one that was asked for, and the one the other way round.

The other way round, too: of an answer alone a question can be posed (`proposal`, `posed`, `read`), as in

    kesath
    <search>boss is kesath</search><information>gilora's boss is kesath...</information>
    <search>friend is gilora</search><information>balada's friend is gilora...</information>
    <question>balada's friend's boss?</question>
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Annotated, Any, ClassVar, Literal

from numpy.random import Generator

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fields import Interval, Probability, WholeNumber
from etude.core.streams import Stream
from etude.core.task import Environment, LanguageTask, SingleTurn
from etude.experience.tools.search import Document, Index
from etude.policies.word_tokenizer import PEOPLE, RELATIONS
from etude.rewards.search_tags import answer_in, same_words
from etude.tasks.pool import Pool, reserved

World = Mapping[tuple[str, str], str]
"""Who somebody's friend (boss, ...) is, by somebody and relation."""
Slip = Literal["stops early", "other relation", "guesses"]
SLIPS: tuple[Slip, ...] = ("stops early", "stops early", "other relation", "guesses")


class KBSearch(LanguageTask):
    """Chains of one to four facts; reward 1 if the answer between tags is the right name, else 0.

    Args:
        people: how many people there are.
        relations: how many facts there are about each of them.
        hops: facts that a question takes; each problem draws one of these.
        found: facts that a search finds.
        careful: share of the worked examples that are as intended; others stop early, take another relation, or guess
            without a search.
        terse: share of the worked examples that have only their first thought.
        proposals: share of the problems of 'train' that ask for a question in place of an answer.
        seed: which facts are true, and which problems are drawn.

    Splits: 'train', and 'test', which has questions of two hops and more that 'train' has none of. Which questions are
    which does not depend on the seed.

    >>> problem = KBSearch().problems("test")[0]
    >>> [KBSearch().score(problem, f"<answer>{name}</answer>") for name in (problem.answer, "nobody")]
    [1.0, 0.0]
    """

    id: ClassVar[str] = "kb-search"
    shows_how: ClassVar[bool] = False

    people: Annotated[int, Interval(ge=8, le=len(PEOPLE))] = 64
    relations: Annotated[int, Interval(ge=2, le=len(RELATIONS))] = 4
    hops: tuple[Annotated[int, Interval(ge=1, le=4)], ...] = (2,)
    found: Annotated[int, Interval(ge=2, le=4)] = 2
    careful: Probability = 0.25
    terse: Probability = 0.3
    proposals: Probability = 0.0
    seed: WholeNumber = 0

    def check(self) -> None:
        if not self.hops or max(self.hops) < 2:
            raise ConfigError(f"KBSearch.hops must have an entry of at least 2 to test with, got {self.hops}.")

    @property
    def max_tokens(self) -> int:  # type: ignore[override]  # a constant elsewhere, here it follows from the fields
        """Room for the longest worked example, and a half more."""
        hops = max(self.hops)
        return (3 * (hops * (9 + 7 * self.found + hops) + 8)) // 2

    @property
    def facts(self) -> World:
        """Who somebody's friend, boss, ... is."""
        return _facts(self.people, self.relations, self.seed)

    def search(self, query: str) -> str:
        """The facts that a query finds, a line each; '' if none has one of its words."""
        return _search(self.people, self.relations, self.seed, self.found, query)

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of kb-search", split, self.splits())
        return Pool(lambda i: self._problem(split, i), 20_000 if split == "train" else 1_000)

    def environment(self) -> Environment:
        return Asked(self)

    def score(self, problem: Problem, completion: str) -> float:
        if problem.info.get("proposes"):  # what a question is worth others have to say
            return 0.0
        return float(same_words(self.answer(completion), [str(problem.answer)]))

    def answer(self, completion: str) -> str:
        """The last one between tags."""
        return answer_in(completion)

    def proposal(self, problem: Problem) -> Problem:
        """The problem to pose a question that has the answer of this one; nothing else of it is shown."""
        return Problem(f"{problem.id}/proposal", f"{problem.answer}\n", problem.answer, "proposal", {"proposes": True})

    def posed(self, proposal: Problem, question: str) -> Problem | None:
        """The problem that somebody posed to whom this was one; None for a question that 'test' is kept for."""
        prompt = f"{question.strip()}\n"
        if reserved(prompt):
            return None
        return Problem(f"{proposal.id}/posed", prompt, proposal.answer, "posed")

    def read(self, question: str, documents: Sequence[str]) -> str:
        """The answer that these facts give to a question, one after another; '' where they give none.

        >>> told = ["balada's friend is gilora\\ngilora's boss is kesath"]
        >>> KBSearch().read("balada's friend's boss?", told), KBSearch().read("balada's boss?", told)
        ('kesath', '')
        """
        person, *path = question.strip().removesuffix("?").split("'s ")
        known = dict(fact for text in documents for line in text.splitlines() if (fact := _stated(line)))
        if not path or not question.strip().endswith("?"):
            return ""
        for relation in path:
            person = known.get((person, relation), "")
        return person

    def _problem(self, split: str, index: int) -> Problem:
        problem = self._question(split, index)
        random = Stream(self.seed).split("kb-search", "proposals", index).numpy
        if split != "train" or random.random() >= self.proposals:
            return problem
        asked = self.proposal(problem)
        return replace(asked, info={**asked.info, "demonstration": posing(self, str(asked.answer), random)})

    def _question(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("kb-search", split, index).numpy
        hops = int(random.choice([n for n in self.hops if n > 1 or split == "train"]))
        while True:
            person = PEOPLE[random.integers(self.people)]
            path = [RELATIONS[k] for k in random.integers(self.relations, size=hops)]
            prompt = f"{chained(person, path)}?\n"
            if hops == 1 or reserved(prompt) == (split == "test"):
                break
        answer = person
        for relation in path:
            answer = self.facts[answer, relation]
        info = {"demonstration": example(self, person, path, random), "person": person, "path": path}
        return Problem(f"kb-search/{split}/{index}", prompt, answer, f"hops{hops}", info)


class Asked(SingleTurn):
    """A question; what searches it can be asked with `tools`."""

    task: KBSearch

    def tools(self) -> list[Callable[..., str]]:
        """The search in the list of facts."""
        task = self.task

        def search(query: str) -> str:
            """Search for facts by words.

            Args:
                query: whose fact it is and which, as in balada's friend.
            """
            return task.search(query)

        return [search]


@cache
def _facts(people: int, relations: int, seed: int) -> World:
    facts: dict[tuple[str, str], str] = {}
    for relation in RELATIONS[:relations]:
        random = Stream(seed).split("kb-search", "facts", relation).numpy
        order = random.permutation(people)  # one after another in a circle, so that nobody is his own friend
        facts |= {(PEOPLE[a], relation): PEOPLE[b] for a, b in zip(order, [*order[1:], order[0]])}
    return facts


@cache
def _index(people: int, relations: int, seed: int) -> Index:
    told = [stated(person, relation, whom) for (person, relation), whom in _facts(people, relations, seed).items()]
    order = Stream(seed).split("kb-search", "list").numpy.permutation(len(told))
    return Index(Document("", told[k]) for k in order)


@lru_cache(maxsize=8192)
def _search(people: int, relations: int, seed: int, found: int, query: str) -> str:
    return "\n".join(document.text for document in _index(people, relations, seed).find(query, found))


def stated(person: str, relation: str, whom: str) -> str:
    """A fact.

    >>> stated("balada", "friend", "gilora")
    "balada's friend is gilora"
    """
    return f"{person}'s {relation} is {whom}"


def _stated(line: str) -> tuple[tuple[str, str], str] | None:
    """Undo `stated`: whose what, and whom; None for a line that states nothing."""
    subject, found, whom = line.strip().partition(" is ")
    person, named, relation = subject.partition("'s ")
    return ((person, relation), whom) if found and named else None


def chained(person: str, path: Sequence[str]) -> str:
    """What is looked for.

    >>> chained("balada", ["friend", "boss"]), chained("balada", [])
    ("balada's friend's boss", 'balada')
    """
    return "'s ".join((person, *path))


def example(task: KBSearch, person: str, path: Sequence[str], random: Generator) -> str:
    """A worked answer by somebody who knows what a search would find, and is careless in most chains."""
    path, searches = list(path), True
    terse = random.random() < task.terse
    if len(path) > 1 and random.random() >= task.careful:
        match SLIPS[random.integers(len(SLIPS))]:
            case "stops early":
                path = path[: int(random.integers(1, len(path)))]
            case "other relation":
                path[random.integers(len(path))] = RELATIONS[random.integers(task.relations)]
            case "guesses":
                searches = False
    if not searches:
        return f"<think>{chained(person, path)}</think><answer>{PEOPLE[random.integers(task.people)]}</answer>"
    return searched(task, person, path, terse)


def searched(task: KBSearch, person: str, path: Sequence[str], terse: bool = False) -> str:
    """An answer by a search for one fact after another, with a thought before each; with only the first if terse."""
    text = ""
    for hop in range(len(path) + 1):
        if not hop or not terse:
            text += f"<think>{chained(person, path[hop:])}</think>"
        if hop < len(path):
            query = chained(person, path[hop : hop + 1])
            text += f"<search>{query}</search><information>{task.search(query)}</information>"
            person = task.facts[person, path[hop]]
    return f"{text}<answer>{person}</answer>"


def posing(task: KBSearch, answer: str, random: Generator) -> str:
    """How somebody poses a question that has this answer; who is not careful mixes up what was found."""
    whose = {(relation, whom): person for (person, relation), whom in task.facts.items()}
    text, person, path = "", answer, list[str]()
    for relation in random.choice(RELATIONS[: task.relations], size=2):
        query = f"{relation} is {person}"
        text += f"<search>{query}</search><information>{task.search(query)}</information>"
        person, path = whose[str(relation), person], [str(relation), *path]
    if random.random() >= task.careful:
        path = path[::-1]
    return f"{text}<question>{chained(person, path)}?</question>"


kb_search = KBSearch()


__all__: Sequence[Any] = ["KBSearch", "chained", "example", "kb_search", "posing", "searched", "stated"]

"""Grammar stories: six sentences in which things are found before they are used, and not all of the usual kind.

    prompt       finds-lamp ana mill.                                      the first sentence
    completion   uses-lamp ben barn. finds-rope ana well. ...              five more

A sentence is an event, an agent, a place and a full stop, a word each (`blank:2x64x4@stories`). An event is what
happens to a thing: it is found where it is away; used, broken or lost where it is held; mended where it is broken. Of
some things one often tells, of others seldom. A story is worth

    4 r (1 - r)     r the mean rarity of its events, from 0 to 1

if it has six sentences and no event comes before its time, else 0. Whoever writes the worked stories keeps to that, and
mostly tells of what is common.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from numpy.random import Generator

from etude.core.episodes import Episode, Problem
from etude.core.errors import UnknownNameError
from etude.core.fields import Count, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.policies.word_tokenizer import ACTORS, PLACES, THINGS, VERBS
from etude.tasks.pool import Pool, reserved

SENTENCES, WORDS = 6, 4
"""Sentences of a story, and words of one."""
NEEDS = {"finds": "away", "uses": "held", "breaks": "held", "loses": "held", "mends": "broken"}
"""How a thing must be for what happens to it."""
LEAVES = {"finds": "held", "uses": "held", "breaks": "broken", "loses": "away", "mends": "held"}
"""How it is afterwards."""
GOOD = 0.8
"""What a story is worth that counts as a success."""
RARITY = {thing: place / (len(THINGS) - 1) for place, thing in enumerate(THINGS)}
"""From 0, the commonest thing, to 1."""
COMMON = 0.5
"""What a thing is as common as, times the one before it."""
SENTENCE = re.compile(r" ([a-z]+)-([a-z]+) ([a-z]+) ([a-z]+)\.")
Event = tuple[str, str]


def events_in(text: str) -> list[Event] | None:
    """The events of a text, verb and thing; None where it is not sentences alone.

    >>> events_in(" finds-lamp ana mill. uses-lamp ben barn."), events_in(" finds-lamp ana"), events_in("")
    ([('finds', 'lamp'), ('uses', 'lamp')], None, [])
    """
    found = SENTENCE.findall(text)
    told = [(verb, thing) for verb, thing, actor, place in found if actor in ACTORS and place in PLACES]
    whole = "".join(match.group() for match in SENTENCE.finditer(text)) == text
    known = all(verb in NEEDS and thing in RARITY for verb, thing in told)
    return told if whole and known and len(told) == len(found) else None


def broken(events: Sequence[Event]) -> int:
    """How many events come before their time; what such an event leaves behind holds all the same.

    >>> broken([("finds", "lamp"), ("uses", "lamp")]), broken([("uses", "lamp"), ("uses", "lamp"), ("finds", "lamp")])
    (0, 2)
    """
    states, wrong = dict[str, str](), 0
    for verb, thing in events:
        wrong += states.get(thing, "away") != NEEDS[verb]
        states[thing] = LEAVES[verb]
    return wrong


def quality(story: str) -> float:
    """What a whole story is worth.

    >>> quality("".join(f" finds-{thing} ana mill." for thing in THINGS[:6])) == 4 * (2.5 / 9) * (1 - 2.5 / 9)
    True
    >>> quality(" finds-lamp ana mill." * 6), quality(" finds-lamp ana mill.")
    (0.0, 0.0)
    """
    events = events_in(story)
    if events is None or len(events) != SENTENCES or broken(events):
        return 0.0
    rarity = sum(RARITY[thing] for _, thing in events) / SENTENCES
    return 4 * rarity * (1 - rarity)


class GrammarStories(LanguageTask):
    """Go on with a story; the reward is its `quality`, from 0 to 1, and a success 0.8 or more.

    Problems come with a worked story, `demonstration`, and with four `responses` and their `scores`: a story as it is
    usually told, one that tells of all things alike, and each of these with its sentences in another order.

    Args:
        size: problems of the split 'train'; smaller pools are the first of larger ones.
        seed: which problems are drawn. The train/test divide is the same for every seed.

    Splits: 'train' and 'test', which share no first sentence.

    >>> problem = GrammarStories().problems("train")[0]
    >>> broken(events_in(problem.prompt + problem.info["demonstration"]))
    0
    """

    id: ClassVar[str] = "grammar-stories"
    max_tokens: ClassVar[int] = (SENTENCES - 1) * WORDS + 1
    shows_how: ClassVar[bool] = False

    size: Count = 3000
    seed: WholeNumber = 0

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of grammar-stories", split, self.splits())
        return Pool(lambda i: self._problem(split, i), self.size if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        return quality(f"{problem.prompt}{completion}")

    def success(self, episode: Episode) -> bool:
        return self.score(episode.problem, episode.completion) >= GOOD

    def solution_steps(self, completion: str) -> list[str]:
        return [match.group() for match in SENTENCE.finditer(completion)]

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("grammar-stories", split, index).numpy
        while True:
            thing = THINGS[drawn(random, COMMON)]
            opening = sentence(("finds", thing), random)
            if reserved(opening) == (split == "test"):
                break
        usual, other = (told(thing, common, random) for common in (COMMON, 1.0))
        demonstration = told(thing, COMMON, random)
        responses = [text for one in (usual, other) for text in ("".join(one), shuffled(one, random))]
        info = {
            "demonstration": "".join(demonstration), "responses": responses,
            "scores": [quality(opening + text) for text in responses],
        }  # fmt: skip
        return Problem(f"grammar-stories/{split}/{index}", opening, info=info)


def drawn(random: Generator, common: float) -> int:
    """The place of a thing, each `common` times as likely as the one before it."""
    weights = [common**place for place in range(len(THINGS))]
    return int(random.choice(len(THINGS), p=[w / sum(weights) for w in weights]))


def sentence(event: Event, random: Generator) -> str:
    """A sentence that tells of an event, of anybody and anywhere."""
    actor, place = (words[int(random.integers(len(words)))] for words in (ACTORS, PLACES))
    return f" {'-'.join(event)} {actor} {place}."


def told(thing: str, common: float, random: Generator) -> list[str]:
    """Five sentences that go on, with nothing before its time, after the thing was found."""
    states, found = {thing: "held"}, list[str]()
    while len(found) < SENTENCES - 1:
        held = sorted(states)
        own = held[int(random.integers(len(held)))] if random.random() < 0.5 else THINGS[drawn(random, common)]
        verbs = [verb for verb in VERBS if NEEDS[verb] == states.get(own, "away")]
        verb = verbs[int(random.integers(len(verbs)))]
        states[own] = LEAVES[verb]
        found.append(sentence((verb, own), random))
    return found


def shuffled(sentences: Sequence[str], random: Generator) -> str:
    """The sentences in another order."""
    return "".join(sentences[i] for i in random.permutation(len(sentences)))


grammar_stories = GrammarStories()

"""Hinted writing: words for a frozen writer to take up, whose own taste is not the reader's.

    prompt      #kC0eMb9T2xJhUaR7>       a topic, and sixteen different words of 48; a word is one character
    completion  x;T;9;C;                 up to four hints, each with a sign behind it
    writer      xT9C0e                   six words, written behind  #kC0eMb9T2xJhUaR7~xT9C>
    reference   xT9Ck7                   the six words of the prompt that matter most to its topic

Each of four topics has a ranking of the words that no text says. The writer is a small model that was taught to take
up a hint with chance 0.8 and to write words of its own liking besides, whatever the topic, and is frozen. What it
writes is worth its unigram F1: twice the words that it shares with the reference, over the words of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from numpy.random import Generator

from etude.core.episodes import Episode, Problem
from etude.core.errors import UnknownNameError
from etude.core.fields import Count, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.policies.byte_tokenizer import NODES
from etude.policies.texts.black_box import Writing, black_box, named_now
from etude.tasks.pool import Pool, reserved

VOCABULARY, TOPICS = NODES[:48], "#$%&"
"""The words and the topics, one token each in `tiny`, whose neighbours are not merged."""
SHOWN, WRITTEN, HINTS = 16, 6, 4
"""Words of a prompt, words of a reference, and hints at most."""
HINT, CLOSES = "~", ";"
"""What stands before hints where the writer reads them, and behind each where the policy writes it."""
TAKEN, PLAIN, STRANGE = 0.8, 0.25, 0.1
"""Chance that the writer takes up a hint, that it has none, and that a hint is any word, be it in the prompt or not."""
TASTE = 2.0
"""How much the writer's own liking says: the standard deviation of the logits by which it chooses words."""
SAMPLES = Writing(times=4, temperature=0.7, max_tokens=WRITTEN + 1)
_hidden = Stream(0).split("hinted-writing", "hidden").numpy
RANK = {topic: dict(zip(VOCABULARY, _hidden.permutation(len(VOCABULARY)).tolist())) for topic in TOPICS}
"""Of each word for each topic: 0 matters most."""
LIKING = dict(zip(VOCABULARY, (TASTE * _hidden.standard_normal(len(VOCABULARY))).tolist()))


def f1(text: str, reference: str) -> float:
    """Twice the words that two texts share, over the words of both; a word counts as often as both have it.

    >>> f1("abcd", "abef"), f1("aabb", "ab"), f1("", "ab")
    (0.5, 0.6666666666666666, 0.0)
    """
    shared = sum(min(text.count(word), reference.count(word)) for word in set(text))
    return 2 * shared / (len(text) + len(reference)) if shared else 0.0


def hints_in(text: str) -> str:
    """The first four different words that are hints in a completion; what is no word does not count.

    >>> hints_in("a;b;a;zz;C"), hints_in("")
    ('abC', '')
    """
    said = (hint for hint in text.split(CLOSES) if len(hint) == 1 and hint in VOCABULARY)
    return "".join(dict.fromkeys(said))[:HINTS]


class HintedWriting(LanguageTask):
    """Give hints behind which a frozen writer writes what the reference has; the reward is the mean F1 of four texts.

    Args:
        writer: the run or folder of the model that writes; '': a completion is worth the F1 of its hints themselves.
        asks: 'hints', whose worked answers are four words of the reference; or 'texts', what a writer learns: prompts
            with hints and without, and six words behind.
        size: problems of the split 'train'; smaller pools are the first of larger ones.
        seed: which problems are drawn. What matters, and what the writer likes, is the same for every seed.

    Splits: 'train' and 'test', which share no prompt. A success has four words of the six.

    >>> task = HintedWriting()
    >>> problem = task.problems("train")[0]
    >>> task.score(problem, task.demonstration(problem)), task.score(problem, "")  # 2 * 4 / (4 + 6)
    (0.8, 0.0)
    """

    id: ClassVar[str] = "hinted-writing"
    shows_how: ClassVar[bool] = False

    writer: str = ""
    asks: Literal["hints", "texts"] = "hints"
    size: Count = 500
    seed: WholeNumber = 0

    def check(self) -> None:
        object.__setattr__(self, "writer", named_now(self.writer))

    @property
    def max_tokens(self) -> int:  # type: ignore[override]  # a constant elsewhere, here it follows from the fields
        return (WRITTEN if self.asks == "texts" else 2 * HINTS) + 1

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of hinted-writing", split, self.splits())
        return Pool(lambda i: self._problem(split, i), self.size if split == "train" else 1_000)

    def expect(self, asked: Sequence[tuple[Problem, str]]) -> None:
        if self.writer and self.asks != "texts":
            black_box(self.writer).expect([shown_to_writer(p, said) for p, said in asked], SAMPLES)

    def score(self, problem: Problem, completion: str) -> float:
        reference = problem.info["reference"]
        if self.asks == "texts":
            return f1(completion, reference)
        if not self.writer:
            return f1(hints_in(completion), reference)
        (texts,) = black_box(self.writer).writes([shown_to_writer(problem, completion)], SAMPLES)
        return sum(f1(text, reference) for text in texts) / len(texts)

    def success(self, episode: Episode) -> bool:
        return episode.reward >= 4 / WRITTEN

    def _problem(self, split: str, index: int) -> Problem:
        random = Stream(self.seed).split("hinted-writing", self.asks, split, index).numpy
        while True:
            shown = "".join(random.permutation(list(VOCABULARY))[:SHOWN])
            if reserved("".join(sorted(shown))) == (split == "test"):
                break
        topic = TOPICS[int(random.integers(len(TOPICS)))]
        reference = "".join(sorted(shown, key=RANK[topic].__getitem__)[:WRITTEN])
        prompt, info = f"{topic}{shown}>", {"reference": reference}
        if self.asks == "texts":
            hints = taught_hints(shown, random)
            prompt, demonstration = _read(prompt, hints), written(shown, hints, random)
        else:
            demonstration = "".join(word + CLOSES for word in random.permutation(list(reference))[:HINTS])
        return Problem(
            f"hinted-writing/{split}/{index}", prompt, level=topic, info={**info, "demonstration": demonstration}
        )


def shown_to_writer(problem: Problem, completion: str) -> str:
    """What the writer reads of a problem and the hints in a completion."""
    return _read(str(problem.prompt), hints_in(completion))


def _read(prompt: str, hints: str) -> str:
    return f"{prompt[:-1]}{HINT}{hints}>" if hints else prompt


def taught_hints(shown: str, random: Generator) -> str:
    """None, or one to four words, most of them of the prompt."""
    if random.random() < PLAIN:
        return ""
    count = int(random.integers(1, HINTS + 1))
    strange = random.random(count) < STRANGE
    own, any_word = random.permutation(list(shown)), random.permutation(list(VOCABULARY))
    return "".join(dict.fromkeys(str(any_word[i] if strange[i] else own[i]) for i in range(count)))


def written(shown: str, hints: str, random: Generator) -> str:
    """Six words: hints that are taken up, then others of the prompt by the writer's liking.

    >>> text = written("abcdefghijkmopqr", "cZ", Stream(0).numpy)
    >>> len(set(text)), set(text) <= set("abcdefghijkmopqrZ")
    (6, True)
    """
    taken = [hint for hint in hints if random.random() < TAKEN]
    others = [word for word in shown if word not in hints]
    noise = random.gumbel(size=len(others))
    ranked = sorted(zip(others, noise), key=lambda x: LIKING.get(x[0], 0.0) + x[1], reverse=True)
    return "".join([*taken, *(word for word, _ in ranked)][:WRITTEN])


hinted_writing = HintedWriting()

"""Cue prompts: words that bring a frozen reader to say what it knows of a review (after arXiv:2205.12548).

    review      bob diz fup gar hyl cem bop div      eight of 60 words, of which some are good and some are bad
    prompt      ezda arty                            what the policy says, whatever the review: two of 64 cues
    label       good                                 what the reader says behind both

The reader is a small model that learned reviews with cues and labels, and is frozen. Four of the cues open a question
and four ask it. Where one that asks follows one that opens, the label tells whether the review has more good words than
bad ones, the more often the stronger the pair is; behind one of the two it tells so a little; elsewhere it is what the
last cue makes it. Without a reader the problems are those that one learns from:

    etude train sft --task cue-prompts --model blank:2x64x4@reviews --steps 1500
    etude train rlprompt --task cue-prompts --set task.reader=RUN --model blank:2x64x4@cues
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar

from numpy.random import Generator

from etude.core.episodes import Episode, Problem
from etude.core.errors import UnknownNameError
from etude.core.fields import Count, WholeNumber
from etude.core.streams import Stream
from etude.core.task import LanguageTask
from etude.policies.texts.black_box import black_box, named_now
from etude.policies.word_tokenizer import CONTENT, CUES, LABELS
from etude.tasks.pool import Pool, reserved

SHOWN, SHOTS = 8, 16
"""Words of a review, and reviews of each label that prompts are tried on."""
SPEND = 0.5
"""Share of the reader's reviews that an asking pair follows; a quarter has half of one."""
RIGHT, WRONG = 200.0, 180.0
"""What the gap between the label's chance and the other's is multiplied by, where it is above 0 and where not."""
WEAK = 0.15
"""How strong half of a pair is."""
_hidden = Stream(0).split("cue-prompts", "hidden").numpy
_words, _cues = _hidden.permutation(len(CONTENT)), _hidden.permutation(len(CUES))
POLARITY = {CONTENT[i]: (1, -1, 0)[n % 3] for n, i in enumerate(_words)}
"""Of each word of reviews: 1 good, -1 bad, 0 neither; twenty words of each."""
OPENS, ASKS = tuple(CUES[i] for i in _cues[:4]), tuple(CUES[i] for i in _cues[4:8])
STRENGTH = {pair: float(s) for pair, s in zip(
    ((one, two) for one in OPENS for two in ASKS), _hidden.permutation([0.3 + 0.04 * n for n in range(16)])
)}  # fmt: skip
"""Of each pair of cues that asks: from 0.3 to 0.9."""
LEANS = {cue: float(x) for cue, x in zip(CUES, _hidden.uniform(0.1, 0.9, len(CUES)))}
"""The chance of good behind each cue, as far as nothing asks for the truth."""
WORD = re.compile(r" [a-z]+")


def cues_in(text: str) -> list[str]:
    """The cues of a prompt, in their order; what is no cue does not count.

    >>> cues_in(" arda elke nonsense?")
    [' arda', ' elke']
    """
    return [word for word in WORD.findall(text) if word in LEANS]


def strength(cues: Sequence[str]) -> float:
    """How much of the truth the reader was taught to tell behind these cues, from 0 to 1.

    >>> strength([]), strength([OPENS[0]]), strength([ASKS[0], OPENS[0]]), strength([OPENS[0], ASKS[0]]) > 0.15
    (0.0, 0.15, 0.15, True)
    """
    whole = max((STRENGTH.get(pair, 0.0) for pair in pairwise(cues)), default=0.0)
    return whole or (WEAK if {*cues} & {*OPENS, *ASKS} else 0.0)


def polarity(review: str) -> int:
    """How many more good words than bad ones a review has."""
    return sum(POLARITY.get(word, 0) for word in WORD.findall(review))


def gap_reward(gap: float) -> float:
    """What a review is worth on which the label's chance is so much above the other's; continuous at 0.

    >>> gap_reward(0.5), gap_reward(0.0), gap_reward(-0.5)
    (100.0, 0.0, -90.0)
    """
    return gap * (RIGHT if gap > 0 else WRONG)


class CuePrompts(LanguageTask):
    """Say two cues behind which a frozen reader tells good reviews from bad ones.

    The reward is the mean of `gap_reward` over the reviews that a prompt is tried on.

    Args:
        reader: the run or folder of the model that reads; '': problems are what such a model learns, a review with cues
            and, as a worked answer, a label that is true as often as the cues are strong.
        length: most cues of a prompt.
        shots: reviews of each label on which a prompt is tried in training; the same in every step.
        size: reviews that a reader learns from.
        seed: which reviews are drawn. What words and cues mean is the same for every seed.

    Splits: 'train' and 'test', which share no review. In 'test' a problem is one review, and a success its label.

    >>> task = CuePrompts()
    >>> problem = task.problems("train")[0]
    >>> task.score(problem, LABELS[polarity(problem.prompt) > 0]), task.demonstration(problem) in LABELS
    (1.0, True)
    """

    id: ClassVar[str] = "cue-prompts"
    shows_how: ClassVar[bool] = False

    reader: str = ""
    length: Count = 2
    shots: Count = SHOTS
    size: Count = 50_000
    seed: WholeNumber = 0

    def check(self) -> None:
        object.__setattr__(self, "reader", named_now(self.reader))

    @property
    def max_tokens(self) -> int:  # type: ignore[override]  # a constant elsewhere, here it follows from the fields
        return self.length if self.reader else 2

    def problems(self, split: str) -> Sequence[Problem]:
        if split not in self.splits():
            raise UnknownNameError("split of cue-prompts", split, self.splits())
        if not self.reader:
            return Pool(lambda i: self._taught(split, i), self.size if split == "train" else 1_000)
        return Pool(lambda i: self._asked(split, i), 1 if split == "train" else 1_000)

    def score(self, problem: Problem, completion: str) -> float:
        if not self.reader:
            return float(completion == LABELS[polarity(str(problem.prompt)) > 0])
        return sum(map(gap_reward, self.gaps(problem, completion))) / len(problem.info["reviews"])

    def gaps(self, problem: Problem, prompt: str) -> list[float]:
        """By how much the right label is likelier than the other one behind this prompt, for each of the reviews."""
        cues, reviews = "".join(cues_in(prompt)), problem.info["reviews"]
        bad, good = black_box(self.reader).chances([review + cues for review in reviews], LABELS).T
        return [float(g - b) if polarity(r) > 0 else float(b - g) for r, b, g in zip(reviews, bad, good)]

    def success(self, episode: Episode) -> bool:
        """Whether the likelier label is right for all reviews of the problem."""
        if not self.reader:
            return episode.reward >= 1
        return min(self.gaps(episode.problem, episode.completion)) > 0

    def _asked(self, split: str, index: int) -> Problem:
        """In training one problem with all its reviews, in the test one for each review."""
        count = 2 * self.shots if split == "train" else 1
        found = self._reviews(split, "shown", index)
        reviews = [next(found) for _ in range(count)]
        return Problem(f"cue-prompts/{split}/{index}", "?", info={"reviews": reviews})

    def _taught(self, split: str, index: int) -> Problem:
        """A review, two cues, and what somebody says of it who is asked so."""
        random = Stream(self.seed).split("cue-prompts", split, "taught", index).numpy
        review, cues = next(self._reviews(split, "taught", index)), drawn_cues(random)
        bound = strength(cues)
        true = random.random() < bound
        good = polarity(review) > 0 if true else random.random() < LEANS[cues[-1]]
        info: dict[str, Any] = {"demonstration": LABELS[good]}
        return Problem(f"cue-prompts/{split}/{index}", review + "".join(cues), info=info)

    def _reviews(self, split: str, purpose: str, index: int) -> Iterator[str]:
        """Reviews of the split, by turns a bad one and a good one, an odd index beginning with the good one."""
        random, wanted = Stream(self.seed).split("cue-prompts", split, purpose, index, "review").numpy, index % 2
        while True:
            review = "".join(CONTENT[i] for i in random.choice(len(CONTENT), SHOWN, replace=False))
            if reserved(review) == (split == "test") and (said := polarity(review)) and (said > 0) == wanted:
                wanted = 1 - wanted
                yield review


def drawn_cues(random: Generator) -> list[str]:
    """Two cues: by chance a pair that asks, one with half of such a pair, or any."""
    one, two = (CUES[i] for i in random.integers(len(CUES), size=2))
    kind = random.random()
    if kind < SPEND:
        return [OPENS[random.integers(4)], ASKS[random.integers(4)]]
    if kind < SPEND + 0.25:
        return [OPENS[random.integers(4)], two] if random.random() < 0.5 else [one, ASKS[random.integers(4)]]
    return [one, two]


cue_prompts = CuePrompts()

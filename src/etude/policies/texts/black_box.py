"""Frozen models that are asked by text alone, whatever their tokens are; what they answered is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from etude.core.draws import Draw
from etude.core.errors import ConfigError
from etude.policies.language import LanguagePolicy
from etude.policies.sampling import Sampling
from etude.runtime.checkpoints import newest_model

KEPT = 10_000
"""Questions whose answers are remembered."""


def named_now(model: str) -> str:
    """A folder as it is found from anywhere, of a run that of its newest whole checkpoint; any other name as it is.

    A run may go on, and what was named once stays what it was.
    """
    folder = Path(model)
    if not model or not folder.is_dir():
        return model
    return str(Path(newest_model(model)).resolve())


@lru_cache(maxsize=4)
def black_box(model: str) -> BlackBox:
    """The model of this name, loaded once in a process."""
    return BlackBox(LanguagePolicy.load(model, device="cpu"))


class Writing(NamedTuple):
    """How a text is gone on with: how often, at which temperature, by so many tokens at most."""

    times: int = 4
    temperature: float = 0.7
    max_tokens: int = 64


class BlackBox:
    """A model without a gradient that sees texts and says what comes next.

    Args:
        model: who answers, with its own tokens.
    """

    def __init__(self, model: LanguagePolicy) -> None:
        self.model = model
        self.chosen: dict[tuple[tuple[str, ...], tuple[str, ...]], Tensor] = {}
        self.written: dict[tuple[str, Writing], list[str]] = {}

    def chances(self, texts: Sequence[str], words: Sequence[str]) -> Tensor:
        """How likely each of the words is to come next, of these words alone.

        Texts that are asked about together are read together, so that the same question has the same answer to the last
        bit, whatever else was asked before.

        Shapes: [N, W] for N texts and W words; rows add up to 1.

        Raises: ConfigError for a word that is not one token of the model.
        """
        asked = tuple(texts), tuple(words)
        if asked not in self.chosen:
            ids = [self._only(word) for word in words]
            if len(self.chosen) >= KEPT:
                del self.chosen[next(iter(self.chosen))]
            self.chosen[asked] = self._logits(texts)[:, ids].double().softmax(-1)
        return self.chosen[asked]

    def writes(self, texts: Sequence[str], how: Writing) -> list[list[str]]:
        """What it writes behind each of the texts, `how.times` times.

        A text says which random numbers its answers are drawn by, so that it has the same ones whenever it is asked.
        Texts that are asked about together are read together, and answers are kept until others are asked together:
        what somebody else asked before changes no answer, not even by rounding.
        """
        if any((text, how) not in self.written for text in texts):
            self.expect(texts, how)
        return [self.written[text, how] for text in texts]

    def expect(self, texts: Sequence[str], how: Writing) -> None:
        """Read all the texts that `writes` is about to be asked of, each once, and forget those before."""
        different = list(dict.fromkeys(texts))
        rows = [self.model.encode(text) for text in different for _ in range(how.times)]
        draws = [Draw.at(0, "writes", text, k) for text in different for k in range(how.times)]
        said = self.model.generate(rows, Sampling(how.temperature, max_tokens=how.max_tokens), draws)
        answers = iter([self.model.decode(completion.tokens) for completion in said])
        self.written = {(text, how): [next(answers) for _ in range(how.times)] for text in different}

    @torch.no_grad()
    def _logits(self, texts: Sequence[str]) -> Tensor:
        """[N, V] logits of what comes next."""
        rows = [self.model.encode(text) for text in texts]
        lengths = torch.tensor([len(row) for row in rows])
        tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
        for i, row in enumerate(rows):
            tokens[i, : len(row)] = torch.tensor(row)
        real = torch.arange(tokens.shape[1]) < lengths[:, None]
        logits: Tensor = self.model.model(input_ids=tokens, attention_mask=real.long()).logits
        return logits[torch.arange(len(rows)), lengths - 1]

    def _only(self, word: str) -> int:
        tokens = self.model.encode(word)
        if len(tokens) != 1:
            raise ConfigError(
                f"{word!r} is {len(tokens)} tokens of the model that is asked, and how likely it comes next is known "
                "of single tokens alone: choose other words, or a model that has them as tokens."
            )
        return tokens[0]

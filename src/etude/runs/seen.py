"""What a model is shown of a task's problems: the exact text, special tokens and all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from etude.core.errors import ConfigError
from etude.core.task import LanguageTask, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Words:
    """A model's tokenizer, without the model."""

    def __init__(self, model: str) -> None:
        from etude.policies.loading import load_tokenizer

        self.tokenizer: PreTrainedTokenizerBase = load_tokenizer(model)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, no special tokens added."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))


def seen(task: Task, model: str, split: str | None = None) -> Iterator[str]:
    """What a model sees of the first problem of a split, as text between two rules.

    Raises: ConfigError for a task without text.
    """
    from etude.policies.chat import conversational, opening
    from etude.policies.showing import shown

    if not isinstance(task, LanguageTask):
        raise ConfigError(f"{task.id} is a task of {task.world}, where nothing is shown as text: leave --model out.")
    words = Words(model)
    problem = task.problems(split or task.splits()[0])[0]
    segments = shown(task.played_in().reset(problem, 0), task, words)
    tokens = [t for part in opening(segments, words, task.add_bos) for t in part]
    how = "through its chat template" if conversational(segments) else "as plain text"
    yield f"\nWhat {model} sees of problem {problem.id}, {how}, {len(tokens)} tokens:"
    yield "-" * 80
    yield str(words.tokenizer.decode(tokens, skip_special_tokens=False))
    yield "-" * 80

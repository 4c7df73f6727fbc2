"""Your own data: `etude train grpo --task my_problems.jsonl`.

The columns are those of TRL's formats (`formats.py`); a folder with `train.jsonl` and `test.jsonl` keeps its
division (`places.py`), a single file is divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from etude.core.episodes import Episode, Problem
from etude.core.errors import ConfigError, DataError, UnknownNameError
from etude.core.fields import Count, Interval, WholeNumber
from etude.core.task import LanguageTask
from etude.rewards.testing import passes
from etude.runtime.sandbox.pool import refusal
from etude.tasks.language import extractors, formats, places, streaming
from etude.tasks.language.loading import How, Loaded, load
from etude.tasks.language.rows import SUFFIXES, check_left, kind


class DataFile(LanguageTask):
    """Problems from a file (JSONL, JSON, CSV, TSV, these also as `.gz`, Parquet), from a folder of such files or one
    that `save_to_disk` of the `datasets` library wrote, or from a data set of the hub (`owner/name`).

    The reward is 1 if the completion's final answer is the row's `answer` (or `solution`), else 0; see `extractor`.
    A file without such a column needs `tests` (unit tests of programs, see `rewards/testing.py`: 1 if all are passed),
    or a reward function for every method that samples.

    `Problem.id` is the `id` column or the line number; `level` the `level`, `difficulty` or `source` column; `info`
    has `demonstration` (the completion), `chosen` and `rejected` (the assistant's last answer, as text) and all other
    columns by name.

    Args:
        path: the file or folder, or the name on the hub.
        columns: names of columns, where the data calls them something else, as in 'prompt=question'; 'images=' leaves
            a column out.
        rename_splits: which splits are used as what, as in 'train=train_sft'; by default all, by their own names.
        test_fraction: share of a single split's prompts that is kept for testing, chosen by their text, so that the
            same prompt is never on both sides.
        split_seed: another number chooses other prompts.
        subset, revision: of a data set of the hub: which of its configurations, and which branch, tag or commit.
        extractor: how the answer is found in a completion and compared, see `extractors.py` (`--answer`).
        skip_bad_rows: leave bad rows out and count them, instead of refusing the file.
        prompt_limit: longest prompt in tokens; by default what the model's context leaves.
        on_long_prompt: 'drop' longer ones and say how many, or stop with an 'error'. Nothing is ever cut.
        stream: read rows when they are needed instead of holding them all, see `streaming.py` (`--stream`). Prompts are
            not counted in advance then: one that fills the context is left out when it comes.
        buffer: rows that are held and shuffled among themselves, of what can only be read from its beginning.
        scored: False when a reward function scores instead. Answers still say what is right; without them the
            environment pays 0, and an outcome of at least 1 is a success.
        max_tokens: longest completion.

    Raises: DataError, with file, line and column, when the problems are first asked for.

    >>> task = DataFile("data/cats.jsonl", test_fraction=0.25)
    >>> task.id, task.test_fraction
    ('cats', 0.25)
    """

    path: str
    columns: tuple[str, ...] = ()
    rename_splits: tuple[str, ...] = ()
    test_fraction: Annotated[float, Interval(ge=0, lt=1)] = 0.1
    split_seed: WholeNumber = 0
    subset: str | None = None
    revision: str | None = None
    extractor: extractors.Name = "auto"
    skip_bad_rows: bool = False
    prompt_limit: Count | None = None
    on_long_prompt: Literal["drop", "error"] = "drop"
    stream: bool = False
    buffer: Count = 10_000
    scored: bool = True
    max_tokens: Count = field(default=256, kw_only=True)  # type: ignore[misc]  # of each task

    @property
    def id(self) -> str:  # type: ignore[override]  # depends on a field
        """The file's name without its ending."""
        name = Path(self.path).name
        ending = next((s for s in SUFFIXES if name.lower().endswith(s)), "")
        return name[: len(name) - len(ending)]

    def check(self) -> None:
        ending = Path(self.path).suffix
        if ending and not kind(self.path) and not Path(self.path).is_dir() and not places.is_hub(self.path):
            raise DataError(f"{self.path} must be a file of {', '.join(SUFFIXES)}, got {ending}.")
        if self.stream and (self.prompt_limit is not None or self.on_long_prompt == "error"):
            raise ConfigError(
                "With task.stream prompts are not counted before training, so nothing can be said of long ones: leave "
                "out task.prompt_limit and task.on_long_prompt, or task.stream."
            )
        for item in self.rename_splits:
            if not all(item.partition("=")):
                raise ConfigError(f"task.rename_splits takes NAME=SPLIT, as in train=train_sft; got {item!r}.")
        for item in self.columns:
            target, equals, _ = item.partition("=")
            if not equals or not target:
                raise ConfigError(f"task.columns takes NAME=COLUMN, as in prompt=question; got {item!r}.")
            if not item.endswith("=") and target not in formats.NAMES:
                known = formats.NAMES
                raise UnknownNameError("column with a meaning", target, known, f"There are: {', '.join(known)}.")

    def splits(self) -> tuple[str, ...]:
        """Those that the data has, or 'train' and, if there is more than one prompt, 'test'."""
        return tuple(self._loaded.problems)

    def problems(self, split: str) -> Sequence[Problem]:
        """The problems of a split. Raises DataError if the file cannot be used, UnknownNameError for the split."""
        if split not in self._loaded.problems:
            raise UnknownNameError(f"split of {self.path}", split, self._loaded.problems)
        return self._loaded.problems[split]

    def warnings(self) -> list[str]:
        """Sentences about what is odd but usable: rows left out, test rows inside the training set."""
        return list(self._loaded.warnings)

    def needs_reward(self) -> str | None:
        """Why a method that samples cannot be trained on this file alone, as a sentence; None if it can."""
        if self._answers or not self.scored:
            return None
        if self._tested:
            return refusal()
        return (
            f"{self.path} has no 'answer' or 'solution' column, so nothing says how good a completion is: add one, or "
            "'tests' of programs, or give a reward function (--reward my_rewards.py:score). Methods that learn from "
            "data alone need neither."
        )

    def score(self, problem: Problem, completion: str) -> float:
        """1 if the final answer is right, else 0. Raises ConfigError if nothing scores a file without answers."""
        if self.judged_by_reward:
            return 0.0
        if sentence := self.needs_reward():
            raise ConfigError(sentence)
        if self._tested:
            return passes(completion, problem)
        return float(extractors.right(self.extractor, completion, problem.answer))

    def success(self, episode: Episode) -> bool:
        """A right answer; in a file without answers an outcome of at least 1, as the reward function sees it."""
        return episode.outcome >= 1.0 if self.judged_by_reward else super().success(episode)

    @property
    def judged_by_reward(self) -> bool:
        """Whether a reward function scores and the file has no answers."""
        return not self.scored and not self._answers

    def answer(self, completion: str) -> str:
        return extractors.EXTRACTORS[self.extractor].find(completion) or ""

    @cached_property
    def _loaded(self) -> Loaded:
        sources = places.find(self.path, self.subset, self.revision, self.rename_splits, self.stream)
        how = How(
            self.columns, self.test_fraction, self.split_seed, self.skip_bad_rows,
            extractors.EXTRACTORS[self.extractor].objection,
        )  # fmt: skip
        if not self.stream:
            return load(self.path, sources, how)
        opened = {split: [source.open() for source in found] for split, found in sources.items()}
        return streaming.load(self.path, opened, how, self.buffer, self.extractor)

    @property
    def _answers(self) -> bool:
        return bool(self._loaded.columns & {*formats.ANSWERS})

    @property
    def _tested(self) -> bool:
        """Whether unit tests say what is right, for want of answers and of a reward function."""
        return self.scored and not self._answers and "tests" in self._loaded.columns


def fit_prompts(
    problems: Sequence[Problem], lengths: Sequence[int], limit: int, on_long: Literal["drop", "error"]
) -> tuple[Sequence[Problem], str | None]:
    """The problems whose prompt has at most `limit` tokens, and a sentence to print if that is not all of them.

    Args:
        lengths: tokens of each problem's prompt, chat template included.
        limit: what the context leaves for a prompt, in tokens.
        on_long: 'drop' the others, or 'error'.

    Raises: DataError if there are longer ones under 'error', or if none is left.
    """
    long = sum(n > limit for n in lengths)
    if not long:
        return problems, None
    longest = max(range(len(lengths)), key=lengths.__getitem__)
    sentence = (
        f"{long} of {len(problems)} prompts are longer than {limit} tokens; the longest, of problem "
        f"{problems[longest].id!r}, has {lengths[longest]}"
    )
    if on_long == "error":
        raise DataError(
            f"{sentence}. Shorten them, use a model with a longer context, or let on_long_prompt be 'drop'."
        )
    kept = [p for p, n in zip(problems, lengths) if n <= limit]
    check_left(len(kept), "The data", len(problems), {f"longer than {limit} tokens": long})
    return kept, f"{sentence}. They were left out."

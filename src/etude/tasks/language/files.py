"""Your own data: `etude train grpo --task my_problems.jsonl`.

The columns are those of TRL's formats (`formats.py`); a folder with `train.jsonl` and `test.jsonl` keeps its
division, a single file is divided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from etude.core.episodes import Episode, Problem
from etude.core.errors import ConfigError, DataError, UnknownNameError
from etude.core.fields import Count, Interval
from etude.core.task import LanguageTask
from etude.tasks.language import formats
from etude.tasks.language.answers import final_answer, same_answer
from etude.tasks.language.loading import Loaded, load
from etude.tasks.language.rows import SUFFIXES, check_left, check_suffix

SPLITS = ("train", "test", "validation")


class DataFile(LanguageTask):
    """Problems from a `.jsonl` or `.json` file, or from a folder with `train.jsonl` and perhaps `test.jsonl`.

    The reward is 1 if the completion's final answer is the row's `answer` (or `solution`), else 0; see
    `answers.same_answer`. A file without such a column needs a reward function for every method that samples.

    `Problem.id` is the `id` column or the line number; `level` the `level`, `difficulty` or `source` column; `info`
    has `demonstration` (the completion), `chosen` and `rejected` (the assistant's last answer, as text) and all other
    columns by name.

    Args:
        path: the file or folder.
        prompt_column, answer_column: the columns' names, where the file calls them something else.
        test_fraction: share of a single file's prompts that is kept for testing, chosen by their text, so that the
            same prompt is never on both sides.
        skip_bad_rows: leave bad rows out and count them, instead of refusing the file.
        prompt_limit: longest prompt in tokens; by default what the model's context leaves.
        on_long_prompt: 'drop' longer ones and say how many, or stop with an 'error'. Nothing is ever cut.
        scored: False when a reward function scores instead. Answers still say what is right; without them the
            environment pays 0, and an outcome of at least 1 is a success.
        max_tokens: longest completion.

    Raises: DataError, with file, line and column, when the problems are first asked for.

    >>> task = DataFile("data/cats.jsonl", test_fraction=0.25)
    >>> task.id, task.test_fraction
    ('cats', 0.25)
    """

    path: str
    prompt_column: str = "prompt"
    answer_column: str = ""
    test_fraction: Annotated[float, Interval(ge=0, lt=1)] = 0.1
    skip_bad_rows: bool = False
    prompt_limit: Count | None = None
    on_long_prompt: Literal["drop", "error"] = "drop"
    scored: bool = True
    max_tokens: Count = field(default=256, kw_only=True)  # type: ignore[misc]  # of each task

    @property
    def id(self) -> str:  # type: ignore[override]  # depends on a field
        """The file's name without its ending."""
        return Path(self.path).stem

    def check(self) -> None:
        check_suffix(self.path)

    def splits(self) -> tuple[str, ...]:
        """Those that the folder has, or 'train' and, if the file has more than one prompt, 'test'."""
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
        return (
            f"{self.path} has no 'answer' or 'solution' column, so nothing says how good a completion is: add one, or "
            "give a reward function (--reward my_rewards.py:score). Methods that learn from data alone need neither."
        )

    def score(self, problem: Problem, completion: str) -> float:
        """1 if the final answer is right, else 0. Raises ConfigError if nothing scores a file without answers."""
        if self.judged_by_reward:
            return 0.0
        if sentence := self.needs_reward():
            raise ConfigError(sentence)
        return float(same_answer(completion, problem.answer))

    def success(self, episode: Episode) -> bool:
        """A right answer; in a file without answers an outcome of at least 1, as the reward function sees it."""
        return episode.outcome >= 1.0 if self.judged_by_reward else super().success(episode)

    @property
    def judged_by_reward(self) -> bool:
        """Whether a reward function scores and the file has no answers."""
        return not self.scored and not self._answers

    def answer(self, completion: str) -> str:
        return final_answer(completion)

    @cached_property
    def _loaded(self) -> Loaded:
        return load(
            self.path,
            _files(self.path),
            prompt_column=self.prompt_column,
            answer_column=self.answer_column,
            test_fraction=self.test_fraction,
            skip=self.skip_bad_rows,
        )

    @property
    def _answers(self) -> bool:
        return bool(self._loaded.columns & {*formats.ANSWERS, self.answer_column})


def _files(path: str) -> dict[str, Path]:
    """File of each split."""
    folder = Path(path)
    if folder.is_file():
        return {"train": folder}
    if not folder.is_dir():
        raise DataError(f"There is no file or folder {path}.")
    files = {s: f for s in SPLITS for suffix in SUFFIXES if (f := folder / f"{s}{suffix}").is_file()}
    if "train" not in files:
        raise DataError(f"The folder {path} must hold train.jsonl, and may hold test.jsonl and validation.jsonl.")
    return files


def fit_prompts(
    problems: Sequence[Problem], count_tokens: Callable[[Problem], int], limit: int, on_long: Literal["drop", "error"]
) -> tuple[Sequence[Problem], str | None]:
    """The problems whose prompt has at most `limit` tokens, and a sentence to print if that is not all of them.

    Args:
        count_tokens: tokens of a problem's prompt, chat template included.
        limit: what the context leaves for a prompt, in tokens.
        on_long: 'drop' the others, or 'error'.

    Raises: DataError if there are longer ones under 'error', or if none is left.
    """
    lengths = [count_tokens(p) for p in problems]
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

"""From data files to problems: every row read, converted and checked, the splits made, the oddities counted."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.core.episodes import Message, Problem
from etude.core.errors import DataError
from etude.tasks.language import formats
from etude.tasks.language.rows import Fault, Row, check_left, read_rows, refuse, uneven, usual_columns


@dataclass(frozen=True)
class Loaded:
    """What a data file came to: problems by split, columns that every file has, sentences to print."""

    problems: dict[str, list[Problem]]
    columns: frozenset[str]
    warnings: list[str]


def load(
    path: str, files: Mapping[str, Path], *, prompt_column: str, answer_column: str, test_fraction: float, skip: bool
) -> Loaded:
    """Read the file of each split; a single file is divided. See `DataFile` for the arguments.

    Raises: DataError with all faults of all files, or if nothing is left.
    """
    seen: dict[str, str] = {}
    splits: dict[str, list[Problem]] = {}
    faults: list[Fault] = []
    common: frozenset[str] | None = None
    for split, file in files.items():
        rows, bad = read_rows(file)
        rows = [_renamed(r, prompt_column) for r in rows]
        splits[split] = []
        if rows:
            columns = usual_columns(rows)
            _check_names(file, columns, prompt_column, answer_column)
            form = formats.detect(columns, str(file))
            prefix = f"{split}/" if len(files) > 1 else ""
            splits[split], worse = _problems(rows, columns, form, prefix, answer_column, seen)
            bad += worse
            common = columns if common is None else common & columns
        faults += sorted(bad, key=lambda f: f.number)
    if not skip:
        refuse(path, faults)
    kept = sum(map(len, splits.values()))
    check_left(len(splits["train"]), path, kept + len(faults), {"bad": len(faults), "in other splits": kept})
    if len(splits) == 1:
        splits = divide(splits["train"], test_fraction)
    warnings = [f"{len(faults)} bad rows of {path} were left out; the first: {faults[0]}"] if faults else []
    return Loaded(splits, common or frozenset(), warnings + overlaps(splits, path))


def _renamed(row: Row, prompt_column: str) -> Row:
    """The row with its prompt under 'prompt'."""
    if prompt_column == "prompt" or prompt_column not in row.values:
        return row
    values = {k: v for k, v in row.values.items() if k not in ("prompt", prompt_column)}
    return Row(row.where, row.number, {"prompt": row.values[prompt_column], **values})


def _check_names(file: Path, columns: frozenset[str], prompt_column: str, answer_column: str) -> None:
    """Raise DataError if a column that the user named is not there."""
    named = {"prompt_column": (prompt_column, "prompt"), "answer_column": (answer_column, answer_column)}
    for field, (name, held) in named.items():
        if name not in ("", "prompt") and held not in columns:
            have = ", ".join(sorted(columns))
            raise DataError(f"{file} lacks the column {name!r}, which {field} names; it has: {have}.")


def _problems(
    rows: list[Row],
    columns: frozenset[str],
    form: tuple[str, ...],
    prefix: str,
    answer_column: str,
    seen: dict[str, str],
) -> tuple[list[Problem], list[Fault]]:
    """Problems of one file's rows, and what is wrong with the other rows. `seen` is where each id was met."""
    problems: list[Problem] = []
    faults: list[Fault] = []
    for row in rows:
        if fault := uneven(row, columns):
            faults.append(fault)
            continue
        try:
            problem = formats.problem(row.values, form, f"{prefix}{row.number}", answer_column)
        except formats.BadRow as error:
            faults.append(Fault(row.number, f"{row.where}: {error}"))
            continue
        if (first := seen.setdefault(problem.id, row.where)) != row.where:
            faults.append(Fault(row.number, f"{row.where}: has the id {problem.id!r} of {first}."))
            continue
        problems.append(problem)
    return problems, faults


def normalised(prompt: str | Sequence[Message]) -> str:
    """A prompt's text without the differences that make no difference: case, white space, Unicode form."""
    text = prompt if isinstance(prompt, str) else "\n".join(m["content"] for m in prompt)
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def divide(problems: list[Problem], fraction: float) -> dict[str, list[Problem]]:
    """'train' and 'test', with `fraction` of the distinct prompts (at least one, never all) in 'test'.

    Which prompts depends on their text alone, so equal prompts stay together and a new row hardly moves the others.
    """
    keys = [normalised(p.prompt) for p in problems]
    ranked = sorted(set(keys), key=lambda k: hashlib.sha256(k.encode()).digest())
    count = min(max(round(fraction * len(ranked)), int(fraction > 0)), len(ranked) - 1)
    chosen = set(ranked[:count])
    splits = {
        "train": [p for p, k in zip(problems, keys) if k not in chosen],
        "test": [p for p, k in zip(problems, keys) if k in chosen],
    }
    return {split: members for split, members in splits.items() if members}


def overlaps(splits: Mapping[str, Sequence[Problem]], path: str) -> list[str]:
    """A sentence for each split that has prompts of the training set."""
    trained = {normalised(p.prompt) for p in splits["train"]}
    counts: dict[str, Any] = {
        split: sum(normalised(p.prompt) in trained for p in members)
        for split, members in splits.items()
        if split != "train"
    }
    return [
        f"{n} of the {len(splits[split])} {split} rows of {path} are in the training set too (same prompt but for case "
        "and white space): what is measured on them is too good."
        for split, n in counts.items()
        if n
    ]

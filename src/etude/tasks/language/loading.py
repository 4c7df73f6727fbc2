"""From data files to problems: every row read, converted and checked, the splits made, the oddities counted."""

from __future__ import annotations

import dataclasses
import hashlib
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etude.core.episodes import Message, Problem
from etude.core.errors import DataError, nearest
from etude.core.task import plain
from etude.tasks.language import formats
from etude.tasks.language.places import Source
from etude.tasks.language.rows import SAMPLE, Fault, Row, check_left, refuse, uneven, usual_columns


@dataclass(frozen=True)
class Loaded:
    """What a data file came to: problems by split, columns that every file has, sentences to print."""

    problems: Mapping[str, Sequence[Problem]]
    columns: frozenset[str]
    warnings: list[str]


@dataclass(frozen=True)
class How:
    """What a task says about its rows, see `DataFile`.

    Args:
        seed: of the division.
        skip: leave bad rows out.
        accepts: what is wrong with an answer, as a sentence; None if nothing is.
    """

    columns: Sequence[str] = ()
    test_fraction: float = 0.1
    seed: int = 0
    skip: bool = False
    accepts: Callable[[object], str | None] = lambda answer: None


def load(path: str, sources: Mapping[str, Sequence[Source]], how: How) -> Loaded:
    """Read the sources of each split; a single split is divided.

    Raises: DataError with all faults of all files, or if nothing is left.
    """
    seen: dict[str, str] = {}
    splits: dict[str, list[Problem]] = {}
    faults: list[Fault] = []
    common: frozenset[str] | None = None
    for split, places in sources.items():
        rows, bad = _read(places)
        splits[split] = []
        if rows:
            name = places[0].name if len(places) == 1 else f"{path} ({split})"
            reader = reader_of(name, rows, f"{split}/" if len(sources) > 1 else "", how)
            splits[split], worse = _problems(rows, reader, seen)
            bad += worse
            common = reader.columns if common is None else common & reader.columns
        faults += sorted(bad, key=lambda f: f.number)
    if not how.skip:
        refuse(path, faults)
    kept = sum(map(len, splits.values()))
    check_left(len(splits["train"]), path, kept + len(faults), {"bad": len(faults), "in other splits": kept})
    warnings = [f"{len(faults)} bad rows of {path} were left out; the first: {faults[0]}"] if faults else []
    if len(splits) == 1:  # what is divided by its prompts cannot overlap
        return Loaded(divide(splits["train"], how.test_fraction, how.seed), common or frozenset(), warnings)
    return Loaded(splits, common or frozenset(), warnings + overlaps(splits, path))


def _read(places: Sequence[Source]) -> tuple[list[Row], list[Fault]]:
    """The rows of a split's files, numbered through."""
    rows: list[Row] = []
    faults: list[Fault] = []
    last = 0
    for place in places:
        more, bad = place.read()
        rows += [dataclasses.replace(r, number=last + r.number) for r in more] if last else more
        faults += [dataclasses.replace(f, number=last + f.number) for f in bad]
        last = max([last, *(r.number for r in rows[-1:]), *(f.number for f in faults)])
    return rows, faults


def _pairs(name: str, have: frozenset[str], columns: Sequence[str]) -> dict[str, str]:
    """New names of columns by their own ones; '' for those that are left out. Raises DataError for unknown ones."""
    pairs: dict[str, str] = {}
    for item in columns:
        target, _, source = item.partition("=")
        own = source or target
        if own not in have:
            near = nearest(own, have)
            offer = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise DataError(f"{name} has no column {own!r}.{offer} It has: {', '.join(sorted(have))}.")
        pairs[own] = target if source else ""
    return pairs


def _renamed(row: Row, pairs: Mapping[str, str]) -> Row:
    """The row with its columns under their new names, which take the place of columns of those names."""
    if not pairs:
        return row
    taken = set(pairs.values())
    values = {new: row.values[own] for own, new in pairs.items() if new and own in row.values}
    values |= {k: v for k, v in row.values.items() if k not in pairs and k not in taken}
    return dataclasses.replace(row, values=values)


@dataclass(frozen=True)
class Reader:
    """What makes a row of a split a problem.

    Args:
        pairs: new names of columns by their own ones.
        columns: those that every row must have, by their new names.
        form: one of FORMATS.
        prefix: of the ids of rows that have none.
        accepts: what is wrong with an answer, as a sentence.
    """

    pairs: Mapping[str, str]
    columns: frozenset[str]
    form: tuple[str, ...]
    prefix: str
    accepts: Callable[[object], str | None]

    def problem(self, row: Row) -> Problem | Fault:
        """The row's problem, or what is wrong with it."""
        row = _renamed(row, self.pairs)
        if fault := uneven(row, self.columns):
            return fault
        try:
            problem = formats.problem(row.values, self.form, f"{self.prefix}{row.number}")
            if problem.answer is not None and (sentence := self.accepts(problem.answer)):
                raise formats.BadRow(sentence)
        except formats.BadRow as error:
            return Fault(row.number, f"{row.where}: {error}")
        return problem


def reader_of(name: str, rows: Sequence[Row], prefix: str, how: How) -> Reader:
    """What reads rows like these. Raises DataError for columns that are not there, or make no format."""
    pairs = _pairs(name, usual_columns(rows), how.columns)
    found = usual_columns([_renamed(r, pairs) for r in rows[:SAMPLE]])
    return Reader(pairs, found, formats.detect(found, name), prefix, how.accepts)


def _problems(rows: list[Row], reader: Reader, seen: dict[str, str]) -> tuple[list[Problem], list[Fault]]:
    """Problems of one split's rows, and what is wrong with the other rows. `seen` is where each id was met."""
    problems: list[Problem] = []
    faults: list[Fault] = []
    for row in rows:
        found = reader.problem(row)
        if isinstance(found, Fault):
            faults.append(found)
        elif (first := seen.setdefault(found.id, row.where)) != row.where:
            faults.append(repeated(row, found.id, first))
        else:
            problems.append(found)
    return problems, faults


def repeated(row: Row, name: str, first: str) -> Fault:
    """What is wrong with a row whose id was met before."""
    return Fault(row.number, f"{row.where}: has the id {name!r} of {first}.")


def normalised(prompt: str | Sequence[Message]) -> str:
    """A prompt's text without the differences that make no difference: case, white space, Unicode form."""
    text = prompt if isinstance(prompt, str) else "\n".join(plain(m["content"]) for m in prompt)
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def divide(problems: list[Problem], fraction: float, seed: int = 0) -> dict[str, list[Problem]]:
    """'train' and 'test', with `fraction` of the distinct prompts (at least one, never all) in 'test'.

    Which prompts depends on their text and the seed alone, so equal prompts stay together and a new row hardly moves
    the others.
    """
    keys = [ranked_by(p.prompt, seed) for p in problems]
    ranked = sorted(set(keys))
    count = held_out(fraction, len(ranked))
    chosen = set(ranked[:count])
    splits = {
        "train": [p for p, k in zip(problems, keys) if k not in chosen],
        "test": [p for p, k in zip(problems, keys) if k in chosen],
    }
    return {split: members for split, members in splits.items() if members}


def ranked_by(prompt: str | Sequence[Message], seed: int) -> bytes:
    """A hash of the prompt's text, salted by the seed: those with the lowest are kept for testing."""
    salt = f"{seed}\0" if seed else ""
    return hashlib.sha256(f"{salt}{normalised(prompt)}".encode()).digest()


def held_out(fraction: float, prompts: int) -> int:
    """How many of the distinct prompts are kept for testing: at least one, never all."""
    return min(max(round(fraction * prompts), int(fraction > 0)), prompts - 1)


def overlaps(splits: Mapping[str, Sequence[Problem]], path: str) -> list[str]:
    """A sentence for each split that has prompts of the training set."""
    trained = {normalised(p.prompt) for p in splits["train"]}
    counts: dict[str, Any] = {
        split: sum(normalised(p.prompt) in trained for p in members)
        for split, members in splits.items()
        if split != "train"
    }
    return [overlap(n, len(splits[split]), split, path) for split, n in counts.items() if n]


def overlap(found: int, rows: int, split: str, path: str) -> str:
    """The sentence about rows that are trained on too."""
    return (
        f"{found} of the {rows} {split} rows of {path} are in the training set too (same prompt but for case "
        "and white space): what is measured on them is too good."
    )

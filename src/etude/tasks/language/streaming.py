"""Problems of data that does not fit into memory: `--stream`.

Where any row can be had by its place (`.jsonl`, `.csv`, `.tsv`, folders of `save_to_disk`) all rows are read and
checked once, one at a time; what is kept of each is where it lies and a hash of its prompt. Problems, splits and their
order are those of the same data read whole, so a run has the same numbers.

What can only be read from its beginning (`.gz`, Parquet, the hub) is read as far as the run needs it, through a buffer:
`buffer` rows at a time are shuffled among themselves. Number n of pass t is a function of the seed, t and n alone, so
nothing of it has to be saved, and resume reads forward to where the run was. Each row's hash says whether it is kept
for testing; bad rows are met when they come; ids that repeat and test prompts in the training set are not noticed.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

import numpy as np

from etude.core.episodes import Problem
from etude.core.errors import DataError
from etude.core.pools import Streamed, permuted
from etude.core.streams import Stream
from etude.runtime import environment, remembered
from etude.tasks.language.loading import How, Loaded, Reader, held_out, overlap, ranked_by, reader_of, repeated
from etude.tasks.language.reading import Reading
from etude.tasks.language.rows import SAMPLE, Fault, Row, check_left, refuse

FEW = 1000
"""Rows up to which reading is faster than it is worth keeping where they lie."""
HELD = 1000
"""Rows of a split that are evaluated on, where there is no telling how many it has."""


def load(path: str, sources: Mapping[str, Sequence[Reading]], how: How, buffer: int, accepting: str) -> Loaded:
    """Problems of each split's sources; a single split is divided.

    Args:
        buffer: rows that are held at a time of what can only be read from its beginning.
        accepting: a text that says all that `how.accepts` depends on.

    Raises: DataError as the whole data would, or with what can be told before it is read.
    """
    if all(source.addressed for places in sources.values() for source in places):
        return _addressed(path, sources, how, accepting)
    readers = {split: _reader(path, split, sources, how) for split in sources}
    common = frozenset.intersection(*(r.columns for r in readers.values()))
    passes = {split: Pass(path, sources[split], reader, how) for split, reader in readers.items()}
    if len(passes) > 1 or not how.test_fraction:
        rest = {split: First(p, None) for split, p in passes.items() if split != "train"}
        return Loaded({"train": Buffered(passes["train"], None, buffer), **rest}, common, [])
    share = round(how.test_fraction * 2**64)
    whole = passes["train"]
    return Loaded({"train": Buffered(whole, share, buffer), "test": First(whole, share)}, common, [])


def _reader(path: str, split: str, sources: Mapping[str, Sequence[Reading]], how: How) -> Reader:
    """What reads a split's rows, from the first ones."""
    places = sources[split]
    name = places[0].name if len(places) == 1 else f"{path} ({split})"
    rows = list(islice((item for p in places for _, item in p.scan() if isinstance(item, Row)), SAMPLE))
    if not rows:
        faults = [item for p in places for _, item in p.scan() if isinstance(item, Fault)]
        if not how.skip:
            refuse(path, faults)
        check_left(0, path, len(faults), {"bad": len(faults)})
    return reader_of(name, rows, f"{split}/" if len(sources) > 1 else "", how)


# Any row by its place


@dataclass(frozen=True)
class Index:
    """Where the good rows of a split lie: all [N].

    Args:
        source: which of the split's sources, as int64.
        place: where it begins in that.
        number: which row of that it is.
        prompt: the first 8 bytes of `ranked_by`, as uint64.
        name: a hash of its `id`; 0 where it has no such column.
    """

    source: np.ndarray
    place: np.ndarray
    number: np.ndarray
    prompt: np.ndarray
    name: np.ndarray

    def where(self, rows: np.ndarray) -> Index:
        """Some of them."""
        return Index(*(v[rows] for v in vars(self).values()))


class Addressed(Streamed):
    """Problems of an index, each read when it is asked for. `offsets` is the number of rows before each source."""

    def __init__(self, places: Sequence[Reading], rows: Index, reader: Reader, offsets: Sequence[int]) -> None:
        self.places, self.rows, self.reader, self.offsets = places, rows, reader, offsets

    def __len__(self) -> int:
        return len(self.rows.place)

    def row(self, index: int) -> Row:
        """The row of a problem, numbered through. Raises DataError if it is not what it was."""
        source = int(self.rows.source[index])
        found = self.places[source].at(int(self.rows.place[index]), int(self.rows.number[index]))
        if isinstance(found, Fault):
            raise DataError(str(found))
        return replace(found, number=self.offsets[source] + found.number)

    def problem(self, index: int) -> Problem:
        found = self.reader.problem(self.row(index))
        if isinstance(found, Fault):
            raise DataError(str(found))
        return found


def _addressed(path: str, sources: Mapping[str, Sequence[Reading]], how: How, accepting: str) -> Loaded:
    """All rows, checked once; the same problems in the same order as `loading.load` has them."""
    pools: dict[str, Addressed] = {}
    faults: list[Fault] = []
    for split, places in sources.items():
        reader = _reader(path, split, sources, how)
        pools[split], bad = _indexed(places, reader, how.seed, accepting)
        faults += bad
    pools, worse = _without_repeats(pools)
    faults += worse
    if not how.skip:
        refuse(path, faults)
    kept = sum(map(len, pools.values()))
    check_left(len(pools["train"]), path, kept + len(faults), {"bad": len(faults), "in other splits": kept})
    notes = [f"{len(faults)} bad rows of {path} were left out; the first: {faults[0]}"] if faults else []
    common = frozenset.intersection(*(pool.reader.columns for pool in pools.values()))
    if len(pools) == 1:
        return Loaded(_divided(pools["train"], how), common, notes)
    trained = pools["train"].rows.prompt
    for split, pool in pools.items():
        if split != "train" and (found := int(np.isin(pool.rows.prompt, trained).sum())):
            notes.append(overlap(found, len(pool), split, path))
    return Loaded(pools, common, notes)


def _divided(pool: Addressed, how: How) -> dict[str, Addressed]:
    """'train' and 'test', as `loading.divide` does it."""
    ranked = np.unique(pool.rows.prompt)
    chosen = np.isin(pool.rows.prompt, ranked[: held_out(how.test_fraction, len(ranked))])
    parts = {"train": pool.rows.where(~chosen), "test": pool.rows.where(chosen)}
    return {k: Addressed(pool.places, v, pool.reader, pool.offsets) for k, v in parts.items() if len(v.place)}


def _indexed(places: Sequence[Reading], reader: Reader, seed: int, accepting: str) -> tuple[Addressed, list[Fault]]:
    """The good rows of a split, and what is wrong with the others."""
    parts, faults, offsets, last = [], [], [], 0
    for i, place in enumerate(places):
        columns, bad = _kept_index(place, reader, seed, accepting)
        offsets.append(last)
        parts.append(Index(np.full(len(columns), i), *columns.T[:2].astype(np.int64), *columns.T[2:]))
        faults += [replace(f, number=last + f.number) for f in bad]
        last += max([int(columns[:, 1].max(initial=0)), *(f.number for f in bad)])
    index = Index(*(np.concatenate(v) for v in zip(*(vars(p).values() for p in parts))))
    return Addressed(places, index, reader, offsets), sorted(faults, key=lambda f: f.number)


def _kept_index(place: Reading, reader: Reader, seed: int, accepting: str) -> tuple[np.ndarray, list[Fault]]:
    """[N, 4] of `_index`, kept between runs under the file's name as long as its content is the same."""
    about = [place.name, sorted(reader.columns), reader.pairs, reader.form, accepting, seed]
    key = hashlib.sha256(json.dumps([environment.version("etude"), *about]).encode()).hexdigest()
    kept = remembered.arrays("rows", key)
    if {"rows", "sha"} <= kept.keys() and (sha := place.digest()) and bytes(kept["sha"]).hex() == sha:
        return kept["rows"], []
    rows, faults = _index(place, reader, seed)
    if len(rows) >= FEW and not faults and (sha := place.digest()):
        remembered.keep("rows", key, {"rows": rows, "sha": np.frombuffer(bytes.fromhex(sha), np.uint8)})
    return rows, faults


def _index(place: Reading, reader: Reader, seed: int) -> tuple[np.ndarray, list[Fault]]:
    """[N, 4] as uint64 of the good rows (place, number, prompt, name), and what is wrong with the others."""
    found, faults = array("Q"), []
    for where, row in place.scan():
        problem = reader.problem(row) if isinstance(row, Row) else row
        if isinstance(problem, Fault):
            faults.append(problem)
            continue
        assert isinstance(row, Row)
        own = _first_bytes(hashlib.sha256(problem.id.encode()).digest()) if "id" in reader.columns else 0
        found.extend((where, row.number, _first_bytes(ranked_by(problem.prompt, seed)), own))
    return np.array(found, np.uint64).reshape(-1, 4), faults


def _first_bytes(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big")


def _without_repeats(pools: Mapping[str, Addressed]) -> tuple[dict[str, Addressed], list[Fault]]:
    """The pools without rows whose id was met before, and a sentence for each of those."""
    names = np.concatenate([pool.rows.name for pool in pools.values()])
    _, first, which = np.unique(names, return_index=True, return_inverse=True)
    again = (first[which] != np.arange(len(names))) & (names != 0)
    owner = [(pool, i) for pool in pools.values() for i in range(len(pool))] if again.any() else []
    faults = []
    for here in np.flatnonzero(again):
        (pool, i), (other, j) = owner[here], owner[first[which[here]]]
        row = pool.row(i)
        faults.append(repeated(row, pool.problem(i).id, other.row(j).where))
    if not faults:
        return dict(pools), []
    cuts = np.split(~again, np.cumsum([len(pool) for pool in pools.values()])[:-1])
    left = {
        split: Addressed(p.places, p.rows.where(cut), p.reader, p.offsets)
        for (split, p), cut in zip(pools.items(), cuts)
    }
    return left, faults


# From the beginning


@dataclass
class Pass:
    """One pass over the sources of a split, again and again."""

    path: str
    places: Sequence[Reading]
    reader: Reader
    how: How
    told: bool = False

    def rows(self) -> Iterator[Problem]:
        """Every problem in order. Raises DataError for a bad row, or leaves it out."""
        last = 0
        for place in self.places:
            number = 0
            for _, item in place.scan():
                number = item.number
                row = replace(item, number=last + number) if isinstance(item, Row) else item
                found = self.reader.problem(row) if isinstance(row, Row) else row
                if isinstance(found, Problem):
                    yield found
                else:
                    self._bad(found)
            last += number

    def divided(self, share: int | None, held: bool) -> Iterator[Problem]:
        """The problems that are kept for testing, or the others; `share` is of 2^64, None for all."""
        for problem in self.rows():
            hashed = _first_bytes(ranked_by(problem.prompt, self.how.seed)) if share is not None else 0
            if share is None or (hashed < share) is held:
                yield problem

    def _bad(self, fault: Fault) -> None:
        if not self.how.skip:
            refuse(self.path, [fault])
        if not self.told:
            self.told = True
            warnings.warn(f"Bad rows of {self.path} are left out as they come; the first: {fault}", stacklevel=2)


class First(Sequence[Problem]):
    """The first problems of a split, at most HELD, read when they are first needed."""

    def __init__(self, source: Pass, share: int | None) -> None:
        self.source, self.share = source, share

    @cached_property
    def kept(self) -> list[Problem]:
        """The problems. Raises DataError if there are none."""
        found = list(islice(self.source.divided(self.share, True), HELD))
        if not found:
            raise DataError(
                f"{self.source.path}: no row is kept for testing; keep more (--set task.test_fraction=0.5), or none "
                "(--set task.test_fraction=0)."
            )
        return found

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # as a list has it
        return self.kept[index]


class Buffered(Streamed):
    """Problems of endless passes, of which `buffer` are held at a time: problem i is the row i of the first pass, or
    after its end of the next.

    Args:
        source: what is passed over.
        share: of 2^64, which are left out for testing; None for none.
        buffer: rows that are held, and shuffled among themselves.
    """

    def __init__(self, source: Pass, share: int | None, buffer: int) -> None:
        self.source, self.share, self.buffer = source, share, buffer
        self.size: int | None = None
        """Problems of a pass, once its end was met."""
        self._restart()

    def __len__(self) -> int:
        return sys.maxsize

    def problem(self, index: int) -> Problem:
        place = self._place(index)
        return self._block(place // self.buffer)[place % self.buffer]

    def shuffled(self, n: int, stream: Stream) -> int:
        """Number n: each block of a pass has an order of its own, so that one block after the other is read."""
        place = self._place(n)
        turn, block = (n - place) // (self.size or 1), place // self.buffer
        held = len(self._block(block))
        return n - place % self.buffer + permuted(place % self.buffer, held, stream.split(turn, block).numpy)

    def _place(self, n: int) -> int:
        """The row of a pass that n is; reads forward until that can be told."""
        if self.size is None:
            self._block(n // self.buffer)
        return n if self.size is None else n % self.size

    def _restart(self) -> None:
        self.rows: Iterator[Problem] = iter(())
        self.block, self.held = -1, list[Problem]()

    def _block(self, block: int) -> list[Problem]:
        """The rows of a block, fewer at the end of a pass. Raises DataError if there are none at all."""
        if block < self.block or self.block < 0:
            self._restart()
            self.rows = self.source.divided(self.share, False)
        try:
            while self.block < block and (self.block < 0 or len(self.held) == self.buffer):
                self.held = []
                self.held = list(islice(self.rows, self.buffer))
                self.block += 1
        except BaseException:  # what was begun cannot be gone on with
            self._restart()
            raise
        if len(self.held) < self.buffer:
            self.size = self.block * self.buffer + len(self.held)
            check_left(self.size, self.source.path, 0, {})
        return self.held

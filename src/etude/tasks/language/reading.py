"""Files and tables read a row at a time, for data that does not fit into memory.

A file of lines (`.jsonl`, `.csv`, `.tsv`) and a table of `save_to_disk` give any row by its place: the byte that it
begins at, or its number. What is compressed, Parquet and data sets of the hub are read from their beginning.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

from etude.core.errors import DataError
from etude.runtime import fingerprints
from etude.tasks.language import tables
from etude.tasks.language.rows import MARK, Fault, Row, begun, empty, kind, reading, row_of


class Reading(ABC):
    """Rows of a file or table, one at a time.

    `addressed` says whether any row can be had by its place.
    """

    name: str
    addressed: bool

    @abstractmethod
    def scan(self) -> Iterator[tuple[int, Row | Fault]]:
        """Every row with its place, in order. Raises DataError where the file cannot be read."""

    def at(self, place: int, number: int) -> Row | Fault:
        """The row at a place that `scan` gave, and whose number it was."""
        raise NotImplementedError

    def digest(self) -> str | None:
        """The fingerprint of a file; None for what is none."""
        return None


class Lines(Reading):
    """A `.jsonl` file, also `.jsonl.gz`."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        self.addressed = not self.name.lower().endswith(".gz")
        with reading(path):
            self.was = path.stat()

    def digest(self) -> str | None:
        return fingerprints.digest(self.path)

    def scan(self) -> Iterator[tuple[int, Row | Fault]]:
        blank: list[tuple[int, int]] = []
        found = False
        for number, (offset, line) in enumerate(self._lines(), start=1):
            if not line.strip():
                blank.append((offset, number))  # a fault, unless nothing follows
                continue
            for where, empty_line in blank:
                yield where, row_of(self.path, empty_line, b"")
            blank, found = [], True
            yield offset, row_of(self.path, number, line.rstrip(b"\n"))
        if not found:
            raise empty(self.path)

    def at(self, place: int, number: int) -> Row | Fault:
        with self._opened(place) as file:
            return row_of(self.path, number, file.readline().removeprefix(MARK).rstrip(b"\n"))

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Every line and where it begins. A file that was read to its end is known by its fingerprint."""
        offset, sha = 0, hashlib.sha256()
        with reading(self.path), self._opened() as file:
            for line in file:
                yield offset, line if offset else begun(self.path, line)
                offset += len(line)
                sha.update(line)
        if self.addressed:
            fingerprints.know(self.path, self.was, sha.hexdigest())

    def _opened(self, place: int = 0) -> BinaryIO:
        """The file, at a place. Raises DataError if it is not the one that it was."""
        with reading(self.path):
            now = self.path.stat()
            if (now.st_size, now.st_mtime_ns) != (self.was.st_size, self.was.st_mtime_ns):
                raise DataError(
                    f"{self.path} was changed while it was read row by row: put back what it was, and go on with "
                    "--resume, or start again."
                )
            if not self.addressed:
                return cast(BinaryIO, gzip.open(self.path, "rb"))
            file = self.path.open("rb")
            file.seek(place)
            return file


class Cells(Lines):
    """A `.csv` or `.tsv` file, also `.gz`."""

    def scan(self) -> Iterator[tuple[int, Row | Fault]]:
        self.offset = self.line = 0
        reader = self._reader(self._text())
        try:
            names = tables.header(self.path, next(reader, []))
            start, number = self.offset, 0
            for cells in reader:
                number += bool(cells)
                if cells:
                    yield start, self._row(cells, names, number, f"{self.path}:{reader.line_num}")
                start = self.offset
        except csv.Error as error:
            raise DataError(f"{self.path}:{reader.line_num}: {error}.") from None
        if not number:
            raise DataError(f"{self.path} holds the names of columns alone: it must hold at least one row.")

    def at(self, place: int, number: int) -> Row | Fault:
        with self._opened(place) as file:
            cells = next(self._reader(line.decode() for line in file))
        return self._row(cells, self._names, number, f"{self.path}, row {number}")

    @cached_property
    def _names(self) -> list[str]:
        with self._opened() as file:
            return tables.header(self.path, next(self._reader(begun(self.path, line).decode() for line in file)))

    def _reader(self, lines: Iterator[str]) -> Any:
        csv.field_size_limit(tables.WIDEST)
        return csv.reader(lines, delimiter="," if kind(self.path) == ".csv" else "\t", strict=True)

    def _text(self) -> Iterator[str]:
        """The lines, of which `self.offset` is where the next one begins."""
        for number, (offset, line) in enumerate(self._lines(), start=1):
            self.offset = offset + len(line) + (len(MARK) if number == 1 and self._marked else 0)
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                byte = line[error.start]
                raise DataError(f"{self.path}:{number}: not UTF-8: byte 0x{byte:02x}. Save it as UTF-8.") from None
        if not self.offset:
            raise empty(self.path)

    @cached_property
    def _marked(self) -> bool:
        with self._opened() as file:
            return file.read(len(MARK)) == MARK

    def _row(self, cells: list[str], names: list[str], number: int, where: str) -> Row | Fault:
        if len(cells) != len(names):
            return Fault(number, f"{where}: has {len(cells)} cells, and the first line {len(names)}.")
        return Row(where, number, {n: c or None for n, c in zip(names, cells)})


class Columns(Reading):
    """A Parquet file, from its beginning: a row group is decoded in parts, and no row can be had alone."""

    addressed: ClassVar[bool] = False  # type: ignore[misc]  # the same for all

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)

    def scan(self) -> Iterator[tuple[int, Row | Fault]]:
        for number, values in enumerate(tables.parquet_values(self.path), start=1):
            yield number - 1, tables.table_row(f"{self.path}, row ", number, values)


class Table(Reading):
    """A data set of the `datasets` library: any row of one on the disk, which is mapped into memory; one that comes
    over the network from its beginning.
    """

    def __init__(self, dataset: Any, name: str) -> None:
        self.dataset, self.name = dataset, name
        self.addressed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        tables.check_columns(dataset, name)

    def scan(self) -> Iterator[tuple[int, Row | Fault]]:
        rows = tables.plain_rows(self.dataset) if self.addressed else iter(self.dataset)
        try:
            for number, values in enumerate(rows, start=1):
                yield number - 1, tables.table_row(f"{self.name}, row ", number, values)
        except OSError as error:  # the network
            raise DataError(f"{self.name} cannot be read on: {error}.") from None

    def at(self, place: int, number: int) -> Row | Fault:
        [values] = self.dataset.with_format("arrow")[place : place + 1].to_pylist()
        return tables.table_row(f"{self.name}, row ", number, values)


def opened(path: Path) -> Reading:
    """A file, to be read a row at a time. Raises DataError for a `.json` list."""
    if kind(path) == ".json":
        raise DataError(f"{path} is one list, which can only be read whole: write one row per line (.jsonl) to stream.")
    if kind(path) == ".parquet":
        return Columns(path)
    return Lines(path) if kind(path) == ".jsonl" else Cells(path)

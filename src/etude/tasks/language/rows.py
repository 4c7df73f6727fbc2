"""Reading a data file row by row, with a sentence for everything that is wrong with it.

A `.jsonl` file holds one JSON object per line (UTF-8; a byte order mark, CRLF and blank lines at the end are fine), a
`.json` file one list of objects; tables are read in `tables.py`. Each of them, but for Parquet, may be compressed
(`.jsonl.gz`). Nothing in a file can raise anything but DataError.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from etude.core.errors import DataError

TEXTS = (".jsonl", ".json", ".csv", ".tsv")
SUFFIXES = (*TEXTS, *(f"{suffix}.gz" for suffix in TEXTS), ".parquet")
MARK = b"\xef\xbb\xbf"
SHOWN = 20
"""Faults that an error lists."""
SAMPLE = 20
"""First rows whose columns decide what the others must have."""


@dataclass(frozen=True)
class Row:
    """One object of a file; `where` is 'file:line', or 'file, item n' in a `.json` list. `number` counts from 1."""

    where: str
    number: int
    values: dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """What is wrong with a row, as a sentence that begins with where it is."""

    number: int
    text: str

    def __str__(self) -> str:
        return self.text


def kind(path: str | Path) -> str:
    """The ending that says how a file is read, without `.gz`; empty if none is known.

    >>> kind("a/train.JSONL.gz"), kind("b.parquet"), kind("notes.txt")
    ('.jsonl', '.parquet', '')
    """
    name = Path(path).name.lower()
    found = next((s for s in SUFFIXES if name.endswith(s)), "")
    return found.removesuffix(".gz")


def read_rows(path: Path) -> tuple[list[Row], list[Fault]]:
    """The rows of a file in order, and a sentence for each that cannot be read. Raises DataError if none can."""
    from etude.tasks.language import tables

    if kind(path) == ".parquet":
        return tables.parquet(path)
    data = begun(path, _content(path))
    if not data.strip():
        raise empty(path)
    if kind(path) in (".csv", ".tsv"):
        return tables.separated(path, data, "," if kind(path) == ".csv" else "\t")
    return _listed(path, data) if kind(path) == ".json" else _lines(path, data)


def begun(path: Path, data: bytes) -> bytes:
    """What a file begins with, without its byte order mark. Raises DataError for UTF-16."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is encoded as UTF-16: save it as UTF-8.")
    return data.removeprefix(MARK)


def empty(path: object) -> DataError:
    """The error of a file without rows."""
    return DataError(f"{path} is empty: it must hold at least one row.")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What can go wrong while a file is read, as DataError."""
    try:
        yield
    except DataError:  # is a ValueError too
        raise
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(
            f"{path} is no whole gzip file ({error}): compress it again, or take .gz off its name."
        ) from None
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        raise DataError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.") from None


def _content(path: Path) -> bytes:
    """A file's bytes, decompressed where its name ends in `.gz`."""
    with reading(path):
        data = path.read_bytes()
        return gzip.decompress(data) if path.name.lower().endswith(".gz") else data


def _lines(path: Path, data: bytes) -> tuple[list[Row], list[Fault]]:
    found = [row_of(path, number, line) for number, line in enumerate(data.rstrip().split(b"\n"), start=1)]
    return [r for r in found if isinstance(r, Row)], [f for f in found if isinstance(f, Fault)]


def row_of(path: Path, number: int, line: bytes) -> Row | Fault:
    """The row in a line of a `.jsonl` file, or what is wrong with it."""
    try:
        return Row(f"{path}:{number}", number, _object(_parse(line)))
    except _Bad as bad:
        return Fault(number, f"{path}:{number}:{bad.column}: {bad}")


def _listed(path: Path, data: bytes) -> tuple[list[Row], list[Fault]]:
    try:
        items = _parse(data)
    except _Bad as bad:
        hint = " If it holds one object per line, call it .jsonl." if b"}\n{" in data.replace(b"\r", b"") else ""
        raise DataError(f"{path}:{bad.line}:{bad.column}: {bad}{hint}") from None
    if not isinstance(items, list):
        raise DataError(f"{path} must hold a list of objects, got {type(items).__name__}.")
    if not items:
        raise empty(path)
    rows: list[Row] = []
    faults: list[Fault] = []
    for number, item in enumerate(items, start=1):
        where = f"{path}, item {number}"
        try:
            rows.append(Row(where, number, _object(item)))
        except _Bad as bad:
            faults.append(Fault(number, f"{where}: {bad}"))
    return rows, faults


class _Bad(Exception):
    def __init__(self, text: str, column: int = 1, line: int = 1) -> None:
        super().__init__(text)
        self.column, self.line = column, line


def _parse(data: bytes) -> Any:
    """The JSON value in some bytes; every way in which it can fail becomes a _Bad."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        raise _Bad(f"not UTF-8: byte 0x{data[error.start]:02x}.", column, line) from None
    if not text.strip():
        raise _Bad("the line is blank.")
    try:
        value = json.loads(text, parse_constant=_refuse)
        if "\\ud" in text.lower():  # half of a surrogate pair is legal JSON, and no tokenizer can encode it
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except json.JSONDecodeError as error:
        raise _Bad(f"{error.msg}, near {_near(text, error.pos)}.", error.colno, error.lineno) from None
    except UnicodeEncodeError:
        raise _Bad(f"half of a surrogate pair (\\ud...) in {_near(text, 0)}.") from None
    except RecursionError:
        raise _Bad(f"nested too deeply, near {_near(text, 0)}.") from None
    except ValueError as error:  # NaN, or a number of thousands of digits
        raise _Bad(f"{str(error).split(';')[0]}, near {_near(text, 0)}.") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Bad(f"must be an object {{...}}, got {type(value).__name__} {_near(json.dumps(value), 0)}.")
    return value


def _near(text: str, position: int) -> str:
    """The text around a position, short and with control characters escaped."""
    start = max(0, position - 20)
    return repr(text[start : position + 40])


def usual_columns(rows: Sequence[Row]) -> frozenset[str]:
    """The columns that most of the first rows have."""
    return Counter(frozenset(r.values) for r in rows[:SAMPLE]).most_common(1)[0][0]


def uneven(row: Row, columns: frozenset[str]) -> Fault | None:
    """What a row has too little or too much of."""
    lacking = ", ".join(repr(c) for c in sorted(columns - set(row.values)))
    extra = ", ".join(repr(c) for c in sorted(set(row.values) - columns))
    words = [f"lacks {lacking}"] * bool(lacking) + [f"has {extra}"] * bool(extra)
    return Fault(row.number, f"{row.where}: {' and '.join(words)}, unlike the other rows.") if words else None


def refuse(path: str, faults: list[Fault]) -> None:
    """Raise DataError that lists the first faults, if there are any."""
    if faults:
        more = f"\n  ... and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        count = f"{len(faults)} bad row{'s' * (len(faults) != 1)}"
        listed = "".join(f"\n  {fault}" for fault in faults[:SHOWN])
        raise DataError(f"{path} has {count}:{listed}{more}\nMend them, or leave them out with --skip-bad-rows.")


def check_left(kept: int, where: str, total: int, removed: Mapping[str, int]) -> None:
    """Raise DataError if nothing is left, with what each filter removed.

    >>> check_left(0, "data.jsonl", 12, {"malformed": 7, "longer than 256 tokens": 5})
    Traceback (most recent call last):
    ...
    etude.core.errors.DataError: data.jsonl: nothing is left of 12 rows: 7 malformed, 5 longer than 256 tokens.
    """
    if not kept:
        counts = ", ".join(f"{n} {why}" for why, n in removed.items() if n) or "none were there"
        raise DataError(f"{where}: nothing is left of {total} rows: {counts}.")

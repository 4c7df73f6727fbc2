"""Rows of tables: CSV and TSV, Parquet, and what the `datasets` library keeps (`save_to_disk`, the hub).

Cells of CSV are text; an empty one is null, as are NaN and NaT of Parquet. Times are text in ISO format. Parquet is
read by pyarrow, the rest by `datasets`: both are in the extra `data`.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import importlib.util
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from etude.core.errors import ConfigError, DataError, MissingExtraError
from etude.tasks.language.rows import Fault, Row, empty

WIDEST = 1 << 30
"""Characters of a cell; Python's own limit is 131,072, less than a long document."""
BATCH = 1000
"""Rows of a table that are taken out of it at a time."""
MARKS = ("dataset_dict.json", "state.json")
"""What `save_to_disk` writes into a folder: the first for several splits, the second for one."""


def separated(path: Path, data: bytes, delimiter: str) -> tuple[list[Row], list[Fault]]:
    """Rows of a CSV or TSV file; its first line names the columns. Raises DataError for a line that cannot be one."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(f"{path}:{line}: not UTF-8: byte 0x{data[error.start]:02x}. Save it as UTF-8.") from None
    csv.field_size_limit(WIDEST)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[Row] = []
    faults: list[Fault] = []
    try:
        names = header(path, next(reader))
        for number, cells in enumerate((c for c in reader if c), start=1):
            where = f"{path}:{reader.line_num}"
            if len(cells) == len(names):
                rows.append(Row(where, number, {n: c or None for n, c in zip(names, cells)}))
            else:
                faults.append(Fault(number, f"{where}: has {len(cells)} cells, and the first line {len(names)}."))
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: {error}.") from None
    if not rows and not faults:
        raise DataError(f"{path} holds the names of columns alone: it must hold at least one row.")
    return rows, faults


def header(path: Path, names: list[str]) -> list[str]:
    names = [name.strip() for name in names]
    twice = [n for i, n in enumerate(names) if not n or n in names[:i]]
    if twice:
        raise DataError(f"{path}:1: the first line must name each column once, got {', '.join(map(repr, names))}.")
    return names


def parquet(path: Path) -> tuple[list[Row], list[Fault]]:
    """Rows of a Parquet file. Raises MissingExtraError without pyarrow, DataError for a file that is none."""
    return _numbered(f"{path}, row ", parquet_values(path), str(path))


def parquet_values(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file as dicts, some at a time. Raises as `parquet` does."""
    if importlib.util.find_spec("pyarrow") is None:
        raise MissingExtraError(f"Reading {path}", "data")
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"Cannot read {path}: {str(error).splitlines()[0].rstrip('.')}.") from None


def _numbered(where: str, values: Iterable[Any], path: str) -> tuple[list[Row], list[Fault]]:
    rows = [table_row(where, n, row) for n, row in enumerate(values, start=1)]
    if not rows:
        raise empty(path)
    return rows, []


def table_row(where: str, number: int, values: Any) -> Row:
    """Row `number` of a table, counted from 1; `where` is what stands before the number."""
    return Row(f"{where}{number}", number, {str(k): plain(v) for k, v in values.items()})


def plain(value: Any) -> Any:
    """A cell as JSON has it, as far as there is such a value.

    >>> plain(float("nan")), plain([decimal.Decimal("1.50"), datetime.date(2025, 1, 2)])
    (None, ['1.50', '2025-01-02'])
    """
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, dict):  # tables give every object the keys of all others
        return {k: plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (datetime.date, datetime.time)):  # a datetime is a date
        return None if value != value else value.isoformat()
    return str(value) if isinstance(value, decimal.Decimal) else value


# The `datasets` library


def is_saved(folder: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    return any((folder / mark).is_file() for mark in MARKS)


def saved(folder: Path) -> dict[str, Any]:
    """The data sets of a `save_to_disk` folder by split. Raises DataError if it is damaged, MissingExtraError."""
    library = _library(f"{folder} was written by `save_to_disk`, and reading it")
    try:
        return _by_split(library.load_from_disk(str(folder)))
    except Exception as error:  # the library raises of all kinds
        raise DataError(f"datasets cannot read {folder}: {_first(error)}.") from None


def hub(name: str, subset: str | None, revision: str | None, stream: bool = False) -> dict[str, Any]:
    """A data set of the hub by split; with `stream`, rows come over the network when they are asked for.

    Raises: ConfigError if it cannot be had, MissingExtraError.
    """
    library = _library(f"There is no file or folder {name}. If it is a data set of the hub, loading it")
    how = {"streaming": True} if stream else {}
    try:
        return _by_split(library.load_dataset(name, subset, revision=revision, **how))
    except Exception as error:
        hint = " Name one with --set task.subset=NAME." if "Config name is missing" in str(error) else ""
        why = f"as a data set of the hub it cannot be loaded: {_first(error)}.{hint}"
        raise ConfigError(f"There is no file or folder {name}, and {why}") from None


def dataset_rows(dataset: Any, name: str) -> tuple[list[Row], list[Fault]]:
    """Rows of a `datasets.Dataset`. Raises DataError for columns that have to be decoded (images, sound)."""
    check_columns(dataset, name)
    return _numbered(f"{name}, row ", plain_rows(dataset), name)


def check_columns(dataset: Any, name: str) -> None:
    """Raise DataError for columns that have to be decoded, as far as it is known what there is."""
    for column, feature in (dataset.features or {}).items():
        if hasattr(feature, "decode_example"):
            raise DataError(
                f"{name}: the column {column!r} holds {type(feature).__name__.lower()}s, which no policy of text can "
                f"see. Take it out of the data set (remove_columns({column!r}))."
            )


def plain_rows(dataset: Any) -> Iterator[dict[str, Any]]:
    for batch in dataset.with_format("arrow").iter(batch_size=BATCH):
        yield from batch.to_pylist()


def _by_split(found: Any) -> dict[str, Any]:
    return {str(k): v for k, v in found.items()} if isinstance(found, dict) else {"train": found}


def _library(feature: str) -> Any:
    if importlib.util.find_spec("datasets") is None:
        raise MissingExtraError(feature, "data")
    import datasets

    return datasets


def _first(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")

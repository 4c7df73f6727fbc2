"""A log of one JSON object per line, that can be cut back to where a checkpoint was taken."""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from etude.core.errors import DataError
from etude.runtime import disk


class JsonLines:
    """Appends whole lines to a file; a torn last line, left by a kill, is cut off when it is opened.

    Each record is one `os.write` on a descriptor in append mode, so a reader never sees half a line followed by
    another, and the file is at every moment a prefix of complete lines plus at most one torn one.

    Args:
        path: the file; created if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        size, whole = os.fstat(self._fd).st_size, _end_of_last_line(self._fd)
        if whole < size:
            disk.cut(self._fd, whole)
        self.position = whole
        """Bytes of whole lines in the file: the offset that a checkpoint records."""

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record as one line. Raises DataError for a value that JSON cannot hold.

        If the write fails (a full disk), what got through is taken back before the error goes on.
        """
        try:
            line = json.dumps(plain(record), ensure_ascii=False, allow_nan=False)
        except TypeError as error:
            raise DataError(f"{self.path.name}: cannot write a record: {error}.") from error
        data = line.encode("utf-8", "replace") + b"\n"
        try:
            disk.write(self._fd, data)
        except OSError:
            disk.cut(self._fd, self.position)
            raise
        self.position += len(data)

    def cut(self, offset: int) -> bool:
        """Drop everything after `offset` bytes. Returns False, changing nothing, if the file is shorter than that."""
        if offset > self.position:
            return False
        if offset < self.position:
            disk.cut(self._fd, offset)
            self.position = offset
        return True

    def sync(self) -> None:
        """Make sure that all lines are on the device."""
        disk.sync(self.path)

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @staticmethod
    def read(path: Path) -> Iterator[dict[str, Any]]:
        """The records of a file, oldest first; a torn last line is left out, a missing file is empty.

        Raises DataError naming file and line if any other line is not a JSON object.
        """
        if not path.exists():
            return
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    record = json.loads(line)
                    if not isinstance(record, dict):
                        raise ValueError("not an object")
                except ValueError as error:
                    if not line.endswith(b"\n"):
                        return
                    raise DataError(f"{path}:{number} is not a JSON object: {error}.") from None
                yield record


def append(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Append a line for each record to a file that nobody holds open, after whole lines; its folder is made.

    Raises: as `JsonLines.append`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = JsonLines(path)
    try:
        for record in records:
            lines.append(record)
    finally:
        lines.close()


def plain(value: object) -> Any:
    """A value as JSON can hold it: NaN and infinities become None; arrays, tensors and scalars plain numbers.

    Raises TypeError for anything else that is not a number, text, None, list or mapping of these.
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} is neither number, text, list nor mapping")


def _end_of_last_line(fd: int) -> int:
    """Offset just after the last newline of an open file."""
    if os.fstat(fd).st_size == 0:
        return 0
    with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as content:
        return content.rfind(b"\n") + 1

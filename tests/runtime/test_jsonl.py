"""JsonLines: whole lines, exact values, cut back to an offset."""

from __future__ import annotations

import errno
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.core.errors import DataError
from etude.runtime import disk
from etude.runtime.jsonl import JsonLines, plain

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.lists(st.dictionaries(st.text(), VALUES, max_size=4), max_size=6)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(RECORDS, st.data())
def test_round_trip_and_cut(records: list[dict[str, Any]], data: st.DataObject) -> None:
    keep = data.draw(st.integers(0, len(records)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        log, offsets = JsonLines(path), [0]
        for record in records:
            log.append(record)
            offsets.append(log.position)
        assert list(JsonLines.read(path)) == records
        assert path.read_bytes().count(b"\n") == len(records)
        assert log.position == path.stat().st_size
        assert log.cut(offsets[keep])
        log.append({"last": 1})
        log.close()
        assert list(JsonLines.read(path)) == [*records[:keep], {"last": 1}]


def test_a_file_torn_at_any_byte_reads_and_goes_on(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    log = JsonLines(whole)
    for i in range(3):
        log.append({"step": i, "text": "é\n"})
    log.close()
    data, path = whole.read_bytes(), tmp_path / "torn.jsonl"
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        lines = data[:size].count(b"\n")
        complete = lines + (data[size : size + 1] == b"\n")  # a last line that lacks only its newline is readable
        assert len(list(JsonLines.read(path))) == complete
        log = JsonLines(path)
        log.append({"step": 9})
        log.close()
        assert [r["step"] for r in JsonLines.read(path)] == [*range(lines), 9]


def test_what_json_cannot_hold() -> None:
    record = {"nan": math.nan, "inf": -math.inf, "np": np.float32(0.5), "array": np.array([1.0, np.nan]),
              "tensor": torch.tensor(2), "flag": np.bool_(True), "path": Path("a/b"), 3: (1, 2)}  # fmt: skip
    expected = {"nan": None, "inf": None, "np": 0.5, "array": [1.0, None], "tensor": 2, "flag": True,
                "path": "a/b", "3": [1, 2]}  # fmt: skip
    assert plain(record) == expected


def test_lone_surrogates_and_objects(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    log.append({"text": "a\ud800b"})
    assert list(JsonLines.read(log.path)) == [{"text": "a?b"}]
    with pytest.raises(DataError, match=r"log.jsonl: cannot write a record: object is neither"):
        log.append({"x": object()})
    assert len(list(JsonLines.read(log.path))) == 1
    log.close()


def test_a_damaged_line_is_named_and_a_missing_file_is_empty(tmp_path: Path) -> None:
    assert list(JsonLines.read(tmp_path / "none.jsonl")) == []
    path = tmp_path / "log.jsonl"
    path.write_text('{"a": 1}\n[2]\n{"a": 3}\n')
    with pytest.raises(DataError, match=r"log.jsonl:2 is not a JSON object"):
        list(JsonLines.read(path))


def test_cut_never_makes_a_file_longer(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    log.append({"a": 1})
    assert not log.cut(100)
    assert log.path.stat().st_size == log.position == 9
    log.close()
    log.close()


def test_a_failed_write_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = JsonLines(tmp_path / "log.jsonl")
    log.append({"a": 1})
    real = disk.write

    def torn(fd: int, data: bytes) -> None:
        real(fd, data[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(disk, "write", torn)
        log.append({"a": 2})
    log.append({"a": 3})
    log.close()
    assert list(JsonLines.read(log.path)) == [{"a": 1}, {"a": 3}]

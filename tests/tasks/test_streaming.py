"""Data that is streamed: the problems of the whole data where rows have a place, exact buffers where they have none."""

from __future__ import annotations

import gc
import gzip
import hashlib
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, DataError
from etude.core.pools import Streamed
from etude.core.streams import Stream
from etude.curricula.uniform import Uniform
from etude.runtime import fingerprints
from etude.tasks.language import reading, streaming
from etude.tasks.language.files import DataFile

ROWS = [{"prompt": f"{n} + {n}?\nso", "answer": str(2 * n), "level": n % 3} for n in range(40)]
TALK = [
    {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"é{n}"}]} for n in range(40)
]
PAIRS = [{"prompt": f"{n}", "chosen": "yes", "rejected": "no", "id": f"q{n}"} for n in range(40)]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETUDE_CACHE", str(tmp_path_factory.mktemp("cache")))


def lines(rows: list[Any]) -> bytes:
    return "".join((r if isinstance(r, str) else json.dumps(r, ensure_ascii=False)) + "\n" for r in rows).encode()


def jsonl(folder: Path, rows: list[Any] = ROWS, name: str = "data.jsonl") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(lines(rows)) if name.endswith(".gz") else lines(rows))
    return path


def streamed(path: Path | str, **fields: Any) -> DataFile:
    return DataFile(str(path), stream=True, **fields)


def same_as_whole(path: Path, **fields: Any) -> None:
    """Splits, problems, their order, warnings."""
    whole, few = DataFile(str(path), **fields), streamed(path, **fields)
    assert few.splits() == whole.splits()
    for split in whole.splits():
        assert list(few.problems(split)) == list(whole.problems(split))
        assert isinstance(few.problems(split), Streamed)
    assert few.warnings() == whole.warnings()


# Any row by its place


@pytest.mark.parametrize("rows", [ROWS, TALK, PAIRS, [*ROWS, *ROWS[:9]]])
def test_lines_are_those_of_the_whole_file(tmp_path: Path, rows: list[Any]) -> None:
    same_as_whole(jsonl(tmp_path, rows))
    same_as_whole(jsonl(tmp_path, rows), test_fraction=0.4, split_seed=3)


@pytest.mark.parametrize("mark", [b"", reading.MARK])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_marks_ends_and_blank_lines(tmp_path: Path, mark: bytes, end: bytes) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(mark + lines(ROWS).replace(b"\n", end) + end + b"  ")
    same_as_whole(path, test_fraction=0.0)
    table = tmp_path / "data.csv"
    table.write_bytes(mark + end.join([b"question,answer", b'"two\nlines, ""said""",1', b"", b"b,", b"c,3", b"d,4"]))
    same_as_whole(table, columns=("prompt=question",), skip_bad_rows=True)
    same_as_whole(table, columns=("prompt=question", "answer="), test_fraction=0.5)


def test_folders_of_several_files(tmp_path: Path) -> None:
    jsonl(tmp_path, ROWS[:20], "train-1.jsonl")
    jsonl(tmp_path, ROWS[20:], "train-2.jsonl")
    jsonl(tmp_path, ROWS[15:25], "test.jsonl")
    same_as_whole(tmp_path)
    assert "10 of the 10 test rows" in streamed(tmp_path).warnings()[0]


@pytest.mark.slow
def test_folders_of_save_to_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    same_as_whole(tmp_path / "saved")


BAD = [
    [*ROWS[:3], '{"prompt": "x" "answer": "y"}', {"prompt": "", "answer": "z"}, {"prompt": "q", "answr": "1"}],
    [*PAIRS, PAIRS[3], PAIRS[5]],
    [ROWS[0], "", ROWS[1]],
    ["[1]", "nothing"],
    [],
    [{"question": "q"}],
]


@pytest.mark.parametrize("rows", BAD)
def test_faults_are_those_of_the_whole_file(tmp_path: Path, rows: list[Any]) -> None:
    path = jsonl(tmp_path, rows)
    with pytest.raises(DataError) as whole:
        DataFile(str(path)).problems("train")
    with pytest.raises(DataError) as few:
        streamed(path).problems("train")
    assert str(few.value) == str(whole.value)


@pytest.mark.parametrize("rows", BAD[:3])
def test_bad_rows_are_left_out(tmp_path: Path, rows: list[Any]) -> None:
    same_as_whole(jsonl(tmp_path, rows), skip_bad_rows=True)


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = jsonl(tmp_path)
    pool = streamed(path).problems("train")
    jsonl(tmp_path, ROWS[:30])
    with pytest.raises(DataError, match=r"data.jsonl was changed while it was read row by row: put back what it was"):
        pool[0]


@pytest.mark.slow
def test_a_file_is_read_once_and_where_rows_lie_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, scans, reads = jsonl(tmp_path, [{**r, "prompt": f"{i}"} for i in range(30) for r in ROWS]), [], []
    scan, digest = reading.Lines.scan, hashlib.file_digest
    monkeypatch.setattr(reading.Lines, "scan", lambda self: scans.append(1) or scan(self))
    monkeypatch.setattr(hashlib, "file_digest", lambda *said: reads.append(1) or digest(*said))

    def began(path: Path) -> tuple[int, int]:
        """Times that rows were looked for from the beginning, and that the file was hashed."""
        scans.clear(), reads.clear()
        same = list(streamed(path, test_fraction=0.0).problems("train"))
        assert same == list(DataFile(str(path), test_fraction=0.0).problems("train"))
        assert fingerprints.content(path) == {"": hashlib.sha256(path.read_bytes()).hexdigest()}
        return len(scans), len(reads)

    assert began(path) == (2, 0), "the first rows, then all of them, hashed on the way"
    fingerprints.KNOWN.clear()
    assert began(path)[0] == 1, "another start reads the first rows alone"
    with path.open("ab") as file:
        file.write(lines([{**ROWS[0], "prompt": "new"}]))
    assert began(path)[0] == 2


# From the beginning


def problems_of(pool: Any, count: int, begin: int = 0, seed: int = 5) -> list[Problem]:
    """What a run is shown, one draw at a time, from draw number `begin` on."""
    part = Uniform().bind()
    part.state["drawn"] = begin
    return [part.choose(pool, 1, Stream(seed))[0] for _ in range(count)]


def source(folder: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The rows as something that has no places."""
    if how == "gz":
        return str(jsonl(folder, ROWS, "data.jsonl.gz"))
    if how == "two":
        jsonl(folder, ROWS[:15], "in/a.jsonl")
        return str(jsonl(folder, ROWS[15:], "in/b.jsonl.gz").parent)
    if how == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(
            pytest.importorskip("pyarrow").Table.from_pylist(ROWS), folder / "data.parquet", row_group_size=7
        )
        return str(folder / "data.parquet")
    datasets = pytest.importorskip("datasets")

    def load(name: str, subset: str | None, revision: str | None, streaming: bool = False) -> Any:
        assert streaming
        made = datasets.Dataset.from_list(ROWS).to_iterable_dataset()
        return datasets.IterableDatasetDict({"train": made})

    monkeypatch.setattr(datasets, "load_dataset", load)
    return "mine/sums"


@pytest.mark.parametrize("how", ["gz", "two", "parquet", "hub"])
def test_every_pass_shows_each_row_once_whatever_was_asked_before(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = source(tmp_path, how, monkeypatch)
    pool = streamed(path, test_fraction=0.0, buffer=16).problems("train")
    shown = problems_of(pool, 120)
    assert [p.prompt for p in pool[:40]] == [r["prompt"] for r in ROWS]
    passes = [[int(p.id) for p in shown[i : i + 40]] for i in (0, 40, 80)]
    assert [sorted(p) for p in passes] == [list(range(1, 41))] * 3
    assert len({tuple(p) for p in passes}) == 3, "each pass has an order of its own"
    for order in passes:
        assert [sorted(order[i : i + 16]) for i in (0, 16, 32)] == [
            list(range(i + 1, min(i + 17, 41))) for i in (0, 16, 32)
        ]
        assert order[:16] != sorted(order[:16])
    for begin in (0, 7, 16, 39, 40, 47, 100):
        again = streamed(path, test_fraction=0.0, buffer=16).problems("train")
        assert problems_of(again, 20, begin) == shown[begin : begin + 20]
    assert problems_of(pool, 16, seed=6) != shown[:16]


@pytest.mark.parametrize("buffer", [1, 40, 1000])
def test_buffers_of_any_size(tmp_path: Path, buffer: int) -> None:
    pool = streamed(jsonl(tmp_path, ROWS, "d.jsonl.gz"), test_fraction=0.0, buffer=buffer).problems("train")
    for i in (0, 40):
        assert sorted(int(p.id) for p in problems_of(pool, 40, i)) == list(range(1, 41))


@pytest.mark.slow
def test_rows_are_kept_for_testing_by_their_hash(tmp_path: Path) -> None:
    rows = [{**ROWS[0], "prompt": f"number {n}"} for n in range(2000)]
    task = streamed(jsonl(tmp_path, rows, "d.jsonl.gz"), test_fraction=0.25, split_seed=1)
    tested = {p.prompt for p in task.problems("test")}
    trained = {p.prompt for p in islice((task.problems("train")[i] for i in range(10_000)), 2000 - len(tested))}
    assert tested | trained == {r["prompt"] for r in rows} and not tested & trained
    assert tested == {
        r["prompt"] for r in rows
        if int.from_bytes(hashlib.sha256(f"1\0{r['prompt']}".encode()).digest()[:8], "big") < 2**62
    }  # fmt: skip
    assert abs(len(tested) - 500) < 80
    other = streamed(jsonl(tmp_path, rows, "d.jsonl.gz"), test_fraction=0.25, split_seed=2)
    assert {p.prompt for p in other.problems("test")} != tested


def test_named_splits_are_read_as_far_as_they_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "HELD", 12)
    jsonl(tmp_path, ROWS, "train.jsonl.gz")
    jsonl(tmp_path, ROWS[::-1], "test.jsonl.gz")
    task = streamed(tmp_path)
    assert task.splits() == ("train", "test") and len(task.problems("test")) == 12
    assert [p.prompt for p in task.problems("test")] == [r["prompt"] for r in ROWS[:-13:-1]]


def test_bad_rows_are_met_when_they_come(tmp_path: Path) -> None:
    rows = [*ROWS[:30], {"prompt": "", "answer": "1", "level": 0}, *ROWS[30:]]
    path = jsonl(tmp_path, rows, "d.jsonl.gz")
    pool = streamed(path, test_fraction=0.0, buffer=10).problems("train")
    assert len(pool[:30]) == 30
    for _ in range(2):
        with pytest.raises(DataError, match=r"d.jsonl.gz:31: prompt is empty.\nMend them, or leave them out"):
            pool[30]
    pool = streamed(path, test_fraction=0.0, buffer=10, skip_bad_rows=True).problems("train")
    with pytest.warns(UserWarning, match=r"left out as they come; the first: .*:31: prompt is empty."):
        assert [p.prompt for p in pool[:80]] == [r["prompt"] for r in ROWS] * 2


@pytest.fixture
def living() -> Iterator[Any]:
    """How many problems there are in memory."""
    yield lambda: sum(type(thing) is Problem for thing in gc.get_objects())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "most"), [("d.jsonl", 1), ("d.jsonl.gz", 50)])
def test_no_more_is_held_than_the_buffer(tmp_path: Path, living: Any, name: str, most: int) -> None:
    rows = [{**ROWS[0], "prompt": f"number {n}"} for n in range(1500)]
    pool, before = streamed(jsonl(tmp_path, rows, name), test_fraction=0.0, buffer=50).problems("train"), living()
    seen = 0
    for problem in (pool[i] for i in range(0, 1500, 100)):
        seen = max(seen, living() - before)
        assert problem.prompt
    assert 1 <= seen <= most + 1


# Refusals


def test_what_cannot_be_streamed(tmp_path: Path) -> None:
    whole = tmp_path / "data.json"
    whole.write_text(json.dumps(ROWS))
    with pytest.raises(DataError, match=r"data.json is one list, which can only be read whole: write one row per line"):
        streamed(whole).problems("train")
    for fields in ({"prompt_limit": 5}, {"on_long_prompt": "error"}):
        with pytest.raises(ConfigError, match=r"With task.stream prompts are not counted before training"):
            streamed("data.jsonl", **fields)
    cut = tmp_path / "d.jsonl.gz"
    cut.write_bytes(gzip.compress(lines(ROWS))[:-9])
    with pytest.raises(DataError, match=r"d.jsonl.gz is no whole gzip file"):
        list(streamed(cut, test_fraction=0.0, buffer=50).problems("train")[:50])
    few = streamed(jsonl(tmp_path, ROWS[:1], "one.jsonl.gz"), test_fraction=0.01)
    with pytest.raises(DataError, match=r"no row is kept for testing; keep more \(--set task.test_fraction=0.5\)"):
        few.problems("test")[0]

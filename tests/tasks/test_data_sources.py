"""Where data comes from: tables, compressed files, folders, `datasets`. Every one gives the problems of the JSONL."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from etude.core.episodes import Problem
from etude.core.errors import ConfigError, DataError, MissingExtraError, UnknownNameError
from etude.tasks import resolve_task
from etude.tasks.language import places, tables
from etude.tasks.language.files import DataFile

ROWS = [{"prompt": f'{i} + "{i}",\nis?', "answer": str(2 * i), "level": f"l{i % 2}"} for i in range(6)]
CHATS = [
    {"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"a{i}"}], "topic": "t"}
    for i in range(4)
]
GOOD = b'{"prompt": "a"}\n{"prompt": "b"}\n'


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(r) + "\n" for r in rows).encode()


def table(path: Path, rows: list[dict[str, Any]], delimiter: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def problems(path: Path | str, split: str = "train", **options: Any) -> list[Problem]:
    return list(DataFile(str(path), **{"test_fraction": 0.0, **options}).problems(split))


def refusal(path: Path | str, **options: Any) -> str:
    with pytest.raises((DataError, ConfigError)) as error:
        DataFile(str(path), **options).problems("train")
    return str(error.value)


@pytest.fixture
def expected(tmp_path: Path) -> list[Problem]:
    """The problems of the same rows in JSONL."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/rows.jsonl").write_bytes(lines(ROWS))
    return problems(tmp_path / "plain/rows.jsonl")


# Files


def test_csv_and_tsv_are_the_same_problems(tmp_path: Path, expected: list[Problem]) -> None:
    assert problems(table(tmp_path / "rows.csv", ROWS)) == expected
    assert problems(table(tmp_path / "rows.tsv", ROWS, "\t")) == expected
    (tmp_path / "bom.csv").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "rows.csv").read_bytes())
    assert problems(tmp_path / "bom.csv") == expected


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.json", "rows.tsv"])
def test_compressed_files_are_the_same_problems(tmp_path: Path, expected: list[Problem], name: str) -> None:
    made = {"rows.jsonl": lines(ROWS), "rows.json": json.dumps(ROWS).encode()}
    path = tmp_path / name
    data = made.get(name) or table(path, ROWS, "\t" if "tsv" in name else ",").read_bytes()
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(data))
    assert problems(packed) == expected
    task = resolve_task(str(packed))
    assert isinstance(task, DataFile) and task.id == "rows"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prompt,answer\na,1,2\n", "rows.csv:2: has 3 cells, and the first line 2."),
        ("prompt,answer\na\n", "rows.csv:2: has 1 cells, and the first line 2."),
        ("prompt,answer\n,1\n", "rows.csv:2: prompt must be text or a list of messages, got null."),
        ("prompt,answer\na,\n", "rows.csv:2: answer is null."),
        ("prompt,answer\n", "holds the names of columns alone: it must hold at least one row."),
        ("prompt,prompt\na,b\n", "rows.csv:1: the first line must name each column once, got 'prompt', 'prompt'."),
        ("prompt,\na,b\n", "rows.csv:1: the first line must name each column once, got 'prompt', ''."),
        ('prompt,answer\n"a,1\n', "rows.csv:2: unexpected end of data."),
        ("messages,x\nhello,1\n", "messages must be a list of at least two messages."),
        ("", "rows.csv is empty: it must hold at least one row."),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "rows.csv").write_text(text)
    assert sentence in refusal(tmp_path / "rows.csv")


def test_a_long_cell_and_a_byte_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text(f"prompt,answer\n{'x' * 200_000},1\n")
    assert len(str(problems(tmp_path / "long.csv")[0].prompt)) == 200_000
    (tmp_path / "bad.csv").write_bytes(b"prompt\na\n\xff\n")
    assert "bad.csv:3: not UTF-8: byte 0xff. Save it as UTF-8." in refusal(tmp_path / "bad.csv")


def test_files_that_are_not_what_their_name_says(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(GOOD)
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(GOOD)[:-6])
    (tmp_path / "damaged.jsonl.gz").write_bytes(gzip.compress(GOOD)[:12] + b"\xff" * 20)
    for name in ("a", "cut", "damaged"):
        assert f"{name}.jsonl.gz is no whole gzip file (" in refusal(tmp_path / f"{name}.jsonl.gz")


def test_parquet_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(tables.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"rows.parquet needs an optional .*: pip install 'etude\[data\]'"):
        problems(tmp_path / "rows.parquet")


@pytest.mark.slow
def test_parquet_is_the_same_problems(tmp_path: Path, expected: list[Problem]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    assert problems(tmp_path / "rows.parquet") == expected
    parquet.write_table(pyarrow.Table.from_pylist(CHATS), tmp_path / "chats.parquet")
    (tmp_path / "chats.jsonl").write_bytes(lines(CHATS))
    assert problems(tmp_path / "chats.parquet") == problems(tmp_path / "chats.jsonl")
    (tmp_path / "no.parquet").write_bytes(b"PAR1")
    assert "Cannot read" in refusal(tmp_path / "no.parquet")
    parquet.write_table(pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())}), tmp_path / "none.parquet")
    assert "none.parquet is empty: it must hold at least one row." in refusal(tmp_path / "none.parquet")


def test_messages_of_a_table_have_no_keys_of_others(tmp_path: Path) -> None:
    """Arrow gives every object the keys of all: what is null there is not there."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}
    other = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "g", "arguments": {"y": 2}}}]}
    ask, done = {"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}
    rows = [{"messages": [ask, call, done]}, {"messages": [ask, other, done]}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "calls.parquet")
    assert [p.prompt for p in problems(tmp_path / "calls.parquet")] == [[ask, call], [ask, other]]


# Folders


def folder(root: Path, *names: str) -> Path:
    """A folder with these files, the prompt of each row being its file's name."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(lines([{"prompt": name}]))
    return root


LAYOUTS: list[tuple[tuple[str, ...], dict[str, list[str]]]] = [
    (("train.jsonl", "test.jsonl", "other.jsonl"), {"train": ["train.jsonl"], "test": ["test.jsonl"]}),
    (
        ("data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl", "data/dev-00000-of-00001.jsonl"),
        {
            "train": ["data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl"],
            "dev": ["data/dev-00000-of-00001.jsonl"],
        },
    ),
    (("train/a.jsonl", "train/b.jsonl", "eval/c.jsonl"), {"train": ["train/a.jsonl", "train/b.jsonl"],
                                                          "test": ["eval/c.jsonl"]}),
    (
        ("data/train_sft-00000-of-00001.jsonl", "data/train_gen-00000-of-00001.jsonl"),
        {"train_sft": ["data/train_sft-00000-of-00001.jsonl"], "train_gen": ["data/train_gen-00000-of-00001.jsonl"]},
    ),
    (("my_training_set.jsonl", "valid.jsonl"), {"train": ["my_training_set.jsonl"], "validation": ["valid.jsonl"]}),
    (("my-train/test.jsonl",), {"train": ["my-train/test.jsonl"]}),
    (("b.jsonl", "a.jsonl", "contest.jsonl"), {"train": ["a.jsonl", "b.jsonl", "contest.jsonl"]}),
]  # fmt: skip


@pytest.mark.parametrize(("names", "splits"), LAYOUTS)
def test_splits_of_a_folder(tmp_path: Path, names: tuple[str, ...], splits: dict[str, list[str]]) -> None:
    found = places._in_folder(folder(tmp_path, *names))
    assert {k: sorted(str(Path(s.name).relative_to(tmp_path)) for s in v) for k, v in found.items()} == splits


def test_splits_get_other_names(tmp_path: Path) -> None:
    folder(tmp_path, "data/train_sft-00000-of-00001.jsonl", "data/train_gen-00000-of-00001.jsonl")
    sentence = "it has: train_gen, train_sft. If one of them is that: --set task.rename_splits=train=train_gen."
    assert sentence in refusal(tmp_path)
    task = DataFile(str(tmp_path), rename_splits=("train=train_sft", "test=train_gen"))
    assert task.splits() == ("train", "test")
    assert task.problems("test")[0].prompt == "data/train_gen-00000-of-00001.jsonl"
    assert DataFile(str(tmp_path), rename_splits=("train=train_sft",)).splits() == ("train",)
    assert "Did you mean 'train_sft'" in refusal(tmp_path, rename_splits=("train=trainsft",))
    assert "takes NAME=SPLIT, as in train=train_sft; got 'train'." in refusal(tmp_path, rename_splits=("train",))


@pytest.mark.parametrize(("names", "splits"), LAYOUTS)
def test_splits_are_those_of_the_datasets_library(
    tmp_path: Path, names: tuple[str, ...], splits: dict[str, list[str]]
) -> None:
    data_files = pytest.importorskip("datasets.data_files")
    folder(tmp_path, *names)
    patterns = data_files.get_data_patterns(str(tmp_path))
    theirs = data_files.DataFilesDict.from_patterns(patterns, base_path=str(tmp_path))
    found = {str(k): sorted(str(Path(f).relative_to(tmp_path)) for f in v) for k, v in theirs.items()}
    assert found == splits


def test_rows_of_several_files_are_numbered_through(tmp_path: Path) -> None:
    (tmp_path / "train-1.jsonl").write_bytes(GOOD)
    table(tmp_path / "train-2.csv", [{"prompt": "c"}, {"prompt": "d"}])
    (tmp_path / "test.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "e"}\n'))
    (tmp_path / "README.md").write_text("not data")
    (tmp_path / "dataset_info.json").write_text("{}")
    assert [(p.id, p.prompt) for p in problems(tmp_path)] == [
        ("train/1", "a"), ("train/2", "b"), ("train/3", "c"), ("train/4", "d")
    ]  # fmt: skip
    assert [p.prompt for p in problems(tmp_path, "test")] == ["e"]


@pytest.mark.parametrize(("file", "made"), [("film.mp4", "EnvironmentTask"), ("train.jsonl", "DataFile")])
def test_a_folder_called_like_an_environment_is_data_if_it_holds_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, made: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "CartPole-v1", file)
    assert type(resolve_task("CartPole-v1")).__name__ == made


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no data: no file ends in .jsonl, .json, .csv, .tsv" in refusal(tmp_path / "empty")
    both = folder(tmp_path / "both", "train-test.jsonl")
    assert "train-test.jsonl is named after two splits, train and test: rename it." in refusal(both)
    assert "it has: validation." in refusal(folder(tmp_path / "lacks", "dev.jsonl"))


# The `datasets` library


@pytest.mark.parametrize("divided", [True, False])
def test_folders_of_save_to_disk(tmp_path: Path, expected: list[Problem], divided: bool) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list(ROWS)
    if not divided:
        made.save_to_disk(tmp_path / "saved")
        assert problems(tmp_path / "saved") == expected
        return
    datasets.DatasetDict({"dev": made.select([5]), "train": made.select(range(5))}).save_to_disk(tmp_path / "saved")
    task = resolve_task(str(tmp_path / "saved"))
    assert task.splits() == ("train", "validation")
    assert [p.prompt for p in task.problems("train")] == [p.prompt for p in expected[:5]]
    assert [p.id for p in task.problems("validation")] == ["validation/1"]


def test_saved_folders_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state.json").write_text("{}")
    monkeypatch.setattr(tables.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"written by `save_to_disk`, and reading it needs .*'etude\[data\]'"):
        problems(tmp_path)
    monkeypatch.undo()
    if importlib.util.find_spec("datasets"):
        assert f"datasets cannot read {tmp_path}: " in refusal(tmp_path)


def test_columns_that_have_to_be_decoded(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"prompt": datasets.Value("string"), "photo": datasets.Image()})
    made = datasets.Dataset.from_dict({"prompt": ["a"], "photo": [None]}, features=features)
    made.save_to_disk(tmp_path / "saved")
    assert "the column 'photo' holds images, which no policy of text can see." in refusal(tmp_path / "saved")


def test_a_data_set_of_the_hub(expected: list[Problem], monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked: list[Any] = []

    def load(name: str, subset: str | None, revision: str | None) -> Any:
        asked.append((name, subset, revision))
        return datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})

    monkeypatch.setattr(datasets, "load_dataset", load)
    task = resolve_task("mine/sums")
    assert isinstance(task, DataFile) and task.id == "sums"
    assert list(task.replace(test_fraction=0.0).problems("train")) == expected
    named = resolve_task("hub:mine/sums-v1").replace(subset="main", revision="abc")
    assert len(named.problems("train")) == 5 and named.id == "sums-v1"
    assert asked == [("mine/sums", None, None), ("mine/sums-v1", "main", "abc")]


def test_data_sets_of_the_hub_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("datasets"):
        import datasets

        def load(*args: object, **options: object) -> None:
            raise ValueError("Config name is missing.\nPlease pick one among the available configs: ['main']")

        monkeypatch.setattr(datasets, "load_dataset", load)
        assert refusal("mine/sums") == (
            "There is no file or folder mine/sums, and as a data set of the hub it cannot be loaded: Config name is "
            "missing. Name one with --set task.subset=NAME."
        )
    monkeypatch.setattr(tables.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"no file or folder mine/sums. If it is a data set of the hub"):
        problems("mine/sums")


def test_names_that_can_be_nothing() -> None:
    assert refusal("hub:none") == "There is no file or folder hub:none."
    with pytest.raises(UnknownNameError, match=r"data sets of the hub \(owner/name\) are tasks too"):
        resolve_task("nothing-like-it")


def test_what_is_for_the_hub_alone(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    assert "are for data sets of the hub (owner/name), and" in refusal(tmp_path / "a.jsonl", subset="main")

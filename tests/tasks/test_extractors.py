"""How answers are found and compared: the tables of docs/verifiable-rewards.md, and what must hold beside them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.core.errors import ConfigError, DataError
from etude.tasks.language import answers, extractors
from etude.tasks.language.files import DataFile

PAGE = Path(__file__).parents[2] / "docs/verifiable-rewards.md"
ROW = re.compile(r"^\| `(.*)` \| `(.*)` \| (yes|no) \|$")


def tables() -> list[tuple[str, str, str, bool]]:
    """Every row of the page's tables: extractor, completion, answer, right."""
    rows, name = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if mark := re.fullmatch(r"<!-- (.*) -->", line):
            name = mark[1]
        elif row := ROW.match(line):
            rows.append((name, row[1].replace("⏎", "\n"), row[2], row[3] == "yes"))
    return rows


@pytest.fixture(params=[True, False], ids=["with math-verify", "without"])
def judged(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package and without it; with it only where it is installed."""
    if request.param:
        pytest.importorskip("math_verify", exc_type=ImportError)
    else:
        monkeypatch.setattr(answers, "_same_formula", lambda given, wanted: False)


@pytest.mark.usefixtures("judged")
def test_the_tables_of_the_page() -> None:
    rows = tables()
    assert {name for name, *_ in rows} == {*extractors.EXTRACTORS} and len(rows) > 60
    wrong = [row for row in rows if extractors.right(row[0], row[1], row[2]) is not row[3]]  # type: ignore[arg-type]
    assert not wrong


@pytest.mark.slow
def test_what_math_verify_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("math_verify", exc_type=ImportError)
    found = re.findall(r"^\| `([^`]*)` \| `([^`]*)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == 2
    assert all(extractors.right("auto", *pair) for pair in found)
    monkeypatch.setattr(answers.importlib.util, "find_spec", lambda name: None)
    assert not any(extractors.right("auto", *pair) for pair in found)


def test_each_extractor_accepts_and_refuses() -> None:
    verdicts = {(name, right) for name, _, _, right in tables()}
    assert verdicts == {(name, right) for name in extractors.EXTRACTORS for right in (True, False)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "wanted", "same"),
    [
        ("12", "12.0", True),
        ("12 Apples", "12 apple", True),
        ("12 apples", "12 km", False),
        ("-12", "12", False),
        (r"\tfrac{3}{4}", "3/4", True),
        (r"\frac{\frac{1}{2}}{3}", r"(1/2)/3", True),
        ("y = 5", "x = 5", False),
        ("[B]", "B", True),
        ("B", "C", False),
        ("**", "*", False),
        ("", "", False),
        ("x" * 2_001, "x" * 2_001, True),
        ("**" + "x" * 2_001 + "**", "x" * 2_001, False),
    ],
)
@pytest.mark.usefixtures("judged")
def test_same(given: str, wanted: str, same: bool) -> None:
    assert answers.same(given, wanted) is same


@pytest.mark.parametrize("mark", ["*", "$", "\\frac{", "1,", "(", "\\boxed{", " 1/", "A or "])
def test_long_answers_take_little_time(mark: str) -> None:
    import time

    text, start = mark * 20_000, time.process_time()
    for name in extractors.EXTRACTORS:
        extractors.right(name, text, "12" if name == "last-number" else "B")  # type: ignore[arg-type]
    assert time.process_time() - start < 2


@given(st.text(), st.sampled_from([*extractors.EXTRACTORS]))
def test_any_text_can_be_judged(text: str, name: str) -> None:
    found = extractors.EXTRACTORS[name].find(text)
    assert found is None or isinstance(found, str)
    extractors.EXTRACTORS[name].objection(text)


def write(folder: Path, *rows: dict[str, Any]) -> str:
    (folder / "data.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(folder / "data.jsonl")


def test_a_task_chooses(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "p", "answer": 12}, {"prompt": "q", "answer": 13})
    task = DataFile(path, extractor="last-number", test_fraction=0.0)
    problem = task.problems("train")[0]
    assert [task.score(problem, c) for c in ("so 12 apples", "so 13", "none")] == [1.0, 0.0, 0.0]
    assert [task.answer(c) for c in ("so 12 apples", "none")] == ["12", ""]
    assert task.replace(extractor="boxed").score(problem, "so 12") == 0.0
    with pytest.raises(ConfigError, match="extractor must be one of 'auto', 'boxed', 'last-number', 'choice', 'exact'"):
        DataFile(path, extractor="last")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("extractor", "sentence"),
    [
        ("last-number", "data.jsonl:1: the answer 'Paris' is no number, which last-number compares: choose another"),
        ("choice", "data.jsonl:1: the answer 'Paris' is no letter, which choice compares: choose another way with"),
    ],
)
def test_answers_that_cannot_be_compared_are_bad_rows(tmp_path: Path, extractor: Any, sentence: str) -> None:
    good = {"last-number": "3", "choice": "(B)"}[extractor]
    path = write(tmp_path, {"prompt": "p", "answer": "Paris"}, {"prompt": "q", "answer": good})
    with pytest.raises(DataError) as error:
        DataFile(path, extractor=extractor).problems("train")
    assert sentence in str(error.value) and "has 1 bad row:" in str(error.value)

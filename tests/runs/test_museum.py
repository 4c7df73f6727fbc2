"""The museum: verdicts are what was observed, no clean run says anything, and the page is what came of it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from etude.cli import museum as verb
from etude.core.errors import ConfigError, EtudeError, UnknownNameError
from etude.evaluation.exhibits import KINDS, SILENT, Band, Exhibit, Report, observe
from etude.runs import museum
from etude.runs.museum import Visit, chosen, exhibits, page, visit

PAGE = Path(__file__).resolve().parents[2] / "docs" / "museum.md"
REPORT = Report(thread="somebody/something#1", title="It says nothing")
FAULTY: list[str] = []


@contextmanager
def faulty(how: str) -> Iterator[None]:
    FAULTY.append(how)
    try:
        yield
    finally:
        FAULTY.clear()


def steps() -> Iterator[Mapping[str, float] | str]:
    """Five steps; the fault shows itself at the step that its name ends in."""
    how, _, when = "".join(FAULTY).partition("@")
    for step in range(5):
        if how == "stops" and step == int(when):
            raise EtudeError("The weights are not those.")
        if how == "says" and step == int(when):
            warnings.warn("The weights are not those.", stacklevel=1)
        if how == "tells" and step == int(when):
            yield "The weights are not those."
        yield {"ratio": 2.0 if how == "shows" and step == int(when) else 1.0}


def made(how: str, **changes: Any) -> Exhibit:
    about = {"id": "made", "kind": "weights", "report": REPORT, "says": "It hurt.", "mechanism": "a name."}
    about |= {
        "inject": lambda: faulty(how),
        "run": steps,
        "expect": "not those",
        "band": Band(metric="ratio", low=0.9, high=1.1),
    }
    return Exhibit(**{**about, **changes})


@pytest.mark.parametrize(
    ("how", "verdict"),
    [
        ("stops@0", "stopped"), ("stops@2", "stopped"), ("says@1", "said"), ("tells@2", "said"),
        ("shows@2", "visible in a metric"), ("nothing@0", "silent"), ("stops@3", "silent"), ("says@4", "silent"),
        ("shows@3", "silent"),
    ],
)  # fmt: skip
def test_a_verdict_is_what_was_observed_in_time(how: str, verdict: str) -> None:
    found = observe(made(how))
    assert found.verdict == verdict
    assert visit(made(how)).clean == ()
    assert visit(made(how)).well == (verdict != SILENT)


def test_a_fault_that_begins_later_may_be_answered_later() -> None:
    assert observe(made("stops@4", begins=2)).verdict == "stopped"
    assert observe(made("stops@4", begins=1)).other == ("too late, at step 4: not those",)


def test_another_sentence_is_no_answer() -> None:
    found = observe(made("stops@0", expect="the optimizer"))
    assert (found.verdict, found.other) == (SILENT, ("The weights are not those.",))


def test_what_is_said_without_the_fault_is_told() -> None:
    def noisy() -> Iterator[Mapping[str, float] | str]:
        yield "All is well."
        yield from steps()

    one = visit(made("stops@0", run=noisy))
    assert one.found.verdict == "stopped" and one.clean == ("All is well.",) and not one.well


def test_a_listed_miss_is_silent_and_well() -> None:
    one = visit(made("nothing@0", miss="Nobody can see it."))
    assert one.found.verdict == SILENT and one.well
    assert "- `made`: Nobody can see it." in page({"made": one})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kind": "money"}, "kind must be one of weights, probabilities"),
        ({"report": Report(thread="somewhere", title="?")}, "thread must be 'owner/repository#number'"),
        ({"expect": "", "band": None}, "must expect a sentence or a metric"),
    ],
)
def test_an_exhibit_that_is_none(changes: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        made("stops@0", **changes)


def test_there_is_no_museum_in_an_installed_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(museum, "PLACE", tmp_path / "museum")
    with pytest.raises(ConfigError, match="The museum is in a checkout of etude"):
        exhibits.__wrapped__()


@pytest.mark.slow
def test_unknown_exhibits_are_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="one-reward-for-all"):
        chosen(["one-reward"])


@pytest.mark.slow
def test_each_kind_is_there() -> None:
    kinds = [e.kind for e in exhibits().values()]
    assert len(kinds) >= 60 and all(kinds.count(kind) >= 5 for kind in KINDS)


# All of it


@pytest.fixture(scope="module")
def visits() -> dict[str, Visit]:
    """Every exhibit, with its fault and without."""
    return {name: visit(exhibit) for name, exhibit in exhibits().items()}


@pytest.mark.slow
def test_every_fault_is_answered_and_no_clean_run_says_anything(visits: dict[str, Visit]) -> None:
    assert not {name: (one.found, one.clean) for name, one in visits.items() if not one.well}


@pytest.mark.slow
def test_nothing_is_listed_as_missed_that_is_answered(visits: dict[str, Visit]) -> None:
    assert not [name for name, one in visits.items() if one.exhibit.miss and one.found.verdict != SILENT]


@pytest.mark.slow
def test_the_page_is_what_came_of_it(visits: dict[str, Visit]) -> None:
    assert PAGE.read_text(encoding="utf-8") == page(visits), "write it again: python docs/make_museum.py"


# The verb


@pytest.mark.slow
def test_the_museum_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    verb.list_exhibits()
    assert "huggingface/trl#6533" in capsys.readouterr().out
    verb.list_exhibits(json=True)
    listed = {entry["id"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed.keys() == exhibits().keys()
    assert listed["one-reward-for-all"]["report"] == "https://github.com/huggingface/trl/issues/6533"


def test_the_exit_code_says_whether_all_is_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"heard": made("stops@0", id="heard"), "unheard": made("nothing@0", id="unheard")}
    monkeypatch.setattr(museum, "exhibits", lambda: found)
    verb.run("heard")
    assert "stopped" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        verb.run(all=True, json=True)
    assert ended.value.code == 1
    assert [entry["well"] for entry in json.loads(capsys.readouterr().out)] == [True, False]
    with pytest.raises(ConfigError, match="or --all"):
        verb.run()

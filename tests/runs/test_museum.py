"""The museum: verdicts are what was observed, no clean run says anything, and the page is what came of it."""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
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
from etude.runs.museum import PLACE, Visit, chosen, exhibits, visit
from etude.runs.museum_page import PEERS, WORDS, Peer, page

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
    assert "- `made`: Nobody can see it." in page({"made": one}, {})


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
    peers = {name: Peer.read(name) for name in PEERS}
    assert PAGE.read_text(encoding="utf-8") == page(visits, peers), "write it again: python docs/make_museum.py"


# Other libraries


@pytest.mark.slow
def test_peers_have_columns_of_what_is_here() -> None:
    peers = [Peer.read(name) for name in PEERS]
    for peer in peers:
        assert {*peer.exhibits, *peer.none} <= exhibits().keys() and not peer.exhibits.keys() & peer.none.keys()
        assert all(found["verdict"] in WORDS and found["how"] for found in peer.exhibits.values())
        assert peer.versions and peer.otherwise
    assert len(set().union(*(peer.exhibits for peer in peers))) >= 25


def test_a_peer_is_shown_with_what_was_done_there() -> None:
    found = {"verdict": "visible in a metric", "answer": "kl: 0 instead of 1 to 2", "how": "a setting"}
    peer = Peer("Other", "Other 1.0", {"made": found}, {"else": "no sampler"}, "no control")
    text = page({"made": visit(made("stops@0"))}, {"other": peer})
    assert "| [`made`](#made)<br>It hurt. | **stopped** | in a metric |" in text
    assert "- Other (a setting): in a metric: kl: 0 instead of 1 to 2" in text
    assert "| Other (Other 1.0) | 1 | 0 | 0 | 1 | 0 |" in text
    assert (peer.line("else"), peer.line("third")) == ("- Other: – no sampler", "- Other: – no control")
    assert peer.word("else") == "–"


@pytest.fixture(scope="module")
def frame() -> Any:
    """The rule by which peers are judged, which imports nothing of etude."""
    spec = importlib.util.spec_from_file_location("museum_frame", PLACE / "peers" / "frame.py")
    assert spec is not None and spec.loader is not None
    sys.modules["museum_frame"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def seeded(seed: int) -> Iterator[Mapping[str, float]]:
    """Four steps of a number that lies between 1 and 1.4 and grows with steps, and what the fault makes of it."""
    how, _, when = "".join(FAULTY).partition("@")
    for step in range(4):
        print("Warning: this is always said, of seed", seed)
        if how == "stops" and step == int(when):
            raise ValueError("The weights are not those.")
        if how == "warns" and step == int(when):
            warnings.warn("The weights are not those.", stacklevel=1)
        if how == "logs" and step == int(when):
            logging.getLogger("another").warning("The weights are not those.")
        far = {"little": 0.3, "far": 1.0}.get(how, 0.0) if when == str(step) else 0.0
        yield {"ratio": step + 1 + (seed % 5) / 10 + far, "seconds": float(seed)}


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("stops@3", "stopped"), ("warns@2", "said"), ("logs@0", "said"), ("far@2", "visible in a metric"),
        ("little@1", "silent"), ("far@3", "silent"), ("nothing@0", "silent"),
    ],
)  # fmt: skip
def test_peers_are_judged_by_what_was_observed(frame: Any, how: str, found: str) -> None:
    case = frame.Case(lambda: faulty(how), seeded, "a name")
    assert frame.verdict(case)["verdict"] == found
    if how == "far@2":
        assert frame.verdict(case)["answer"] == "ratio: 4 instead of 3 to 3.4"


def test_a_clean_run_that_ends_shows_nothing(frame: Any) -> None:
    def broken(seed: int) -> Iterator[Mapping[str, float]]:
        yield {}
        raise ValueError("It never runs.")

    with pytest.raises(RuntimeError, match="It never runs"):
        frame.verdict(frame.Case(lambda: faulty("stops@0"), broken, "a name"))


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

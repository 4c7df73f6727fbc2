"""The page on loops: one file with a kind, a loop and a method is trained, resumed, evaluated, compared by its name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import etude
from etude.core.errors import ConfigError
from etude.runs.train import resume

DOCS = Path(__file__).resolve().parents[2] / "docs"
FILE = DOCS / "examples" / "cross_entropy.py"
ROUND = 4 * 50
OPTIONS = {"task": "cartpole", "set": {"candidates": 4, "steps": 50}, "seeds": 2, "evaluate": 2, "quiet": True}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the file in it, to work in as a reader would."""
    shutil.copy(FILE, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_shows_the_whole_file() -> None:
    text = FILE.read_text(encoding="utf-8").strip()
    assert f"```python\n{text}\n```" in (DOCS / "add-a-loop.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_it_is_trained_and_resumed_to_the_same_numbers(folder: Path) -> None:
    whole = etude.train("cross_entropy.py", out="whole", steps=4 * ROUND, **OPTIONS)
    assert (whole.method, whole.steps) == ("cross-entropy", 4)
    assert [line["environment_steps"] for line in whole.metrics] == [ROUND, 2 * ROUND, 3 * ROUND, 4 * ROUND]
    etude.train("cross_entropy.py", out="half", steps=2 * ROUND, **OPTIONS)
    again = resume(folder / "half", steps=4 * ROUND, quiet=True)
    for name in ("policy.safetensors", "state.safetensors"):
        assert (whole.checkpoint / name).read_bytes() == (again.checkpoint / name).read_bytes()
    assert again.evaluation["after"] == whole.evaluation["after"]


@pytest.mark.slow
def test_a_member_equals_its_own_run(folder: Path) -> None:
    both = etude.train("cross_entropy.py", out="both", steps=2 * ROUND, **OPTIONS)
    alone = etude.train("cross_entropy.py", out="alone", steps=2 * ROUND, seed=1, **{**OPTIONS, "seeds": 1})
    pairs = zip(both.metrics, alone.metrics, strict=True)
    for together, own in pairs:
        assert together["members"]["return"][1] == pytest.approx(own["members"]["return"][0], rel=1e-5)


@pytest.mark.slow
def test_it_is_evaluated_and_exported_like_any_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    etude.train("cross_entropy.py", out="run", steps=ROUND, **OPTIONS)
    assert json.loads((folder / "run/method.json").read_text())["type"] == "cross_entropy:SearchMethod"
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    found = etude.evaluate(folder / "run", episodes=3)["test"]
    assert set(found) == {"return", "return/deterministic"}
    assert len(found["return"].members) == 2
    assert etude.export(folder / "run", "policy.pt2").is_file()


@pytest.mark.slow
def test_what_its_loop_does_not_read_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--population means nothing for cross-entropy, a SearchMethod"):
        etude.train("cross_entropy.py", population=["gain=1,2"], **OPTIONS)
    with pytest.raises(ConfigError, match=r"CrossEntropy trains on the CPU alone: leave --device out\."):
        etude.train("cross_entropy.py", device="cuda", **OPTIONS)
    with pytest.raises(ConfigError, match=r"cross_entropy\.py learns in tasks of control, and this is one of language"):
        etude.train("cross_entropy.py", "compose")


@pytest.mark.slow
def test_it_learns_to_balance(folder: Path) -> None:
    """From 10 of 500 steps with all weights 0 to most of them, in ten rounds of the page's settings."""
    done = etude.train("cross_entropy.py", "cartpole", steps=80_000, seeds=3, evaluate=5, quiet=True)
    assert done.score("return/deterministic", when="before") < 15
    assert done.score("return/deterministic") > 200


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_it_is_compared_with_a_method_of_another_kind(folder: Path) -> None:
    found = etude.compare(["ppo", "cross_entropy.py"], "cartpole", seeds=2, steps=8000, workers=2, quiet=True)
    assert [len(arm.scores) for arm in found.comparison.arms] == [2, 2]

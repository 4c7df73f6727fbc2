"""Comparisons: planted differences are found, absent ones are not, and everything is written."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from etude.core.errors import ConfigError, DataError
from etude.evaluation.comparison import Comparison, compare_arms, difference
from etude.evaluation.intervals import interquartile_mean
from etude.runs.comparing import evaluations
from etude.runs.jobs import Job

RANDOM = np.random.default_rng(0)
STEPS = np.arange(0, 50, 10)
RISE = np.array([0.0, 0.2, 0.5, 0.7, 0.8])


def runs(count: int, gain: float = 0.0) -> np.ndarray:
    return RISE + gain + RANDOM.normal(0, 0.02, (count, 1))


def comparison(count: int = 5) -> Comparison:
    curves = {
        "grpo": {"compose": runs(count), "count": runs(count)},
        "dapo": {"compose": runs(count, 0.1), "count": runs(count, 0.1)},
        "same<b>": {"compose": runs(count), "count": runs(count)},
    }
    scores = {arm: {task: c[:, -1] for task, c in by_task.items()} for arm, by_task in curves.items()}
    return compare_arms(scores, curves, STEPS, metric="pass@1", about={"model": "tiny", "seeds": [0, 1]})


def test_planted_difference_is_found_and_its_absence_is_not() -> None:
    found = comparison()
    grpo, dapo, same = found.arms
    assert dapo.difference is not None and same.difference is not None and grpo.difference is None
    assert dapo.difference.low > 0.05 and dapo.difference.high < 0.15
    assert same.difference.low < 0 < same.difference.high
    assert found.improvement["dapo", "grpo"].value > 0.95
    assert 0.1 < found.improvement["same<b>", "grpo"].value < 0.9
    assert set(found.improvement) == {("dapo", "grpo"), ("same<b>", "grpo"), ("same<b>", "dapo")}
    assert grpo.iqm.value == interquartile_mean(grpo.scores)
    np.testing.assert_allclose(grpo.curves["compose"].x, STEPS)


def test_lower_is_better_turns_the_improvement_round() -> None:
    scores = {"a": {"t": [0.1, 0.2, 0.4]}, "b": {"t": [0.3, 0.5, 0.6]}}
    higher = compare_arms(scores).improvement["b", "a"].value
    lower = compare_arms(scores, direction="lower").improvement["b", "a"].value
    assert higher == pytest.approx(8 / 9) and lower == pytest.approx(1 / 9)


def test_an_error_that_runs_share_is_in_their_intervals_and_cancels_where_arms_share_it() -> None:
    """b and a are moved alike by every draw, c is not moved at all."""
    scores = {arm: {"t": RANDOM.normal(mean, 0.1, 12)} for arm, mean in (("a", 0.0), ("b", 0.05), ("c", 0.05))}
    moved = RANDOM.normal(0, 1.0, 20)
    shared = {"a": moved + 3, "b": moved, "c": np.zeros(20)}
    plain, found = compare_arms(scores), compare_arms(scores, shared=shared)
    a, b, c = (arm.iqm.high - arm.iqm.low for arm in found.arms)
    assert min(a, b) > 3.0 and c == pytest.approx(plain.arms[2].iqm.high - plain.arms[2].iqm.low)
    for name, arm, was in zip("bc", found.arms[1:], plain.arms[1:], strict=True):
        assert arm.difference is not None and was.difference is not None
        wide = found.improvement[name, "a"].high - found.improvement[name, "a"].low
        narrow = plain.improvement[name, "a"].high - plain.improvement[name, "a"].low
        if name == "b":
            ends, own = (arm.difference.low, arm.difference.high), (was.difference.low, was.difference.high)
            assert ends == pytest.approx(own) and wide == pytest.approx(narrow)
        else:
            assert arm.difference.low < -1 and arm.difference.high > 1 and wide == 1.0
        assert arm.difference.value == was.difference.value


def test_lower_is_better_is_moved_the_same_way() -> None:
    scores = {"a": {"t": [0.1, 0.2, 0.4]}, "b": {"t": [0.3, 0.5, 0.6]}}
    draws = {"a": [0.0, 0.0, 0.0, 0.0], "b": [-0.1, 0.0, 0.0, 0.3]}
    turned = {arm: {"t": [-x for x in by["t"]]} for arm, by in scores.items()}
    lower = compare_arms(scores, direction="lower", shared=draws).improvement["b", "a"]
    higher = compare_arms(turned, shared={k: [-x for x in v] for k, v in draws.items()}).improvement["b", "a"]
    assert lower == higher


def test_an_arm_whose_numbers_mean_nothing_says_so_wherever_they_are(tmp_path: Path) -> None:
    scores = {"bc": {"t": [0.1, 0.2, 0.4]}, "iql": {"t": [7.0, 8.0, 9.0]}}
    found = compare_arms(scores, doubts={"iql": "Q fed on itself"}, notes=["From logs."])
    from_it = compare_arms({**scores, "crr": scores["bc"]}, doubts={"bc": "Q fed on itself"})
    assert [arm.difference for arm in from_it.arms] == [None] * 3 and set(from_it.improvement) == {("crr", "iql")}
    assert found.notes[:2] == ("From logs.", "iql: Q fed on itself.")
    console = Console(file=io.StringIO(), width=120)
    console.print(found.table())
    assert "iql (means nothing)" in console.file.getvalue()  # type: ignore[attr-defined]
    found.write(tmp_path)
    page = (tmp_path / "comparison.html").read_text()
    assert "<td>iql (means nothing)</td>" in page and "iql</text>" not in page and "bc</text>" in page
    assert found.arms[1].difference is None and not found.improvement
    assert json.loads((tmp_path / "comparison.json").read_text())["arms"]["iql"]["doubt"] == "Q fed on itself"


@pytest.mark.slow
def test_comparison_is_written(tmp_path: Path) -> None:
    found = comparison()
    written = found.write(tmp_path / "out")
    assert [p.name for p in written.files] == ["comparison.json", "comparison.html", "curves.png"]
    assert written.notes == []
    data = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert data["arms"]["dapo"]["iqm"]["value"] == found.arms[1].iqm.value
    assert data["arms"]["dapo"]["scores"]["count"] == found.arms[1].scores[:, 1].tolist()
    assert data["improvement"][0]["better"] == "dapo" and data["improvement"][0]["than"] == "grpo"
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert "same&lt;b&gt;" in page and "same<b>" not in page
    assert page.count("<svg") == 4  # final scores, improvement, a curve for each task
    assert "<script" not in page and "src=" not in page


@pytest.mark.slow
def test_curves_say_what_is_plotted_and_evaluations_are_points(tmp_path: Path) -> None:
    """The curve is the reward in training, which is not the accuracy on the test split that arms are compared by."""
    reward, before, after = runs(3), [[0.1], [0.2], [0.3]], [[0.7], [0.8], [0.9]]
    points = np.concatenate([before, after], 1)
    found = compare_arms(
        {"grpo": {"compose": points[:, 1]}}, {"grpo": {"compose": reward}}, STEPS,
        evaluated={"grpo": {"compose": points}}, evaluated_at=[0, 40],
        metric="pass@1 (test)", curve="training reward", axis="training steps",
    )  # fmt: skip
    assert [(what, task, list(bands)) for what, task, bands in found.panels()] == [
        ("pass@1 (test)", "compose", ["grpo"]), ("training reward", "compose", ["grpo"]),
    ]  # fmt: skip
    np.testing.assert_allclose(found.arms[0].evaluated["compose"].x, [0, 40])
    np.testing.assert_allclose(found.arms[0].evaluated["compose"].value, [0.2, 0.8])
    found.write(tmp_path)
    page = (tmp_path / "comparison.html").read_text()
    charts = page[page.index("Learning curves") :].split("<svg")[1:]
    assert ">training reward</text>" in charts[1] and ">pass@1 (test)</text>" not in charts[1]
    assert ">pass@1 (test)</text>" in charts[0] and charts[0].count("<circle") == 2
    assert all(">training steps</text>" in chart for chart in charts)
    data = json.loads((tmp_path / "comparison.json").read_text())
    assert data["curve"] == "training reward" and data["arms"]["grpo"]["evaluated"]["compose"][
        "value"
    ] == pytest.approx([0.2, 0.8])


def test_evaluations_of_every_seed_are_read(tmp_path: Path) -> None:
    sides = [{"before": {"test": {"pass@1": {"value": 0.1}}}, "after": {"test": {"pass@1": {"value": 0.7}}}},
             {"after": {"test": {"pass@1": {"value": 0.5, "members": [0.4, 0.6]}}}}]  # fmt: skip
    jobs = []
    for number, found in enumerate(sides):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "evaluation.json").write_text(json.dumps(found))
        jobs.append(Job("grpo", "compose", "tiny", 0, 40, (), tmp_path / str(number)))
    first, second, third = evaluations(jobs, "pass@1", "test", [0, 40])
    assert list(first) == [0.1, 0.7]
    assert np.isnan([second[0], third[0]]).all() and (second[1], third[1]) == (0.4, 0.6)


def test_evaluations_in_between_are_read_where_they_were_made(tmp_path: Path) -> None:
    """Two training steps of 16 environment steps each make the budget of 32; a look after the first."""
    sides = {"before": {"test": {"return": {"value": 1.0, "members": [0.0, 2.0]}}},
             "after": {"test": {"return": {"value": 5.0, "members": [4.0, 6.0]}}}}  # fmt: skip
    (tmp_path / "evaluation.json").write_text(json.dumps(sides))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    lines = [{"step": k, "test": {"return": values}} for k, values in ((1, [1.0, 5.0]), (2, [4.0, 6.0]))]
    (tmp_path / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = evaluations([Job("ppo", "cartpole", "", 0, 32, (), tmp_path, members=2)], "return", "test", [0, 8, 16, 32])
    assert found == [[0.0, 0.5, 1.0, 4.0], [2.0, 3.5, 5.0, 6.0]]


def test_numbers_repeat(tmp_path: Path) -> None:
    scores = {"a": {"t": RANDOM.random(12)}, "b": {"t": RANDOM.random(12)}}
    assert compare_arms(scores, seed=3).to_json() == compare_arms(scores, seed=3).to_json()
    assert compare_arms(scores, seed=3).to_json() != compare_arms(scores, seed=4).to_json()


def test_without_matplotlib_the_figure_is_left_out_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in [m for m in sys.modules if m.startswith("matplotlib")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    written = comparison().write(tmp_path)
    assert [p.name for p in written.files] == ["comparison.json", "comparison.html"]
    assert "curves.png was left out" in written.notes[0] and "etude[plots]" in written.notes[0]


def test_table_says_what_it_measures() -> None:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(comparison(count=3).table())
    text = console.export_text()
    assert "P(better than grpo)" in text and "same<b>" in text
    assert "With 3 runs per arm" in text
    assert comparison(count=12).notes == ()


def test_points_that_some_run_lacks_are_left_out_and_counted() -> None:
    curves = np.array([[0.1, 0.2, np.nan], [0.1, 0.3, 0.4]])
    found = compare_arms({"a": {"t": [0.3, 0.4]}}, {"a": {"t": curves}}, [5, 10, 15])
    assert found.arms[0].curves["t"].x.tolist() == [5, 10]
    assert any("without 1 of 3 points" in note for note in found.notes)


def test_one_arm_or_one_run_is_shown_without_pretence(tmp_path: Path) -> None:
    alone = compare_arms({"a": {"t": [0.5]}})
    assert alone.improvement == {}
    alone.write(tmp_path)
    pair = compare_arms({"a": {"t": [0.5]}, "b": {"t": [0.9]}})
    assert pair.arms[1].difference is not None and pair.arms[1].difference.low == -np.inf
    pair.write(tmp_path)
    assert json.loads((tmp_path / "comparison.json").read_text())["arms"]["b"]["difference"]["low"] is None


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        ({}, "nothing to compare"),
        ({"a": {}}, "nothing to compare"),
        ({"a": {"t": [1.0]}, "b": {"u": [1.0]}}, r"b has \['u'\], not \['t'\]"),
        ({"a": {"t": [1.0], "u": [1.0, 2.0]}}, "as many on every task"),
        ({"a": {"t": [1.0, float("nan")]}}, "finite"),
    ],
)
def test_uneven_arms_are_refused(scores: dict, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        compare_arms(scores)


def test_ten_runs_use_the_bootstrap() -> None:
    many, more = RANDOM.normal(1, 0.1, 10), RANDOM.normal(0, 0.1, 10)
    assert difference(many, more, seed=1).method == "bootstrap"
    assert difference(many, more, seed=1) == difference(many, more, seed=1)
    assert difference(many[:9], more).method == "welch"


def test_a_direction_is_one_of_two() -> None:
    with pytest.raises(ConfigError, match="'higher' or 'lower', got 'up'"):
        compare_arms({"a": {"t": [1.0]}, "b": {"t": [2.0]}}, direction="up")  # type: ignore[arg-type]

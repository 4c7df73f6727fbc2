"""Across sizes: rank correlations against SciPy, what is trained, what is refused, the page, a small run of it all."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import across_sizes as study  # noqa: E402
from sizes import cases as module  # noqa: E402
from sizes.cases import CASES, FACTORS, LEVELS, RATE, READ, SIZES, Case, Size, arms, given, known  # noqa: E402
from sizes.effects import Measured, effects, measured, recorded, waiting  # noqa: E402
from sizes.page import compared, page, said, signs  # noqa: E402
from sizes.ranks import LEAST, agreement, kendall, repeated, spearman  # noqa: E402
from sizes.runs import begun, measure, settled  # noqa: E402

from etude.core.errors import ConfigError, DataError, UnknownNameError  # noqa: E402
from etude.evaluation.verdicts import paired_interval  # noqa: E402
from etude.optimizers.adam import automatic_rate  # noqa: E402
from etude.runs.beds import load_bed  # noqa: E402
from etude.runtime.jsonl import JsonLines  # noqa: E402

# Rank correlations


def test_rank_correlations_are_those_of_scipy_with_ties_too() -> None:
    random = np.random.default_rng(0)
    x, y = (random.integers(0, 6, (20, 9)).astype(float) for _ in range(2))
    assert spearman(x, y) == pytest.approx([stats.spearmanr(a, b).statistic for a, b in zip(x, y)], abs=1e-12)
    assert kendall(x, y) == pytest.approx([stats.kendalltau(a, b).statistic for a, b in zip(x, y)], abs=1e-12)
    assert np.isnan([spearman([1, 1, 1], [1, 2, 3]), kendall([1, 2, 3], [2, 2, 2])]).all()


def test_rank_correlations_by_hand() -> None:
    """Of 1 2 3 4 against 1 3 2 4: 1 - 6 * 2 / (4 * 15) = 0.8, and five pairs of six alike: (5 - 1) / 6."""
    assert float(spearman([1, 2, 3, 4], [1, 3, 2, 4])) == pytest.approx(0.8)
    assert float(kendall([1, 2, 3, 4], [1, 3, 2, 4])) == pytest.approx(4 / 6)


def noisy(seed: int, spread: float = 0.02) -> np.ndarray:
    """Effects of ten methods from 0 to 0.9, with three seeds."""
    return np.arange(10)[:, None] / 10 + np.random.default_rng(seed).normal(0, spread, (10, 3))


def test_the_interval_is_the_same_for_the_same_seed_and_holds_what_it_should() -> None:
    one, other = noisy(0, 0.15), noisy(1, 0.15)
    found = agreement(one, other, rng=3)
    assert found == agreement(one, other, rng=3) != agreement(one, other, rng=4)
    assert found.spearman.value == pytest.approx(stats.spearmanr(one.mean(1), other.mean(1)).statistic)
    assert 0.4 < found.spearman.low < found.spearman.value < found.spearman.high <= 1
    assert 0.3 < found.kendall.low < found.kendall.value
    turned = agreement(one, -other, rng=3)
    assert turned.spearman.high < -0.4


@pytest.mark.slow
def test_of_unrelated_effects_the_interval_mostly_holds_0() -> None:
    random = np.random.default_rng(5)
    holds = 0
    for k in range(100):
        x, y = (random.normal(0, 1, (12, 1)) + random.normal(0, 0.1, (12, 3)) for _ in range(2))
        found = agreement(x, y, resamples=400, rng=k).spearman
        holds += found.low < 0 < found.high
    assert holds >= 85, "a percentile interval of twelve is a little too narrow, and no more"


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (noisy(0)[:3], noisy(1)[:3], f"at least {LEAST} effects that both sizes have, got 3"),
        (noisy(0), noisy(1)[:9], r"same methods at both sizes, got \(10, 3\), \(9, 3\)"),
        (noisy(0), np.ones((10, 3)), "no order to be compared"),
    ],
)
def test_what_has_no_order_is_refused(x: np.ndarray, y: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        agreement(x, y)


def test_a_size_agrees_with_itself_as_far_as_its_seeds_do() -> None:
    """What a baseline's seed does to all effects alike moves none past another."""
    alike = np.arange(8)[:, None] / 10 + np.array([-0.5, 0.1, 0.9])
    assert repeated(alike) == pytest.approx(1.0)
    assert repeated(noisy(0, 0.01)) > 0.97 > repeated(noisy(0, 0.4)) > -0.2
    two = np.array([[0.0, 0.0, 0.0], [0.1, -0.05, 0.2]])  # each repetition has them in order with this chance
    chance = stats.norm.cdf(two[1].mean() / stats.sem(two[1]))
    assert repeated(two) == pytest.approx((2 * chance - 1) ** 2, abs=0.05)
    with pytest.raises(DataError, match="two seeds of each"):
        repeated(alike[:, :1])


# What is trained


def test_every_case_has_a_method_and_a_bed_and_there_are_more_than_ten() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 10
    assert {case.method for case in CASES if case.claim} == {"sft", "grpo", "rloo", "dr-grpo", "lite-ppo", "dapo"}
    for level in LEVELS:
        labels = [arm.label for arm in arms(level, CASES, 1e-4)]
        needed = {case.baseline for case in CASES if case.level == level}
        assert len(set(labels)) == len(labels) and needed <= set(labels)
        assert set(labels) == needed | {case.name for case in CASES if case.level == level}
    changes = {arm.label: arm.changes for arm in arms("easy", CASES, 1e-4)}
    assert changes["grpo, twice the rate"] == {RATE: 2e-4}
    assert changes["grpo, 4 updates"] == {"minibatches": 4} and changes["rft"] == {}


@pytest.mark.slow
def test_sizes_differ_in_their_model_and_their_rates_alone() -> None:
    """The same chains, budgets and tests; the larger ones have read the same examples, on both levels."""
    for level, name in LEVELS.items():
        for size in SIZES[1:]:
            own, smallest = known(size).beds[level], load_bed(name)
            assert replace(own, **{k: getattr(smallest, k) for k in ("name", "about", "start", "sweep")}) == smallest
            assert list(own.sweep) == [RATE] and len(own.sweep[RATE]) == 3
    starts = {size: [bed.start for bed in known(size).beds.values()] for size in SIZES[1:]}
    assert all(easy == medium for easy, medium in starts.values())
    shown = [{k: v for k, v in easy.set.items() if k.startswith("task.")} for easy, _ in starts.values() if easy]
    assert shown[0] == shown[1]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "millions"), [("0.5m", 0.5), ("3m", 3.0), ("12m", 12.0)])
def test_sizes_are_what_they_are_called(size: str, millions: float) -> None:
    bed = known(size).first
    count = module.parameters(bed.start.model if bed.start else bed.model)
    assert count / 1e6 == pytest.approx(millions, rel=0.12)


def test_a_model_of_ones_own_reads_the_same_and_is_swept_around_its_automatic_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "parameters", lambda _: 1_500_000_000)
    own, found = automatic_rate(1_500_000_000), given("models/my model", 70)
    assert found.name == "my-model"
    easy, medium = found.beds["easy"], found.beds["medium"]
    assert (easy.name, medium.name) == ("language/compose-easy-my-model", "language/compose-medium-my-model")
    assert easy.start is not None and easy.start == medium.start
    assert (easy.start.model, easy.start.steps, easy.start.set["task.care"]) == ("models/my model", 70, 0.12)
    assert easy.start.set[RATE] == 10 * own and easy.sweep[RATE] == [own * factor for factor in FACTORS]
    slower = given("models/my model", rate=3e-5).first.start
    assert slower is not None and (slower.set[RATE], slower.steps) == (3e-5, READ)


# What is refused


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (["--seeds", "1"], "wants at least 2 seeds, got --seeds 1"),
        (["--sizes", "30m"], "no size named '30m'"),
        (["--methods", "rftt"], "no effect named 'rftt'. Did you mean 'rft'"),
        (["--read-steps", "5"], "--read-steps and --read-rate are of a --model"),
        (["--model", "somewhere/3m"], "recorded as 3m, which is one of etude's sizes: rename"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_sentence(
    told: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study.main([*told, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("found", "advice"), [(0.02, "Read more"), (0.9, "Read fewer")])
def test_a_start_unlike_the_others_is_refused(found: float, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size = known("0.5m")
    scores = {"test": {"pass@1": paired_interval([found, found], 0.0)}}
    monkeypatch.setattr("etude.runs.evaluate.evaluate", lambda *_, **__: scores)
    with pytest.raises(ConfigError, match=rf"gets {found:.3f} of the test .* between 0.25 and 0.45.* {advice}"):
        begun(size, "easy", size.beds["easy"], Path("nowhere"))


@pytest.mark.slow
def test_runs_of_another_machine_are_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "size.json"
    path.write_text(json.dumps({"size": "0.5m", "recipes": "another", "state": "another"}))
    with pytest.raises(ConfigError, match=r"another recipes, state .*move it away"):
        settled(known("0.5m"), path, tmp_path, 1)
    with pytest.raises(UnknownNameError, match="--model takes any other model"):
        known("1m")


# Effects and the page


def lines(areas: Mapping[str, Sequence[float]], points: int) -> list[dict[str, Any]]:
    """Runs that began at 0.3."""
    return [
        {"arm": arm, "setting": "published", "seed": 1000 + i, "curve": [0.3, *[area] * (points - 1)], "area": area,
         "end": area, "tuned": {}, "completions": 10.0}
        for arm, own in areas.items() for i, area in enumerate(own)
    ]  # fmt: skip


def test_effects_are_paired_and_in_units_of_headroom() -> None:
    """The baseline's mean of 0.6 leaves 0.4."""
    bed = load_bed(LEVELS["easy"])
    found = effects(bed, lines({"grpo": [0.5, 0.6, 0.7], "rft": [0.6, 0.72, 0.78]}, 5))["rft"]
    assert found.each == pytest.approx(np.array([0.1, 0.12, 0.08]) / 0.4)
    by_hand = stats.ttest_rel([0.6, 0.72, 0.78], [0.5, 0.6, 0.7]).confidence_interval(0.95)
    assert (found.row.gap.low, found.row.gap.high) == pytest.approx((by_hand.low / 0.4, by_hand.high / 0.4))


def record(folder: Path, parameters: int, turned: int = 1) -> None:
    """A size whose effects are in the order of the cases, or in the opposite one."""
    folder.mkdir(parents=True)
    own = {level: {"bed": name, "steps": load_bed(name).steps, "every": load_bed(name).test.every, "start": 0.3}
           for level, name in LEVELS.items()}  # fmt: skip
    about = {
        "size": folder.name,
        "parameters": parameters,
        "levels": own,
        "sweep": {f"{RATE}=0.0001": 0.5},
        "rate": 1e-4,
    }
    (folder / "size.json").write_text(json.dumps(about))
    random = np.random.default_rng(0)
    rank = {case.name: turned * (i - len(CASES) / 2) / 100 for i, case in enumerate(CASES)}
    for level in LEVELS:
        areas = {
            arm.label: [0.6 + wiggle + (rank[arm.label] if arm.label not in ("grpo", "reinforce") else 0.0)
                        + random.normal(0, 1e-4)
                        for wiggle in (-0.01, 0.0, 0.01)]
            for arm in arms(level, CASES, 1e-4)
        }  # fmt: skip
        text = (json.dumps(line) + "\n" for line in lines(areas, len(load_bed(LEVELS[level]).looks)))
        (folder / f"{level}.jsonl").write_text("".join(text))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("turned", "sentence"), [(1, "methods come in much the same order"), (-1, "what helps one hurts the other")]
)
def test_the_page_says_what_the_correlation_is(turned: int, sentence: str, tmp_path: Path) -> None:
    record(tmp_path / "0.5m", 531_712)
    record(tmp_path / "12m", 12_000_000, turned)
    found = recorded(tmp_path, CASES)
    assert [size.name for size in found] == ["0.5m", "12m"] and waiting(found) == ["3m"]
    text = page(found, CASES, tmp_path / "images")
    (pair,) = compared(found, CASES)
    assert pair.found.spearman.value == pytest.approx(turned, abs=0.01)
    assert said(pair) in text and sentence in text and "Not measured yet: 3m." in text
    assert f"| 0.53 M, 12 M | {len(CASES)} | {turned:+.2f}" in text
    other = "0 on the other" if turned == 1 else "0 do so on the same side"
    assert other in signs(pair)
    assert (tmp_path / "images" / "across-sizes.png").stat().st_size > 10_000
    assert text == page(found, CASES, tmp_path / "images")


def test_without_two_sizes_there_is_no_answer(tmp_path: Path) -> None:
    record(tmp_path / "3m", 3_100_000)
    found = recorded(tmp_path, CASES)
    text = page(found, CASES, tmp_path)
    assert "**There is no answer yet**" in text and "Not measured yet: 0.5m and 12m." in text
    assert "| [rft](methods/rft.md) | grpo | two |" in text and not list(tmp_path.glob("*.png"))


def test_what_could_not_be_trained_is_named(tmp_path: Path) -> None:
    record(tmp_path / "3m", 3_100_000)
    path = tmp_path / "3m" / "easy.jsonl"
    kept = [line for line in JsonLines.read(path) if line["arm"] != "nft"]
    kept.append({"arm": "nft", "setting": "published", "failed": "It broke."})
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    size: Measured = measured(tmp_path / "3m", CASES)
    assert "nft" not in size.effects and size.missing == {"nft": "It broke."}
    assert "nft was left out at 3m: It broke." in page([size], CASES, tmp_path)


@pytest.mark.slow
def test_the_stored_page_is_up_to_date(tmp_path: Path) -> None:
    """`python benchmarks/across_sizes.py --page` writes it from the records."""
    stored = (ROOT / "docs" / study.NAME).read_text(encoding="utf-8")
    assert stored == page(recorded(study.KEPT, CASES), CASES, tmp_path)


# All of it, small

SMALL = (Case(method="sft"), Case(method="dpo"))


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_a_size_is_measured_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start is made and looked at, the rate swept, arms trained at it; nothing twice, and no weights stay."""
    bed = known("3m").beds["easy"]
    assert bed.start is not None
    start = replace(bed.start, model="blank:1x32", steps=1)
    test = replace(bed.test, every=2, problems=4, samples=1)
    tiny = replace(bed, start=start, steps=2, test=test, sweep={RATE: [1e-4, 1e-3]}, set={**bed.set, "problems": 2})
    size = Size("small", {"easy": tiny})
    root, out = tmp_path / "runs", tmp_path / "out"
    monkeypatch.setattr("sizes.runs.STARTS", {"easy": (0.0, 1.0)})
    measure(size, SMALL, out, seeds=1, root=root, workers=1)
    about = json.loads((out / "small" / "size.json").read_text())
    assert about["rate"] in tiny.sweep[RATE] and len(about["sweep"]) == 2
    there = list(JsonLines.read(out / "small" / "easy.jsonl"))
    assert [line["arm"] for line in there] == ["grpo", "sft", "dpo"]
    assert "no 'chosen' answer" in there[-1]["failed"]
    trained = {path: path.stat().st_mtime_ns for path in root.rglob("metrics.jsonl")}
    weights = {path.relative_to(root).parts[0] for path in root.rglob("*.safetensors")}
    assert len(trained) == 1 + 4 + 2 and weights == {"starts"}
    rates = [x["learning_rate"] for path in trained if "/sft" in str(path) and "seed-1" in str(path)
             for x in JsonLines.read(path)]  # fmt: skip
    assert rates == [about["rate"]] * 2
    measure(size, SMALL, out, seeds=1, root=root, workers=1)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("metrics.jsonl")} == trained

"""The record of what problems were worth in each epoch: what it takes from batches, and what comes back of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem
from etude.core.errors import CheckpointError, ConfigError
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.curricula.epochs import EpochMeans, Recorded, variance
from etude.curricula.first import FirstProblems
from etude.curricula.uniform import Uniform
from language_toys import make_loop

POOL = [Problem(f"p{i}", "?") for i in range(5)]


def remembered(**means: list[float]) -> EpochMeans:
    record = EpochMeans().bind()
    for problem, values in means.items():
        for value in values:
            record.visit(problem, value)
    return record


def test_variance_is_over_all_epochs_and_their_order_does_not_matter() -> None:
    values = np.random.default_rng(0).integers(0, 9, 12) / 8
    assert variance(values.tolist()) == pytest.approx(np.var(values), abs=1e-15)
    few = [0.1, 0.7, 0.3, 0.9]
    assert len({variance(list(order)) for order in itertools.permutations(few)}) == 1
    assert variance([]) == variance([0.7]) == 0.0


def test_ranking_by_variance_is_ranking_by_deviation() -> None:
    random = np.random.default_rng(1)
    means = {f"p{i:03}": (random.integers(0, 9, 20) / 8).tolist() for i in range(200)}
    deviation = {p: float(np.sqrt(variance(v))) for p, v in means.items()}
    assert len(set(deviation.values())) > 100
    assert remembered(**means).ranked() == sorted(means, key=lambda p: (-deviation[p], p))


def test_equal_variances_come_by_id_however_they_were_met() -> None:
    one = remembered(b=[0.0, 1.0], a=[1.0, 0.0], c=[0.5, 0.5])
    other = remembered(c=[0.5, 0.5], a=[1.0, 0.0], b=[0.0, 1.0])
    assert one.ranked() == other.ranked() == ["a", "b", "c"]


def test_a_group_is_one_visit_and_written_rows_are_none(make_batch: Callable[..., TokenBatch]) -> None:
    """A problem that ends one pass and begins the next has two groups in a step: two epochs."""
    names = ["x", "x", "y", "y", "x", "x", "y"]
    batch = make_batch(
        [[1]] * 7, scores=[1.0, 0.0, 0.25, 0.5, 1.0, 1.0, 1.0], group=[0, 0, 1, 1, 2, 2, 1],
        episodes=[Episode(Problem(n, "?"), []) for n in names], written=torch.tensor([False] * 6 + [True]),
    )  # fmt: skip
    part = Recorded().bind()
    part.before_update(batch)
    assert part.record.means("x") == [0.5, 1.0] and part.record.means("y") == [0.375]
    assert part.record.means("z") == [] and part.record.variance("x") == 0.0625


def test_it_chooses_what_the_other_curriculum_does() -> None:
    part, plain = Recorded().bind(), Uniform().bind()
    for step in range(4):
        assert part.choose(POOL, 3, Stream(step)) == plain.choose(POOL, 3, Stream(step))


def test_of_a_pool_only_its_first_problems_come_and_are_recorded() -> None:
    part = Recorded(of=FirstProblems(size=2)).bind()
    assert part.chooses_ahead
    for step in range(3):
        assert sorted(p.id for p in part.choose(POOL, 4, Stream(step))) == sorted(2 * [p.id for p in POOL[:2]])
    whole = FirstProblems(size=99).bind()
    assert whole.choose(POOL, 5, Stream(0)) == Uniform().bind().choose(POOL, 5, Stream(0))


@pytest.mark.slow
def test_in_a_run_the_visits_of_a_problem_are_its_epochs(tmp_path: Path) -> None:
    """Three problems, two in a step: after 6 steps each was met in 4 epochs; what was saved goes on to the same."""
    method = get_method("grpo").replace(problems=2, curriculum=Recorded())
    loop = make_loop(method, steps=6)
    paid: dict[str, list[float]] = {}
    for step in range(6):
        report = loop.step()
        visits: dict[tuple[int, str], list[float]] = {}
        for row in report.episodes:
            visits.setdefault((row["group"], row["id"]), []).append(row["reward"])
        for (_, problem), rewards in sorted(visits.items()):
            paid.setdefault(problem, []).append(sum(rewards) / len(rewards))
        if step == 2:
            loop.save(tmp_path)
    record = loop.method.curriculum.record  # type: ignore[attr-defined]
    assert {p: len(record.means(p)) for p in paid} == {"train-0": 4, "train-1": 4, "train-2": 4}
    assert all(record.means(p) == pytest.approx(v, abs=1e-6) for p, v in paid.items())
    again = make_loop(method, steps=6)
    again.load(tmp_path)
    assert again.method.curriculum.record.state != record.state  # type: ignore[attr-defined]
    for _ in range(3):
        again.step()
    assert again.method.curriculum.record.state == record.state  # type: ignore[attr-defined]
    assert EpochMeans.of_run(tmp_path).state != record.state
    loop.save(tmp_path)
    for place in (tmp_path, tmp_path / "state.json", tmp_path / "model"):
        assert EpochMeans.of_run(place).state == record.state


def test_a_run_without_a_record_is_refused(tmp_path: Path) -> None:
    make_loop(get_method("grpo")).save(tmp_path)
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match="has no record"):
            EpochMeans.of_run(place)
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        EpochMeans.of_run(tmp_path / "run")

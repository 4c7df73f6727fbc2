"""DUMP: the bandit's chances in their limits, what it takes from batches, and where it goes on a mix of kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from etude.advantages.group import GroupAdvantage, GroupMean, GroupStd
from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.curricula.uniform import Uniform
from etude.methods.rlvr.dump import LearnabilityBandit
from language_toys import Toy, make_loop

KINDS = ["easy", "edge", "hard"]


def told(part: LearnabilityBandit, sizes: dict[str, tuple[float, int]]) -> LearnabilityBandit:
    part = part.bind()
    for kind, (size, count) in sizes.items():
        part.notice(kind, [size] * count)
    return part


def test_what_was_seen_alike_is_drawn_alike() -> None:
    assert LearnabilityBandit().bind().chances(KINDS).tolist() == pytest.approx([1 / 3] * 3, abs=1e-12)
    even = told(LearnabilityBandit(), dict.fromkeys(KINDS, (0.3, 40)))
    assert even.chances(KINDS).tolist() == pytest.approx([1 / 3] * 3, abs=1e-12)


def test_the_temperature_goes_from_the_best_to_all_alike() -> None:
    seen = {"easy": (0.0, 30), "edge": (0.5, 50), "hard": (0.1, 20)}
    hot, cold = (told(LearnabilityBandit(tau=tau), seen).chances(KINDS) for tau in (1e6, 1e-4))
    assert hot.tolist() == pytest.approx([1 / 3] * 3, abs=1e-5)
    scores = [size + np.sqrt(2 * np.log(100 + 1) / (count + 1)) for size, count in seen.values()]
    assert int(cold.argmax()) == int(np.argmax(scores)) == 1
    assert cold[1] == pytest.approx(1.0, abs=1e-9)


def test_chances_are_those_of_the_equation() -> None:
    part = told(LearnabilityBandit(tau=0.2), {"easy": (0.05, 64), "edge": (0.4, 16)})
    total = 80
    scores = [0.05 + np.sqrt(2 * np.log(total + 1) / 65), 0.4 + np.sqrt(2 * np.log(total + 1) / 17),
              np.sqrt(2 * np.log(total + 1))]  # fmt: skip
    wanted = np.exp(np.array(scores) / 0.2) / np.exp(np.array(scores) / 0.2).sum()
    np.testing.assert_allclose(part.chances(KINDS), wanted, atol=1e-12)


def test_what_is_always_or_never_solved_has_a_bonus_alone_which_falls() -> None:
    part = told(LearnabilityBandit(), {"easy": (0.0, 10)})
    assert part.learnability("easy") == 0.0
    before = part.chances(["easy", "edge"])[0]
    part.notice("easy", [0.0] * 50)
    assert part.chances(["easy", "edge"])[0] < before


def size_of(right: int, scale: GroupStd | None, make_batch: Callable[..., TokenBatch]) -> float:
    """L of a kind of which one group of ten was seen, so many of them right."""
    scores, problem = [1.0] * right + [0.0] * (10 - right), Problem("x", "?", level="coin")
    batch = make_batch([[1]] * 10, scores=scores, episodes=[Episode(problem, []) for _ in scores])
    part = LearnabilityBandit(credit=GroupAdvantage(centre=GroupMean(), scale=scale)).bind()
    part.before_update(batch)
    assert part.state["count"] == {"coin": 10}
    return part.learnability("coin")


@pytest.mark.parametrize("right", range(11))
def test_advantages_of_a_coin_are_those_of_algebra(right: int, make_batch: Callable[..., TokenBatch]) -> None:
    """E|A| = 2 p (1 - p), or 2 sqrt(p (1 - p)) with the deviation: 0.18 and 0.6 at p = 0.1."""
    p = right / 10
    assert size_of(right, None, make_batch) == pytest.approx(2 * p * (1 - p), abs=1e-12)
    wanted = 2 * np.sqrt(p * (1 - p))
    assert size_of(right, GroupStd(epsilon=0.0), make_batch) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("scale", [None, GroupStd(epsilon=0.0)])
def test_a_coin_that_is_right_half_of_the_time_has_the_largest(
    scale: GroupStd | None, make_batch: Callable[..., TokenBatch]
) -> None:
    found = [size_of(right, scale, make_batch) for right in range(11)]
    assert int(np.argmax(found)) == 5 and sorted(found)[-2] < found[5]


def test_only_the_last_of_a_kind_count(make_batch: Callable[..., TokenBatch]) -> None:
    part = told(LearnabilityBandit(window=4), {"edge": (1.0, 10)})
    part.notice("edge", [0.0, 0.5])
    assert part.learnability("edge") == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert part.state["count"] == {"edge": 12}


def test_written_rows_tell_it_nothing(make_batch: Callable[..., TokenBatch]) -> None:
    episodes = [Episode(Problem("x", "?", level=kind), []) for kind in ("edge", "edge", "shown")]
    batch = make_batch([[1]] * 3, scores=[1.0, 0.0, 1.0], episodes=episodes, written=torch.tensor([False, False, True]))
    part = LearnabilityBandit().bind()
    part.before_update(batch)
    assert part.state["count"] == {"edge": 2}


def test_with_one_kind_it_draws_every_problem_as_often() -> None:
    pool = [Problem(str(i), "?", level="one") for i in range(8)]
    drawn = Counter(p.id for k in range(200) for p in LearnabilityBandit().bind().choose(pool, 8, Stream(k)))
    assert set(drawn) == {str(i) for i in range(8)}
    assert max(abs(n - 200) for n in drawn.values()) < 5 * np.sqrt(200)
    assert isinstance(get_method("grpo").curriculum, Uniform)


def test_it_moves_to_the_edge_and_leaves_what_cannot_be_learned() -> None:
    """Kinds solved always, half of the time, and never: after 40 steps more than two thirds are of the middle."""
    pool = [Problem(f"{kind}/{i}", "?", level=kind) for kind in KINDS for i in range(20)]
    part, rates = LearnabilityBandit().bind(), {"easy": 1.0, "edge": 0.5, "hard": 0.0}
    drawn: Counter[str] = Counter()
    for step in range(60):
        problems = part.choose(pool, 16, Stream(step))
        for problem in problems:
            part.notice(problem.level, [2 * rates[problem.level] * (1 - rates[problem.level])] * 8)
        if step >= 40:
            drawn.update(p.level for p in problems)
    assert drawn["edge"] > 2 / 3 * drawn.total()
    assert min(drawn.values()) > 0


def test_it_says_how_many_of_a_step_are_of_each_kind() -> None:
    pool = [Problem(f"{kind}/{i}", "?", level=kind) for kind in ("", *KINDS) for i in range(5)]
    part, drawn = LearnabilityBandit().bind(), list[Problem]()
    for round_ in range(2):
        drawn += part.choose(pool, 12, Stream(round_))
    wanted = {f"draws/{kind}": sum(p.level == kind for p in drawn) for kind in KINDS}
    assert part.counts() == wanted and 0 < sum(wanted.values()) < 24, "what has no kind is not named"
    assert part.counts() == {}


class Levels(Toy):
    """Problems of two kinds in turn."""

    def problems(self, split: str) -> list[Problem]:
        return [replace(p, level=("even", "odd")[i % 2]) for i, p in enumerate(super().problems(split))]


class Noted(LearnabilityBandit):
    """Keeps what it chose, by kind."""

    chosen: ClassVar[Counter[str]] = Counter()

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        found = super().choose(pool, count, stream)
        self.chosen.update(p.level for p in found)
        return found


@pytest.mark.slow
def test_a_step_reports_the_draws_of_each_kind() -> None:
    method: Any = get_method("dump")
    loop, kinds = make_loop(method.replace(problems=6, curriculum=Noted()), Levels(), steps=3), set[str]()
    for _ in range(3):
        Noted.chosen.clear()
        metrics = loop.step().metrics
        assert {k: v for k, v in metrics.items() if k.startswith("draws/")} == {
            f"draws/{kind}": n for kind, n in Noted.chosen.items()
        }
        assert Noted.chosen.total() == 6
        kinds |= set(Noted.chosen)
    assert kinds == {"even", "odd"}

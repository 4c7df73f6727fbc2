"""DUMP: the bandit's chances in their limits, what it takes from batches, and where it goes on a mix of kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

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
    assert cold.max() == pytest.approx(1.0, abs=1e-9)


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


@pytest.mark.parametrize(("scale", "wanted"), [(None, 0.18), (GroupStd(epsilon=0.0), 0.6)])
def test_advantages_of_a_coin_are_those_of_algebra(scale: GroupStd | None, wanted: float, make_batch) -> None:
    """p = 0.1, one right answer in ten: E|A| = 2 p (1 - p), or 2 sqrt(p (1 - p)) with the deviation."""
    scores = [1.0] + [0.0] * 9
    problem = Problem("x", "?", level="coin")
    batch = make_batch([[1]] * 10, scores=scores, episodes=[Episode(problem, []) for _ in scores])
    part = LearnabilityBandit(credit=GroupAdvantage(centre=GroupMean(), scale=scale)).bind()
    part.before_update(batch)
    assert part.learnability("coin") == pytest.approx(wanted, abs=1e-12)
    assert part.state["count"] == {"coin": 10}


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

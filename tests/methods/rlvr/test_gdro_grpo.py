"""Prompt-GDRO and Rollout-GDRO: the adversary's closed form, the square-root law, and when they are GRPO."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.curricula.outcomes import Outcomes
from etude.experience.groups import Groups
from etude.methods.rlvr.gdro_grpo import (
    PromptGDRO,
    RolloutGDRO,
    SquareRootRollouts,
    bin_means,
    choose,
    square_root,
)
from etude.runs.training import compose_method
from language_toys import Toy, make_loop


def scored(part: Any, scores: dict[int, float]) -> Any:
    """The part in a run, its bins at these scores."""
    bound = part.bind()
    bound.state["scores"].update({str(b): s for b, s in scores.items()})
    return bound


def batch_of(make_batch: Any, scores: list[float], names: list[str], **changes: Any) -> Any:
    """Rows of one token; rows of one name are one group."""
    group = [sorted(set(names)).index(n) for n in names]
    episodes = [Episode(Problem(n, n), [Segment("assistant", "", [1], [1], [0.0])], g) for n, g in zip(names, group)]
    solved = torch.tensor([s >= 1 for s in scores])
    return make_batch(
        [[1]] * len(names), scores=scores, group=group, episodes=episodes, solved=solved, **changes
    )  # fmt: skip


def test_the_weights_are_the_softmax_that_the_entropic_objective_is_largest_at() -> None:
    losses, eta = torch.tensor([0.3, -1.0, 2.0, 0.7], dtype=torch.float64), 0.65
    edges = (0.25, 0.5, 0.75)
    adversary = scored(
        PromptGDRO(eta=eta, explore=0.0, outcomes=Outcomes(edges=edges)), dict(enumerate(losses.tolist()))
    )
    q = torch.tensor(adversary.q(), dtype=torch.float64)

    def value(p: torch.Tensor) -> torch.Tensor:
        return (p * losses).sum(-1) - (p * p.clamp(min=1e-300).log()).sum(-1) / eta

    assert abs(float(value(q)) - float(torch.logsumexp(eta * losses, 0) / eta)) < 1e-12
    others = torch.rand(2000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    near = (q + 0.05 * (others - 0.5)).clamp(min=1e-9)
    for tried in (others, near):
        assert bool((value(tried / tried.sum(1, keepdim=True)) < value(q)).all())
    assert float(losses.max()) <= float(value(q)) <= float(losses.max()) + math.log(4) / eta


def test_the_square_root_law_minimises_the_variance_at_a_fixed_mean() -> None:
    variances, shares, mean = [0.25, 0.04, 0.16], [0.2, 0.5, 0.3], 4.0
    n = square_root(variances, shares, mean)
    assert abs(sum(q * x for q, x in zip(shares, n)) - mean) < 1e-12

    def cost(sizes: Any) -> float:
        return sum(q * v / x for q, v, x in zip(shares, variances, sizes))

    best = sum(q * math.sqrt(v) for q, v in zip(shares, variances)) ** 2 / mean
    assert abs(cost(n) - best) < 1e-12
    assert best <= cost([mean] * 3)
    for a, b in itertools.product(range(1, 100), repeat=2):
        first, second = a / 10, b / 10
        third = (mean - shares[0] * first - shares[1] * second) / shares[2]
        if third > 0:
            assert cost([first, second, third]) >= best - 1e-12


def test_square_root_rollouts_are_the_whole_numbers_nearest_to_the_law() -> None:
    part = SquareRootRollouts(size=4, outcomes=Outcomes(edges=(0.3, 0.7))).bind()
    for name, rate in (("hard", 0.1), ("middle", 0.5), ("easy", 0.9)):
        part.outcomes.visit(name, rate)
    counts = {0: 2, 1: 2, 2: 2}
    values = {b: part.values(b, counts) for b in counts}
    wanted = square_root([0.09, 0.25, 0.09], [1 / 3] * 3, 4)
    totals = {
        n: sum(2 * (x - w) ** 2 for x, w in zip(n, wanted))
        for n in itertools.product(part.arms, repeat=3)
        if sum(n) == 12
    }
    found = choose(values, counts, list(part.arms), 24)
    assert sum(counts[b] * n for b, n in found.items()) == 24
    assert abs(totals[tuple(found.values())] - min(totals.values())) < 1e-12
    assert found[1] > found[0]


@pytest.mark.parametrize("case", range(20))
def test_the_total_is_met_wherever_it_can_be_and_the_sum_is_the_largest(case: int) -> None:
    random = Stream(case).numpy
    counts = {b: int(random.integers(1, 9)) for b in range(4)}
    arms, total = [2, 3, 5, 8], 4 * sum(counts.values())
    values = {b: random.normal(size=4).tolist() for b in counts}
    sums = {
        pick: (sum(counts[b] * arms[i] for b, i in enumerate(pick)), sum(values[b][i] for b, i in enumerate(pick)))
        for pick in itertools.product(range(4), repeat=4)
    }
    nearest = min(abs(spent - total) for spent, _ in sums.values())
    best = max(worth for spent, worth in sums.values() if abs(spent - total) == nearest)
    found = choose(values, counts, arms, total)
    assert abs(sum(counts[b] * n for b, n in found.items()) - total) == nearest
    assert sum(values[b][arms.index(n)] for b, n in found.items()) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize(
    "part",
    [
        PromptGDRO(eta=0.0, bound=None, outcomes=Outcomes()),
        PromptGDRO(rescaled=True, bound=None, outcomes=Outcomes(edges=())),
    ],
)
def test_without_preference_or_with_one_bin_prompt_gdro_is_grpo(make_batch, part: PromptGDRO) -> None:
    rows = batch_of(make_batch, [1.0, 0.0, 0.0, 1.0, 1.0, 0.0], ["a", "a", "a", "b", "b", "b"])
    found = scored(part, {0: 2.5, 5: -1.0})
    found.before_update(rows)
    assert torch.equal(found(rows), get_method("grpo").advantages(rows))


def test_with_preference_it_is_not(make_batch) -> None:
    rows = batch_of(make_batch, [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0], ["a", "a", "a", "a", "b", "b", "b", "b"])
    found = scored(PromptGDRO(outcomes=Outcomes(edges=(0.4,))), {0: 2.0, 1: -1.0})
    found.outcomes.visit("a", 0.0)
    found.outcomes.visit("b", 1.0)
    plain, weighed = get_method("grpo").advantages(rows), found(rows)
    for row, factor in ((0, math.exp(0.65 * 2.0)), (4, math.exp(-0.65))):
        torch.testing.assert_close(weighed[row], factor * plain[row], atol=1e-12, rtol=0)
    capped = scored(found.replace(largest=1.5), {0: 9.0})
    assert capped.weights(torch.tensor([0])).tolist() == [1.5]
    assert found.replace(limit=1.0).bind().weights(torch.tensor([0, 1])).tolist() == [1.0, 1.0]


def test_the_released_weights_have_mean_one(make_batch) -> None:
    found = scored(PromptGDRO(rescaled=True), {0: 2.0, 3: -1.0, 7: 0.4})
    weights = found.weights(torch.tensor([0, 0, 3, 7, 7, 7]))
    assert float(weights.mean()) == pytest.approx(1.0, abs=1e-12)
    assert weights[0] > weights[3] > weights[2]


def losses_of(make_batch: Any, part: Any, hard: int, easy: int) -> Any:
    """A step in which `hard` problems have loss 0.4 and `easy` ones -0.2, two rows each."""
    names = [f"h{i}" for i in range(hard) for _ in (0, 1)] + [f"e{i}" for i in range(easy) for _ in (0, 1)]
    bands = [int(n[0] == "e") for n in names]
    for name, band in zip(names, bands):
        part.outcomes.visit(name, float(band))
    loss = torch.tensor([0.4 - 0.6 * b for b in bands], dtype=torch.float64)
    rows = batch_of(make_batch, [0.0, 1.0] * (hard + easy), names)
    part(rows)
    rows.row_loss = loss * part.weights(part.bands(rows))  # what the loop sees: the weighted objective
    part.after_update(rows)
    return part.state["scores"]


def test_a_bins_score_does_not_depend_on_how_many_problems_it_has_in_the_batch(make_batch) -> None:
    found = []
    for counts in ((1, 3), (5, 2)):
        part = PromptGDRO(by_share=False, outcomes=Outcomes(edges=(0.5,))).bind()
        losses_of(make_batch, part, *counts)
        found.append(dict(losses_of(make_batch, part, *counts)))
    for scores in found:
        assert scores["0"] == pytest.approx(0.4, abs=1e-12)
        assert scores["1"] == pytest.approx(-0.2, abs=1e-12)


def test_shares_divide_and_scores_move_by_beta_from_the_first_one(make_batch) -> None:
    part = PromptGDRO(by_share=True, beta=0.25, outcomes=Outcomes(edges=(0.5,))).bind()
    first = dict(losses_of(make_batch, part, 1, 3))
    assert first["0"] == pytest.approx(0.4 / 0.25, abs=1e-12)
    second = losses_of(make_batch, part, 2, 2)
    assert second["0"] == pytest.approx(0.75 * 1.6 + 0.25 * 0.8, abs=1e-12)
    only_easy = dict(losses_of(make_batch, part, 0, 2))
    assert only_easy["0"] == second["0"]


def test_a_bins_loss_is_the_mean_over_its_problems_not_its_rows() -> None:
    group, bands = torch.tensor([0, 0, 0, 1, 2]), torch.tensor([4, 4, 4, 4, -1])
    found = bin_means(torch.tensor([1.0, 1.0, 1.0, 5.0, 9.0]), group, bands)
    assert found == {4: (3.0, 1.0)}


def test_the_bandit_plays_by_the_papers_rule_and_only_the_played_arm_learns() -> None:
    part = RolloutGDRO(size=4, outcomes=Outcomes(edges=(0.5,))).bind()
    part.state["played"], part.state["price"] = {"0": 6, "1": 2}, 0.1
    part.learn(0, -0.3)
    part.learn(1, 0.5)
    z = part.state["z"]
    assert z["0"] == pytest.approx([0.0] * 4 + [0.3 - 0.1 * 2] + [0.0] * 6, abs=1e-12)
    assert z["1"] == pytest.approx([-0.5 + 0.1 * 2] + [0.0] * 10, abs=1e-12)
    part.pay(4.5)
    assert part.state["price"] == pytest.approx(0.1 + 0.05 * 0.5, abs=1e-12)
    p = torch.tensor(part.values(0, {0: 1})).exp()
    expected = 0.99 * torch.softmax(0.65 * torch.tensor(z["0"], dtype=torch.float64), 0) + 0.01 / 11
    torch.testing.assert_close(p, expected.to(p), atol=1e-6, rtol=0)
    other = RolloutGDRO(size=4, sign="code").bind()
    other.state["played"] = {"0": 6}
    other.learn(0, -0.3)
    assert other.state["z"]["0"][4] == pytest.approx(-0.3, abs=1e-12)


@pytest.mark.slow
def test_a_bandit_finds_the_arms_that_pay() -> None:
    """Five bins without a network: sizes pay as the square root of p (1 - p) says; the total stays what it is."""
    part = RolloutGDRO(size=4, price_rate=0.0, outcomes=Outcomes()).bind()
    rates, counts = [0.05, 0.25, 0.5, 0.75, 0.95], dict.fromkeys(range(5), 4)
    mean = dict.fromkeys(range(5), 0.0)
    for _ in range(600):
        values = {b: part.values(b, counts) for b in counts}
        played = choose(values, counts, list(part.arms), 80)
        assert sum(counts[b] * n for b, n in played.items()) == 80
        part.state["played"] = {str(b): n for b, n in played.items()}
        for b, n in played.items():
            part.learn(b, 0.5 * (n - square_root([r * (1 - r) for r in rates], [0.2] * 5, 4)[b]) ** 2)
            mean[b] += n / 600
    assert mean[2] > mean[1] > mean[0]
    assert mean[2] > mean[3] > mean[4]


@pytest.mark.slow
def test_with_one_arm_rollout_gdro_collects_what_groups_do() -> None:
    grpo = get_method("grpo").replace(problems=3)
    task = Toy()
    plain = make_loop(grpo.replace(experience=Groups(size=4)), task)
    single = make_loop(
        grpo.replace(experience=RolloutGDRO(size=4, smallest=4, most=1, outcomes=Outcomes(any_of=True))), task
    )
    for _ in range(3):
        ours, theirs = single.step(), plain.step()
        assert [e["segments"] for e in ours.episodes] == [e["segments"] for e in theirs.episodes]
        assert ours.metrics["loss"] == theirs.metrics["loss"]


@pytest.mark.slow
def test_sizes_differ_between_bins_and_the_total_is_kept() -> None:
    grpo = get_method("grpo").replace(problems=3)
    loop = make_loop(grpo.replace(experience=RolloutGDRO(size=4)), Toy())
    loop.step()
    part = loop.method.experience
    for name, band in (("train-0", 0), ("train-1", 9), ("train-2", 9)):
        part.outcomes.state["bands"][name] = band
    part.state["z"]["0"] = [0.0] * 6 + [9.0] + [0.0] * 4
    report = loop.step()
    assert part.state["played"]["0"] == 8  # and 2 for each of the others: 12 in all
    assert len(report.episodes) == 12


def test_the_two_adversaries_are_never_coupled() -> None:
    with pytest.raises(ConfigError, match="one at a time"):
        compose_method("gdro-grpo", (), ["rollout-gdro"])
    compose_method("grpo", (), ["rollout-gdro"])
    compose_method("grpo", (), ["square-root-rollouts"])
    with pytest.raises(ConfigError, match="smallest must be at most size"):
        RolloutGDRO(size=2, smallest=3)

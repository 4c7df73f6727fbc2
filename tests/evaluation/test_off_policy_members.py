"""FQE of many policies at once: each as if alone, with its own discount, and told of whom it means nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from etude.core.population import PerMember
from etude.core.streams import Stream
from etude.evaluation.off_policy import members
from etude.evaluation.off_policy.episodes import Episodes, Estimate, student
from etude.evaluation.off_policy.fqe import FQE
from etude.evaluation.off_policy.judge import discounts_of
from etude.evaluation.off_policy.members import with_members
from etude.evaluation.off_policy.policies import Judged, OnLogs
from etude.evaluation.off_policy.q_rows import Acts
from etude.experience.logs.table import Logs
from etude.methods.offline.td3_bc import td3_bc
from walks import EACH, STEPS, walks

GAMMA = 0.9
FITS = FQE(resamples=2, updates=150, batch=32, follow=0.3)
SEED = 3
Policy = Callable[[Any], Any]


def judged(policy: Policy, likeliest: Policy | None = None) -> Judged:
    """Somebody whose actions on the walks these are."""

    def on(logs: Logs, generator: torch.Generator, likely: bool = False) -> OnLogs:
        return OnLogs(walks(likeliest if likely and likeliest else policy)[1], None)

    return cast(Judged, SimpleNamespace(on=on))


@pytest.fixture
def logs() -> Logs:
    """The walks as logs, as far as they are looked at."""
    episodes, _ = walks(np.sign)
    ends = episodes.rows[:, -1]
    terminated = np.zeros(EACH * STEPS, bool)
    return cast(Logs, SimpleNamespace(ends=ends, rewards=episodes.rewards.reshape(-1), terminated=terminated))


@cache
def alone(policy: Policy, gamma: float = GAMMA) -> float:
    """What a fit of one member says."""
    episodes, acts = walks(policy)
    fitted = FITS.fit(episodes, acts, np.ones((1, EACH), int), gamma, Stream(SEED, ("judge",)))
    return fitted.each()[0][0]


def first(chance: bool = False) -> dict[str, Estimate]:
    """Estimates of somebody who acts by chance or not."""
    fqe, likeliest = (student(-5.0, np.array([-4.0, -6.0])) for _ in range(2))
    return {"fqe": fqe, "fqe/deterministic": likeliest if chance else fqe, "logged": fqe}


def back(x: Any) -> Any:
    return -0.3 * x


def slower(x: Any) -> Any:
    return 0.5 * x


@pytest.mark.slow
def test_rows_of_one_policy_are_nobody_elses(logs: Logs) -> None:
    """Whoever stands first is fitted as if alone; who stands second does not change with who else is there."""
    both = with_members(first(), [judged(back), judged(slower)], logs, [GAMMA] * 2, SEED, FITS)
    turned = with_members(first(), [judged(slower), judged(back)], logs, [GAMMA] * 2, SEED, FITS)
    other = with_members(first(), [judged(np.sign), judged(slower)], logs, [GAMMA] * 2, SEED, FITS)
    assert both["fqe"].members[1] == pytest.approx(alone(back), abs=5e-3)
    assert turned["fqe"].members[1] == pytest.approx(alone(slower), abs=5e-3)
    assert both["fqe"].members[2] == pytest.approx(other["fqe"].members[2], abs=5e-3)
    assert abs(alone(back) - alone(slower)) > 0.05
    assert both["fqe"].members[0] == both["fqe"].value == -5.0 and both["fqe/deterministic"] is both["fqe"]


@pytest.mark.slow
def test_what_is_likeliest_is_fitted_too(logs: Logs) -> None:
    found = with_members(first(chance=True), [judged(slower, back)], logs, [GAMMA], SEED, FITS)
    assert set(found) == {"fqe", "fqe/deterministic"}
    assert found["fqe"].members[1] == pytest.approx(alone(slower), abs=5e-3)
    assert found["fqe/deterministic"].members[1] == pytest.approx(alone(back), abs=5e-3)


@pytest.mark.slow
def test_everybody_by_his_own_discount_and_in_his_own_place(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    gammas = [GAMMA, 0.5, GAMMA, 0.5]
    policies = [judged(p) for p in (back, slower, slower, back)]
    together = with_members(first(), policies, logs, gammas, SEED, FITS)["fqe"].members
    expected = [alone(back), alone(slower, 0.5)]
    assert together[1:3] == pytest.approx(expected, abs=5e-3)
    monkeypatch.setattr(members, "AT_ONCE", 1)
    single = with_members(first(), policies, logs, gammas, SEED, FITS)["fqe"].members
    every = [alone(p, g) for p, g in zip((back, slower, slower, back), gammas, strict=True)]
    assert single[1:] == pytest.approx(every, abs=5e-3)


def test_a_lone_member_needs_no_fit(logs: Logs) -> None:
    found = with_members(first(), [], logs, [], SEED, cast(FQE, None))
    assert found["fqe"].members == (-5.0,) and found["fqe"].reason == ""


def test_of_whom_it_means_nothing_is_said(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    told = [(-1.0, ""), (9.0, "it lies beyond"), (-2.0, ""), (8.0, "so does this")]
    monkeypatch.setattr(members, "_together", lambda *_: told)
    found = with_members(first(), [judged(back)] * 4, logs, [GAMMA] * 4, SEED)["fqe"]
    assert found.members == (-5.0, -1.0, 9.0, -2.0, 8.0)
    assert found.reason == "numbers of members 2, 4 (of 5) mean nothing; member 2: it lies beyond"
    doubted = dict.fromkeys(first(), replace(first()["fqe"], reason="of the first"))
    monkeypatch.setattr(members, "_together", lambda *_: [(0.0, "")])
    said = with_members(doubted, [judged(back)], logs, [GAMMA], SEED)["fqe"].reason
    assert said == "numbers of member 0 (of 2) mean nothing; member 0: of the first"


@pytest.mark.slow
def test_a_share_of_cut_targets_is_its_members_own() -> None:
    """One of two goes where logs never are."""
    (episodes, near), (_, far) = walks(back), walks(np.sign)
    acts = Acts(*(torch.cat([getattr(a, n) for a in (near, far)]) for n in (
        "observations", "actions", "now", "now_chances", "following", "then", "then_chances")))  # fmt: skip
    counts = np.kron(np.eye(2, dtype=int), np.ones((1, EACH), int))
    fitted = FQE(resamples=2, updates=600).fit(episodes.repeated(2), acts, counts, 0.99, Stream(1))
    (_, sound), (_, doubt) = fitted.each()
    assert sound == "" and "% of the targets of Q lay beyond" in doubt and fitted.cut.shape == (2,)


def test_how_far_it_is_is_shown(logs: Logs) -> None:
    """All updates of all fits, of likeliest actions too."""
    totals, done = list[int](), list[int]()

    @contextmanager
    def counted(total: int) -> Iterator[Callable[[int], None]]:
        totals.append(total)
        yield done.append

    short = replace(FITS, updates=5)
    gammas, policies = [GAMMA, 0.5, GAMMA], [judged(back)] * 3
    with_members(first(chance=True), policies, logs, gammas, SEED, short, counted)
    assert totals == [10, 10] and sum(done) == 20


def test_episodes_repeated() -> None:
    place = np.array([[0, 1, 2], [3, 4, 4]])
    there = np.array([[True, True, True], [True, True, False]])
    twice = Episodes(place, there, np.array([False, True]), there * 2.0).repeated(2)
    assert twice.rows.tolist() == [[0, 1, 2], [3, 4, 4], [5, 6, 7], [8, 9, 9]]
    assert twice.time.tolist() == [0, 1, 2, 0, 1] * 2 and twice.episode.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert twice.terminated.tolist() == [False, True] * 2 and twice.rewards.tolist() == (there * 2.0).tolist() * 2


def test_discounts_of_all_members() -> None:
    assert discounts_of(td3_bc) == {0.99} and discounts_of(cast(Any, SimpleNamespace(slots=dict))) == set()
    several = SimpleNamespace(slots=lambda: {"advantages": SimpleNamespace(gamma=PerMember([0.9, 0.95]))})
    assert discounts_of(cast(Any, several)) == {0.9, 0.95}

"""Schedules: the published curves, what older runs wrote, and how text sets them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from etude.core.edit import set_value, set_values
from etude.core.errors import ConfigError
from etude.core.method import Method
from etude.core.part import part_from_json
from etude.core.population import Member, PerMember, Population, per_member, settle
from etude.core.registry import get_method
from etude.methods.rlvr.oblr_po.snr import SNRAdamW
from etude.optimizers.adam import AdamW
from etude.optimizers.schedules import Constant, Cosine, Linear, Schedule

OLD_ADAM = {
    "part": "adam-w", "lr": None, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0, "warmup": 0.1,
    "schedule": "cosine", "floor": 0.1, "clip_norm": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (Constant(), [1, 1, 1, 1, 1]),
        (Linear(), [1, 0.75, 0.5, 0.25, 0]),
        (Linear(floor=0.2), [1, 0.8, 0.6, 0.4, 0.2]),
        (Cosine(), [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0]),
        (Cosine(floor=0.2), [1, 0.6 + 0.4 * math.sqrt(0.5), 0.6, 0.6 - 0.4 * math.sqrt(0.5), 0.2]),
    ],
)
def test_the_rate_over_a_run(schedule: Schedule, rates: list[float]) -> None:
    part = AdamW(schedule=schedule)
    assert [part.rate(step, 100) for step in (0, 25, 50, 75, 100)] == pytest.approx(rates, abs=1e-12)
    assert part.rate(200, 100) == pytest.approx(rates[-1], abs=1e-12)


def test_it_begins_where_the_warmup_ends() -> None:
    part = AdamW(warmup=0.5, schedule=Linear())
    assert [part.rate(step, 8) for step in range(8)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 0.75, 0.5, 0.25])


@pytest.mark.parametrize(
    ("changes", "meant"),
    [
        ({}, AdamW(warmup=0.1, schedule=Cosine(floor=0.1))),
        ({"schedule": "linear", "floor": 0.0}, AdamW(warmup=0.1, schedule=Linear())),
        ({"schedule": "constant", "floor": 0.3}, AdamW(warmup=0.1)),
        (
            {"part": "snr-adam-w", "schedule": "linear", "floor": 0.3, "memory": 0.5},
            SNRAdamW(warmup=0.1, schedule=Linear(floor=0.3), floor=0.3, memory=0.5),
        ),
        ({"part": "snr-adam-w", "schedule": "constant", "floor": 0.3}, SNRAdamW(warmup=0.1, floor=0.3)),
    ],
)
def test_what_older_runs_wrote_loads(changes: dict[str, Any], meant: AdamW | SNRAdamW) -> None:
    assert part_from_json({**OLD_ADAM, **changes}) == meant
    assert part_from_json(meant.to_json()) == meant


def test_a_whole_method_of_an_older_run_loads() -> None:
    data = get_method("open-rs").to_json()
    assert Method.from_json({**data, "optimizer": OLD_ADAM}).slots() == get_method("open-rs").slots()


def test_text_sets_it_by_name_and_its_field_by_path() -> None:
    grpo: Any = get_method("grpo")
    assert set_value(grpo, "optimizer.schedule=cosine").optimizer == AdamW(schedule=Cosine())
    found = set_values(grpo, ["optimizer.schedule=linear", "optimizer.schedule.floor=0.1"])
    assert found.optimizer == AdamW(schedule=Linear(floor=0.1))
    with pytest.raises(ConfigError, match="There are: constant, cosine, linear"):
        set_value(grpo, "optimizer.schedule=cosin")


def test_members_may_fall_to_floors_of_their_own() -> None:
    members = [Member(0, {"optimizer.schedule.floor": 0.5}), Member(1)]
    part = settle(get_method("ppo", "control").bind(), Population(members)).optimizer
    found = per_member(part, lambda p: p.rate(5, 10))
    assert isinstance(found, PerMember)
    assert found.numbers == (AdamW(schedule=Linear(floor=0.5)).rate(5, 10), 0.5)

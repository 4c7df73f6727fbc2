"""Methods: composition, differences, checks, JSON, states."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.core.errors import CheckpointError, ConfigError, UnknownNameError
from etude.core.method import Method
from etude.core.slots import TokenRegularizer
from etude.experience.groups import Groups
from etude.methods.foundation.reinforce import reinforce
from etude.methods.rlvr.forking_tokens import ForkingGroups
from etude.methods.rlvr.grpo import grpo
from etude.methods.rlvr.hpt import OnSampled
from etude.methods.rlvr.lens import CalibratedReward
from etude.methods.rlvr.poly_ppo import OldPolicyKL
from etude.objectives.policy_gradient import ClippedSurrogate
from etude.objectives.surrogate import Surrogate
from etude.objectives.unified import Hybrid
from etude.optimizers.adam import AdamW
from etude.regularizers.entropy import EntropyBonus
from etude.regularizers.kl import KLToReference
from etude.rewards.entropy import EntropyReward
from etude.rewards.kl import KLPenalty
from etude.rewards.outcome import OverlongPenalty, TaskReward


class Refuses(TokenRegularizer):
    """A part that works with nothing."""

    def objection(self, method: Any) -> str | None:
        return f"does not work with {method.objective.name}."


def test_a_new_id_makes_a_child() -> None:
    child = grpo.replace(id="child", problems=4)
    assert (child.parent, child.claim, child.paper, child.title) == ("grpo", None, "", "")
    assert grpo.replace(problems=4).parent == grpo.parent, "without a new id it is the same method"
    with pytest.raises(dataclasses.FrozenInstanceError):
        child.problems = 3  # type: ignore[misc]


def test_slots_are_checked() -> None:
    with pytest.raises(UnknownNameError, match=r"no slot of grpo named 'reward'\. Did you mean 'rewards'"):
        grpo.replace(reward=())
    with pytest.raises(ConfigError, match=r"^grpo: objective must be a TokenObjective part, got AdamW"):
        grpo.replace(objective=AdamW())
    with pytest.raises(ConfigError, match=r"^grpo: problems must be a whole number of at least 1, got 0\.$"):
        grpo.replace(problems=0)
    with pytest.raises(ConfigError, match=r"^grpo: aggregation must be one of 'token-mean'"):
        grpo.replace(aggregation="mean")
    assert grpo.replace(regularizers=[EntropyBonus()]).regularizers == (EntropyBonus(),)


def test_diff_says_what_changed() -> None:
    changed = grpo.replace(id="x", objective=ClippedSurrogate(high=0.28), regularizers=(KLToReference(),), rewards=())
    assert changed.diff(grpo) == {
        "objective.high": (0.2, 0.28),
        "regularizers.kl-to-reference": (None, "kl-to-reference"),
        "regularizers.kl-to-reference.coefficient": (None, 0.04),
        "regularizers.kl-to-reference.estimator": (None, "k3"),
        "regularizers.kl-to-reference.weighted": (None, False),
        "rewards.task-reward": ("task-reward", None),
        "rewards.task-reward.weight": (1.0, None),
    }
    assert grpo.diff(grpo) == {}
    assert grpo.replace(optimizer=AdamW(clip_norm=None)).diff(grpo) == {"optimizer.clip_norm": (1.0, None)}


def test_diff_counts_equal_parts() -> None:
    two, three = (grpo.replace(rewards=(TaskReward(),) * n) for n in (2, 3))
    assert three.diff(two) == {"rewards.2": (None, "task-reward"), "rewards.2.weight": (None, 1.0)}


@pytest.mark.slow
@given(st.floats(0.01, 0.99), st.floats(0.01, 10), st.integers(1, 100), st.integers(1, 9))
def test_a_diff_is_antisymmetric_and_json_keeps_everything(low: float, high: float, problems: int, n: int) -> None:
    method = grpo.replace(id="m", objective=ClippedSurrogate(low=low, high=high), problems=problems, minibatches=n)
    assert {k: (b, a) for k, (a, b) in method.diff(grpo).items()} == grpo.diff(method)
    again = Method.from_json(json.loads(json.dumps(method.to_json())))
    assert again == method and again.diff(method) == {}


def test_json_with_unknown_names_is_refused() -> None:
    data = grpo.to_json()
    with pytest.raises(UnknownNameError, match="no slot named 'objectiv'"):
        Method.from_json({**data, "objectiv": None})
    with pytest.raises(UnknownNameError, match="no part named 'adom'"):
        Method.from_json({**data, "optimizer": {"part": "adom"}})


def test_describe_shows_every_part_and_leaves_empty_slots_out() -> None:
    lines = reinforce.replace(rewards=(TaskReward(), OverlongPenalty(buffer=0.5))).describe().splitlines()
    assert lines[0] == "reinforce  (Williams 1992, doi:10.1007/BF00992696)"
    assert "  rewards        TaskReward(weight=1.0)" in lines
    assert "                 OverlongPenalty(buffer=0.5, weight=1.0)" in lines
    assert not any(line.startswith(("  critic", "  filters", "  stages")) for line in lines)
    assert str(grpo) == grpo.describe()


def test_contradictions_are_sentences() -> None:
    """Faults row 32: which two parts, and why."""
    truncated = grpo.replace(experience=Groups(top_p=0.9))
    with pytest.raises(ConfigError) as caught:
        truncated.check()
    assert str(caught.value) == (
        "grpo: Groups samples from a truncated distribution (top_p=0.9, top_k=0), and ClippedSurrogate takes "
        "behaviour_logp for the policy's own log-probabilities, so it would be biased: set top_p to 1 and top_k to 0."
    )
    with pytest.raises(ConfigError, match="top_k=5"):
        grpo.replace(experience=Groups(top_k=5)).check()
    reinforce.replace(experience=Groups(top_p=0.9)).check()
    with pytest.raises(ConfigError, match=r"^grpo: Refuses does not work with clipped-surrogate\.$"):
        grpo.replace(regularizers=(Refuses(),)).check()


@pytest.mark.parametrize(
    "changes",
    [
        {"rewards": (TaskReward(), KLPenalty())},
        {"rewards": (TaskReward(), EntropyReward())},
        {"rewards": (TaskReward(), CalibratedReward())},
        {"regularizers": (KLToReference(weighted=True),)},
        {"regularizers": (OnSampled(of=KLToReference(weighted=True)),)},
        {"regularizers": (OldPolicyKL(),)},
        {"objective": Hybrid(sampled=Surrogate())},
    ],
)
@pytest.mark.parametrize("experience", [Groups(top_p=0.9), Groups(top_k=5), ForkingGroups(fork_temperature=0.5)])
def test_who_takes_the_samplers_log_probabilities_for_the_policys_own_says_so(
    changes: dict[str, Any], experience: Groups
) -> None:
    """Whatever the slot, and however deep inside another part."""
    method = reinforce.replace(id="mine", **changes)
    method.check()
    with pytest.raises(ConfigError, match=r"(a truncated distribution|at two temperatures) .* it would be biased"):
        method.replace(experience=experience).check()


def test_what_does_not_read_them_goes_with_any_sampling() -> None:
    for part in (KLToReference(), KLToReference(weighted=False, estimator="k2"), EntropyBonus()):
        reinforce.replace(regularizers=(part,), experience=Groups(top_p=0.9)).check()


def test_needs_are_those_of_all_parts() -> None:
    assert grpo.needs() == frozenset()
    both = grpo.replace(regularizers=(EntropyBonus(), KLToReference()))
    assert both.needs() == {"entropy", "reference_logp"}
    assert set(both.parts()) >= {"regularizers.0", "regularizers.1", "objective", "rewards.0"}


def test_states_round_trip_exactly() -> None:
    a, b = grpo.bind(), grpo.bind()
    a.curriculum.state["drawn"] = 7
    b.curriculum.state["drawn"], b.curriculum.state["stray"] = 1, 2
    assert a.state_dict() == {"curriculum": {"drawn": 7}}
    b.load_state_dict(json.loads(json.dumps(a.state_dict())))
    assert b.state_dict() == {"curriculum": {"drawn": 7}}
    with pytest.raises(CheckpointError, match=r"a state for critic, but grpo has no part there\.$"):
        b.load_state_dict({"critic": {"x": 1}})


def test_a_bound_method_is_the_same_method() -> None:
    assert grpo.bind() == grpo and grpo.bind().diff(grpo) == {}

"""Claims in other libraries: what a peer is told, its pairs, their verdicts, the page. No peer is needed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from _equivalence import equivalence  # noqa: E402
from peers.cases import Case, Ground, cases  # noqa: E402
from peers.collect import _pair  # noqa: E402
from peers.jobs import Run  # noqa: E402
from peers.page import page, stored  # noqa: E402
from peers.scores import scores, stacked  # noqa: E402
from peers.settings import sb3, trl  # noqa: E402
from peers.verdicts import agreement, judged, libraries, pairs_in, side  # noqa: E402

from etude.core.claims import Claim, Measure  # noqa: E402
from etude.core.errors import ConfigError, DataError  # noqa: E402
from etude.core.worlds import World  # noqa: E402
from etude.evaluation.pairs import Pair  # noqa: E402
from etude.runs.training import compose_method  # noqa: E402

RECORDS = stored(ROOT / "benchmarks" / "peers" / "records")
CLAIM = Claim(
    statement="It learns more.", task="a toy", measures=(Measure(name="end"),), equal=("steps",), learned_on="end"
)
GROUND = Ground("compose", steps=10, every=4, problems=2)
CASE = Case("toy", "trl", "dr-grpo", "grpo", CLAIM, GROUND, World.LANGUAGE, {"end": "end"})


def some(arm: Sequence[float], baseline: Sequence[float], steps: float = 10.0) -> list[Pair]:
    """Pairs whose baseline began at 0.2."""
    return [
        Pair(seed=i, arm={"end": a}, baseline={"end": b}, start={"end": 0.2}, budgets={"steps": (10.0, steps)})
        for i, (a, b) in enumerate(zip(arm, baseline))
    ]


LOW = [0.60, 0.61, 0.62, 0.60, 0.61, 0.62]
HIGH = [0.70, 0.72, 0.71, 0.71, 0.70, 0.72]


# What a peer is told


@pytest.mark.parametrize(
    ("method", "trainer", "told"),
    [
        ("grpo", "grpo", {"loss_type": "grpo", "scale_rewards": "group", "epsilon": 0.2, "epsilon_high": 0.2}),
        ("dr-grpo", "grpo", {"loss_type": "dr_grpo", "scale_rewards": "none", "epsilon": 0.2, "epsilon_high": 0.2}),
        ("lite-ppo", "grpo", {"loss_type": "dapo", "scale_rewards": "batch", "epsilon": 0.2, "epsilon_high": 0.2}),
        ("dapo", "grpo", {"loss_type": "dapo", "scale_rewards": "group", "epsilon": 0.2, "epsilon_high": 0.28}),
        ("rloo", "rloo", {"normalize_advantages": False, "max_grad_norm": 32.0}),
        ("reinforce", "reinforce", {"loss_type": "dapo"}),
    ],
)
def test_a_composition_in_the_words_of_trl(method: str, trainer: str, told: dict[str, Any]) -> None:
    """Loss, scale and clip are those of the papers; there is no KL term."""
    words = trl(compose_method(method, ["problems=16"]), limit=32)
    assert (words.trainer, words.settings) == (trainer, {"beta": 0.0, **told})
    assert {k: words.about[k] for k in ("problems", "size", "lr")} == {"problems": 16, "size": 8, "lr": 1e-4}


def test_what_trl_leaves_out_is_said() -> None:
    """DAPO's dynamic sampling is not in TRL; its punishment for length is."""
    words = trl(compose_method("dapo"), limit=32)
    assert words.about["overlong"] == 0.2
    assert "dynamic sampling" in words.lacks[0]
    assert not trl(compose_method("dr-grpo"), limit=32).lacks


def test_what_cannot_be_said_is_refused() -> None:
    """Several updates of a batch are not translated, and not left out in silence."""
    with pytest.raises(ConfigError, match="ppo uses a batch several times"):
        trl(compose_method("ppo"), limit=32)


def test_compositions_of_control_in_the_words_of_sb3() -> None:
    """The value's loss has a factor 1/2 in etude and none in SB3."""
    ppo = sb3(compose_method("ppo", world=World.CONTROL))
    assert ppo.trainer == "PPO"
    assert {k: ppo.settings[k] for k in ("n_steps", "n_epochs", "batch_size", "vf_coef", "ent_coef", "gamma")} == {
        "n_steps": 64, "n_epochs": 10, "batch_size": 256, "vf_coef": 0.25, "ent_coef": 0.01, "gamma": 0.98,
    }  # fmt: skip
    a2c = sb3(compose_method("a2c", world=World.CONTROL))
    assert (a2c.trainer, a2c.about["normalize"], a2c.settings["n_steps"]) == ("A2C", True, 8)
    trpo = sb3(compose_method("trpo", world=World.CONTROL))
    assert (trpo.trainer, trpo.settings["target_kl"], trpo.settings["n_critic_updates"]) == ("TRPO", 0.01, 10)


# Pairs


def finished(folder: Path, curve: Sequence[float], seed: int = 3) -> Run:
    """A run of a peer that was tested at steps 0, 4, 8 and 10."""
    (folder / "step-10").mkdir(parents=True)
    (folder / "step-10" / "model.safetensors").write_bytes(folder.name.encode())
    log = [{"loss": float(i)} for i in range(10)]
    (folder / "finished.json").write_text(json.dumps({"steps": 10, "completions": 80, "log": log}))
    (folder / "scores.json").write_text(json.dumps(curve))
    return Run("trl", {"seed": seed, "steps": 10, "problems": 2}, folder)


def test_a_pair_of_finished_runs(tmp_path: Path) -> None:
    """End, area by trapezoids, what was logged last, what was used."""
    arm = finished(tmp_path / "arm", [0.2, 0.4, 0.6, 0.8])
    baseline = finished(tmp_path / "baseline", [0.2, 0.2, 0.4, 0.4])
    measures = {"end": "end", "area": "area", "late": "last:loss", "coin": "end"}
    case = Case("toy", "trl", "dr-grpo", "grpo", CLAIM, GROUND, World.LANGUAGE, measures, {"coin": 0.5})
    sides = [([run], scores(case, "", [run])) for run in (arm, baseline)]
    pair = _pair(case, 3, 0, *sides)
    # (0.2 + 0.4) / 2 * 4 + (0.4 + 0.6) / 2 * 4 + (0.6 + 0.8) / 2 * 2 over 10 steps
    assert pair.arm == pytest.approx({"end": 0.8, "area": 0.46, "late": 8.5, "coin": 0.8})
    assert pair.baseline == pytest.approx({"end": 0.4, "area": 0.28, "late": 8.5, "coin": 0.5})
    assert pair.start == {"end": 0.2, "area": 0.2, "coin": 0.2}
    assert pair.budgets == {"steps": (10.0, 10.0)}
    assert pair.weights[0] != pair.weights[1]


def test_policies_of_several_runs_are_one_population(tmp_path: Path) -> None:
    """Weights in float32, moments in float64, members in the order of the files."""
    for i in range(2):
        mean = np.full((1, 4), float(i))
        np.savez(tmp_path / f"{i}.npz", **{"head.weight": np.full((64, 2), i), "transforms.0.moments.mean": mean})
    found = stacked([tmp_path / "0.npz", tmp_path / "1.npz"])
    weight, mean = found["policy.head.weight"], found["policy.transforms.0.moments.mean"]
    assert (weight.shape, str(weight.dtype)) == ((2, 64, 2), "torch.float32")
    assert (mean.shape, str(mean.dtype)) == ((2, 1, 4), "torch.float64")
    assert [float(w[0, 0]) for w in weight] == [0.0, 1.0]


# Verdicts


def test_pairs_are_judged_by_the_rules_of_claims() -> None:
    """Held, reversed, equivalent; void where steps differ; six pairs at the least."""
    assert judged(CLAIM, some(HIGH, LOW)).outcome == "held"
    assert judged(CLAIM, some(LOW, HIGH)).outcome == "reversed"
    near = [x + 0.001 * (-1) ** i for i, x in enumerate(LOW)]
    assert judged(CLAIM, some(near, LOW)).outcome == "equivalent"
    assert judged(CLAIM, some(HIGH, LOW, steps=20.0)).voids[0].gate.name == "BUDGET"
    with pytest.raises(DataError, match="after 6 pairs"):
        judged(CLAIM, some(HIGH[:5], LOW[:5]))


def test_the_first_look_that_decides_counts() -> None:
    """Pairs after it change nothing, and before 48 pairs nothing is void because the bed is coarse."""
    more = some([*HIGH, *LOW], [*LOW, *HIGH])
    assert (judged(CLAIM, more).outcome, side(CLAIM, more)["pairs"]) == ("held", 6)
    wide = some([0.1, 0.9, 0.2, 0.8, 0.3, 0.95], LOW)
    assert judged(CLAIM, wide).outcome == "inconclusive"


def test_a_side_is_derived_from_its_pairs() -> None:
    """Written down and read again it is the same."""
    said = json.loads(json.dumps(side(CLAIM, some(HIGH, LOW))))
    assert json.loads(json.dumps(side(CLAIM, pairs_in(said)))) == said
    assert said["verdict"] == "held" and len(said["runs"]) == 6


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_recorded_verdicts_follow_from_their_pairs(name: str) -> None:
    """Of the peer, and of etude where the driver trained it too."""
    record, claim = RECORDS[name], cases()[name].claim
    for which in ("peer", "etude"):
        if which in record:
            again = side(claim, [Pair.from_json(each) for each in record[which]["runs"]])
            assert json.loads(json.dumps(again)) == record[which]


def test_libraries_are_compared_by_equivalence() -> None:
    """SciPy's Welch interval; the smallest difference is a tenth of what the arm gains in etude."""
    from scipy.stats import ttest_ind

    found = libraries(CLAIM, some(HIGH, LOW), some(LOW, LOW[::-1]))["end"]
    expected = ttest_ind(HIGH, LOW, equal_var=False).confidence_interval(0.95)
    assert found["arm"]["difference"]["low"] == pytest.approx(expected.low, abs=1e-9)
    assert found["arm"]["difference"]["high"] == pytest.approx(expected.high, abs=1e-9)
    assert found["arm"]["smallest"] == found["effect"]["smallest"] == pytest.approx((0.71 - 0.2) / 10)
    assert found["baseline"]["smallest"] == pytest.approx((0.61 - 0.2) / 10)
    assert found["arm"]["verdict"] == "different" and found["baseline"]["verdict"] == "equivalent"
    assert found["arm"]["means"] == [0.71, 0.61]


def test_few_runs_are_not_equivalent() -> None:
    """Wide intervals overlap, and decide nothing."""
    assert equivalence([0.0, 1.0], [0.1, 0.9], smallest=0.3)["verdict"] == "undecided"


@pytest.mark.parametrize(
    ("own", "theirs", "said"),
    [("held", "held", "yes"), ("held", "reversed", "no"), ("void", "held", "no answer here"),
     ("held", "void", "no answer there")],
)  # fmt: skip
def test_verdicts_agree(own: str, theirs: str, said: str) -> None:
    """What is void is no answer, so it is no disagreement."""
    assert agreement(own, theirs) == said


# The page


def toy_record(arm: Sequence[float], own: Sequence[float]) -> dict[str, Any]:
    """A record with both sides."""
    return {
        "claim": "toy", "library": "trl", "peer": side(CLAIM, some(arm, LOW)), "etude": side(CLAIM, some(own, LOW)),
        "lacks": ["It has no brakes."], "environment": {"peer": {"trl": "1.16.0"}, "processor": "a chip"},
    }  # fmt: skip


def test_the_page_says_what_agrees_and_why_not() -> None:
    """Counted are claims that both answer; a disagreement comes with its reason."""
    case = Case(
        "toy", "trl", "dr-grpo", "grpo", CLAIM, GROUND, World.LANGUAGE, differs=("It is red.",), why="Wheels.", own=True
    )
    same = page({"toy": case}, {"toy": toy_record(HIGH, HIGH)})
    assert "**1 of 1**" in same and "The verdicts agree." in same
    assert "- It is red. (toy)" in same and "- It has no brakes. (toy)" in same
    assert "trl 1.16.0; one thread of a chip." in same
    assert "of a seed scores the same in both. (toy)" in same
    other = page({"toy": case}, {"toy": toy_record(LOW[::-1], HIGH)})
    assert "**0 of 1**" in other and "- toy: Wheels." in other
    assert "| dr-grpo | 0.71 | 0.61 |" in other
    assert "scores the same" not in other


def test_the_stored_page_is_up_to_date() -> None:
    """`make docs` writes it from the records and from the claims."""
    assert (ROOT / "docs" / "peers.md").read_text() == page(cases(), RECORDS)

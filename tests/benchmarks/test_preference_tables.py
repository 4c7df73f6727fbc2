"""Which preference loss and reward hacking: what their tables say of numbers that are known, and who takes part."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import reward_hacking as hacking  # noqa: E402
import which_preference_loss as losses  # noqa: E402
from _judged_digest import JudgedDigest  # noqa: E402

from etude.core.edit import set_values  # noqa: E402
from etude.core.registry import get_method  # noqa: E402
from etude.tasks.language.digest import digest  # noqa: E402


def ends(gold: float) -> list[dict[str, object]]:
    """Three seeds of a way whose frontier is a straight line to `gold` at a divergence of 2, and beyond it flat."""
    return [{"kl": [1.0, 2.0, 4.0], "gold": [gold / 2 + d, gold + d, gold + d], "start": 0.0} for d in (-0.1, 0.0, 0.1)]


def test_gold_is_compared_where_all_seeds_have_been_and_beside_the_first_way() -> None:
    short = {"kl": [0.4], "gold": [0.3], "start": 0.0}
    text = losses.table({"DPO": ends(2.0), "IPO": ends(4.0), "RLOO": [short] * 3})
    lines = {line.split(" | ")[0].removeprefix("| "): line.strip("|").split(" | ") for line in text.splitlines()[2:]}
    assert [cell.split(" ")[0].strip("*") for cell in lines["DPO"][2:]] == ["0.50", "1.00", "2.00", "2.00", "2.00", "-"]
    assert lines["IPO"][5].startswith("**4.00 (")
    assert lines["IPO"][-1].startswith("**1.50 (")  # the mean of min(x, 2) over 0 to 4, which is 2 - 1/2
    assert [cell.strip() for cell in lines["RLOO"][2:6]] == ["-"] * 4
    assert lines["RLOO"][-1].startswith("-0.05 (")  # up to 0.4 it earns 3/4 of x, where DPO earns x


def test_qualities_stand_side_by_side() -> None:
    text = losses.across(
        {"few": {"DPO": ends(2.0), "IPO": ends(4.0)}, "many": {"DPO": ends(3.0), "IPO": ends(1.0)}}, -2
    )
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()]
    assert rows[0] == ["way", "learns from", "few", "many"]
    assert [[cell.strip("*").split(" ")[0] for cell in row[2:]] for row in rows[2:]] == [
        ["2.00", "3.00"],
        ["4.00", "1.00"],
    ]


def test_a_fall_is_from_the_best_look_of_all_seeds() -> None:
    gold = np.array([[1.0, 3.0, 2.0], [1.0, 3.2, 2.0], [1.0, 3.1, 2.0]])
    found = hacking.Found(np.array([0.0, 10.0, 20.0]), gold, gold * 2, np.array([1.0, 2.0, 3.0]))
    row = hacking.table({"PPO": found}).splitlines()[2].strip("| ").split(" | ")
    assert row[2:4] == ["2.00", "4.00"] and row[4].startswith("3.10 (") and row[5].startswith("2.00 (")
    assert row[6].startswith("**1.10 (") and row[7] == "2.0"


@pytest.mark.parametrize("way", losses.WAYS, ids=lambda way: way.name)
def test_every_way_has_what_is_set_on_it(way: losses.Way) -> None:
    fields = {k: v for k, v in way.fields.items() if v != "{proxy}"}
    for strength in way.values:
        made = set_values(get_method(way.method), {**fields, way.field: strength})
        assert str(strength) in str(made.to_json())


def test_judged_answers_are_those_of_digest_with_scores_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "judged.json"
    path.write_text('{"scores": [[1.0, 2.0, 3.0, 4.0]], "values": [0.5]}', encoding="utf-8")
    own, plain = JudgedDigest(size=1, judged=str(path)).problems("train")[0], digest.problems("train")[0]
    assert own.prompt == plain.prompt and own.info["responses"] == plain.info["responses"]
    assert own.info["scores"] == [1.0, 2.0, 3.0, 4.0] and own.info["value"] == 0.5
    assert JudgedDigest(judged=str(path)).problems("test")[3] == digest.problems("test")[3]

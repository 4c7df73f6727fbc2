"""Which offline methods: its sets and their measures, who takes part, runs that go on where they stopped, the page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import _offline_page as page  # noqa: E402
import which_offline as study  # noqa: E402
from _offline_sets import NAMED, SETS, WORLDS, ends, logged, measures, paid, score  # noqa: E402

from etude.core.fit import check  # noqa: E402
from etude.evaluation.intervals import Interval  # noqa: E402
from etude.runtime.jsonl import JsonLines  # noqa: E402


@pytest.mark.slow
def test_every_set_is_drawn_by_its_seed_and_measured() -> None:
    for made in SETS:
        one, again, other = (logged(made, seed, 0.1) for seed in (3, 3, 4))
        assert all(np.array_equal(one[k], again[k]) for k in one)
        assert not np.array_equal(one["actions"][:50], other["actions"][:50])
        found = measures(made, 3, 0.1)
        assert 0 < found["SACo"] <= 1 and found["TQ"] <= 1.1 and found["steps"] == len(one["rewards"])
        own = paid(one, WORLDS[made.world])["rewards"]
        assert set(np.unique(own)) <= {0.0, 1.0} or made.world == "pendulum"
    for name in WORLDS:
        assert (score(name, ends(name)[0]), score(name, ends(name)[1])) == (0.0, 100.0)


@pytest.mark.slow
def test_all_that_learn_from_logs_alone_take_part_in_one_size() -> None:
    names = study.methods()
    assert {"bc", "iql", "bear", "bear-discrete", "spibb", "kl-control", "dqn", "qr-dqn", "d4rl"} <= set(names)
    assert not {"rlpd", "wsrl", "h2o", "sac"} & set(names)
    for name in names:
        method: Any = study.small(name)
        check(method)
        networks = [p for p in method.parts().values() if type(p).__name__ == "MLP"]
        assert networks and all(net.hidden == (64, 64) for net in networks), name
        assert sum(study.fits(name, made) for made in NAMED) in (2, 4), name


SMALL = ["--methods", "bc", "td3-bc", "guda", "--sets", "pendulum, mixed", "--seeds", "2", "--updates", "250"]


@pytest.mark.slow
def test_runs_go_on_and_the_page_says_what_they_came_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [*SMALL, "--share", "0.06", "--workers", "1", "--out", str(tmp_path)]
    study.main(asked)
    lines = list(JsonLines.read(tmp_path / "runs.jsonl"))
    assert [x["method"] for x in lines] == ["bc", "td3-bc", "guda"] * 2
    assert all(("error" in x) == (x["method"] == "guda") for x in lines)
    monkeypatch.setattr(study, "done", lambda job: pytest.fail("it is there"))
    study.main(asked)
    text = (tmp_path / "which-offline-methods.md").read_text()
    assert "[td3-bc](methods/td3-bc.md)" in text and "for 250 updates" in text and "guda was left out" in text
    assert "| pendulum, mixed | a third each off by 0.3, 2 and 8 | 600 | 3 |" in text
    assert (tmp_path / "images" / "which-offline-methods-numbers.png").is_file()
    mean = np.mean([x["score"] for x in lines if x["method"] == "bc"])
    assert f"| [bc](methods/bc.md) | {mean:.0f} (" in text
    with pytest.raises(SystemExit):
        study.main([*asked, "--updates", "100"])


def test_what_is_better_than_cloning_is_so_in_pairs_of_seeds() -> None:
    def line(method: str, seed: int, made: str, value: float) -> dict[str, Any]:
        return {"method": method, "seed": seed, "made": made, "score": value}

    runs = [line("bc", s, m, 10.0 * s + k) for s in range(3) for k, m in enumerate("xy")]
    runs += [line("iql", s, m, 10.0 * s + k + 5 + 0.1 * s) for s in range(3) for k, m in enumerate("xy")]
    runs += [line("cql", s, "x", 1.0) for s in range(3)]
    arms = page.compared(runs, ["x", "y"], [0, 1, 2], "bc")
    assert next(iter(arms)) == "iql" and arms["bc"].gap is None
    gap = arms["iql"].gap
    assert gap is not None and gap.value == pytest.approx(5.1) and page.verdict(gap) == "**better**"
    assert arms["cql"].gap is not None and arms["cql"].gap.value == pytest.approx(1 - 10)  # on the set that it has
    assert page.verdict(Interval(-2.0, -3.0, -1.0)) == "**worse**" and page.verdict(Interval(1.0, -1.0, 3.0)) == ""

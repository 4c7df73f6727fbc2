"""Phases by length, and hard problems of earlier ones: which problems come, how often, and after a kill as before."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.core.streams import Stream
from etude.curricula.epochs import EpochMeans
from etude.curricula.lengths import Retrospective, WithinLengths, length
from etude.curricula.uniform import Uniform

POOL = [Problem(f"p{n}", "x" * n) for n in range(1, 41)]
LIMITS = (10, 25, None)


def record_of(folder: Path, means: dict[str, list[float]]) -> str:
    """The `state.json` of a run that kept a record."""
    path = folder / "state.json"
    path.write_text(json.dumps({"parts": [{"curriculum.record": {"epoch_means": means}}]}))
    return str(path)


def drawn(part: Any, steps: int, count: int) -> Counter[str]:
    bound = part.bind()
    return Counter(p.id for i in range(steps) for p in bound.choose(POOL, count, Stream(0).split("step", i)))


def test_phases_part_the_pool_by_length() -> None:
    """Row qwenlong-l1, identity 4."""
    seen = [
        set(drawn(WithinLengths(above=above, most=most), 8, len(POOL)))
        for above, most in zip((0, 10, 25), LIMITS)
    ]  # fmt: skip
    assert [len(s) for s in seen] == [10, 15, 15]
    assert set().union(*seen) == {p.id for p in POOL}


def test_without_limits_it_is_the_curriculum_that_it_holds() -> None:
    for part in (WithinLengths(), Retrospective(), Retrospective(of=WithinLengths())):
        here, there = part.bind(), Uniform().bind()
        for i in range(5):
            stream = Stream(3).split("step", i)
            assert here.choose(POOL, 16, stream) == there.choose(POOL, 16, stream)


def test_limits_that_nothing_keeps_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be larger than above"):
        WithinLengths(above=9, most=9)
    with pytest.raises(ConfigError, match=r"none of the first 40 problems.*they have from 1 to 40"):
        WithinLengths(above=99).bind().choose(POOL, 1, Stream(0))


def test_a_conversation_is_as_long_as_what_is_said_in_it() -> None:
    said = [{"role": "system", "content": "abc"}, {"role": "user", "content": [{"type": "text", "text": "de"}]}]
    assert length(Problem("c", said)) == 5


@pytest.mark.slow
def test_problems_of_means_a_quarter_and_a_half_come_two_to_one_and_solved_ones_never(tmp_path: Path) -> None:
    """Row qwenlong-l1, identity 3; by the last mean, whatever was before."""
    run = record_of(tmp_path, {"p1": [0.9, 0.25], "p2": [0.0, 0.5], "p3": [0.1, 1.0]})
    part = Retrospective(run=run, share=1.0).bind()
    found = Counter(part.choose(POOL, 1, Stream(0).split(i))[0].id for i in range(6000))
    assert set(found) == {"p1", "p2"}
    assert abs(found["p1"] / 6000 - 2 / 3) < 0.02  # three standard deviations


def test_never_solved_problems_weigh_as_much_as_the_cap_and_penalties_do_not_matter(tmp_path: Path) -> None:
    run = record_of(tmp_path, {"p1": [0.0], "p2": [-0.5], "p3": [0.05], "p4": [0.5], "p5": [0.999]})
    part = Retrospective(run=run, cap=16.0).bind()
    part.choose(POOL, 1, Stream(0))
    weights = [part.weight(f"p{i}") for i in range(1, 6)]
    assert weights == [16.0, 16.0, 16.0, 2.0, pytest.approx(1 / 0.999)]


def test_with_groups_of_eight_never_and_once_weigh_alike_but_for_a_larger_cap(tmp_path: Path) -> None:
    run = record_of(tmp_path, {"p1": [0.0], "p2": [1 / 8], "p3": [2 / 8]})
    for cap, wanted in ((8.0, [8.0, 8.0, 4.0]), (1000.0, [1000.0, 8.0, 4.0])):
        part = Retrospective(run=run, cap=cap).bind()
        part.choose(POOL, 1, Stream(0))
        assert [part.weight(f"p{i}") for i in (1, 2, 3)] == wanted
    assert Retrospective().cap == 8.0


def test_a_share_of_each_step_is_of_the_earlier_run(tmp_path: Path) -> None:
    run = record_of(tmp_path, {f"p{i}": [0.5] for i in range(1, 11)})
    part = Retrospective(run=run, share=0.3, of=WithinLengths(above=10)).bind()
    counts = []
    for i in range(400):
        chosen = part.choose(POOL, 5, Stream(0).split(i))
        again = [p.id for p in chosen if length(p) <= 10]
        assert len(chosen) == 5
        assert len(again) == len(set(again))
        counts.append(len(again))
    assert set(counts) == {1, 2}
    assert abs(sum(counts) / len(counts) - 1.5) < 0.08


def test_no_more_come_again_than_there_are(tmp_path: Path) -> None:
    run = record_of(tmp_path, {"p1": [0.5], "p2": [1.0], "elsewhere": [0.0]})
    part = Retrospective(run=run, share=1.0, of=WithinLengths(above=10)).bind()
    assert [p.id for p in part.choose(POOL, 4, Stream(0)) if length(p) <= 10] == ["p1"]


def test_what_is_solved_now_comes_no_more(tmp_path: Path) -> None:
    run = record_of(tmp_path, {"p1": [0.0], "p2": [0.0]})
    part = Retrospective(run=run, share=1.0).bind()
    assert {p.id for p in part.choose(POOL, 2, Stream(0))} == {"p1", "p2"}
    part.record.visit("p1", 1.0)
    for i in range(20):
        assert sum(p.id == "p1" for p in part.choose(POOL, 2, Stream(1).split(i))) <= 1  # from the whole pool only
    assert part.weight("p1") == 0.0


def test_the_next_phase_has_the_record_of_all_before(tmp_path: Path) -> None:
    run = record_of(tmp_path, {"p1": [0.5, 0.25], "p2": [1.0]})
    part = Retrospective(run=run).bind()
    part.choose(POOL, 4, Stream(0))
    part.record.visit("p30", 0.75)
    state = {"curriculum": part.state, "curriculum.record": part.record.state}
    (tmp_path / "next").mkdir()
    (tmp_path / "next" / "state.json").write_text(json.dumps({"parts": [state]}))
    found = EpochMeans.of_run(tmp_path / "next")
    assert {p: found.means(p)[-1] for p in ("p1", "p2", "p30")} == {"p1": 0.25, "p2": 1.0, "p30": 0.75}


def test_it_goes_on_from_its_state_without_the_earlier_run(tmp_path: Path) -> None:
    run = record_of(tmp_path, {"p1": [0.5], "p2": [0.25]})
    part = Retrospective(run=run, share=0.5).bind()
    part.choose(POOL, 4, Stream(0))
    saved = json.loads(json.dumps({k: p.state for k, p in (("", part), ("record", part.record), ("of", part.of))}))
    again = Retrospective(run=run, share=0.5).bind()
    for name, state in saved.items():
        (again if not name else getattr(again, name)).state.update(state)
    Path(run).unlink()
    for i in range(5):
        assert part.choose(POOL, 4, Stream(0).split(i)) == again.choose(POOL, 4, Stream(0).split(i))


def test_a_run_without_a_record_is_refused(tmp_path: Path) -> None:
    part = Retrospective(run=str(tmp_path)).bind()
    with pytest.raises(ConfigError, match="no record"):
        part.choose(POOL, 1, Stream(0))

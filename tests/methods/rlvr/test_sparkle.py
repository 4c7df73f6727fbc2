"""SPARKLE's partial step scaffolding: blocks of worked answers as starts, and what is learned from there on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import etude
from etude.advantages.group import GroupAdvantage, GroupMean, GroupStd
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.registry import get_method
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.experience.said import solution_blocks
from etude.methods.rlvr.sparkle import ScaffoldedGroups
from etude.tasks.agents.attr_20q import attr_20q
from etude.tasks.language.sums import Sums
from language_toys import Toy, random_policy

pytestmark = pytest.mark.usefixtures("one_thread")
TASK = Sums(terms=(5,))


def collected(part: Any, task: Any = TASK, count: int = 16) -> list[Any]:
    context = Context(task, random_policy(), Stream(5), max_tokens=task.max_tokens)
    found: list[Any] = part.collect([task.problems("train")[i] for i in range(count)], context)
    return found


@pytest.mark.parametrize("separator", ["", ",", ";"])
def test_blocks_are_the_solution_cut_into_as_many_pieces(separator: str) -> None:
    """Identity (1) of the row."""
    for index in range(20):
        worked = str(TASK.demonstration(TASK.problems("train")[index]))
        for count in (1, 3, 4, 9):
            blocks = solution_blocks(worked, count, separator)
            assert "".join(blocks) == worked and len(blocks) == count
            if separator == ",":
                sizes = [len([s for s in b.split(",") if s]) for b in blocks]
                assert max(sizes) - min(sizes) <= 1 and all(b.endswith(",") or not b for b in blocks[:-1])


@pytest.mark.slow
def test_what_was_said_is_never_learned_and_without_blocks_it_is_a_plain_group() -> None:
    episodes = collected(ScaffoldedGroups(size=3, separator=","))
    plain = collected(Groups(size=3))
    counts = [e.info["blocks"] for e in episodes]
    assert {*counts} == {0, 1, 2, 3, 4} and all(len({*counts[i : i + 3]}) == 1 for i in range(0, 48, 3))
    for e, same, count in zip(episodes, plain, counts):
        blocks = solution_blocks(str(TASK.demonstration(e.problem)), 4, ",")
        said = e.segments[-1]
        begun = said.info.get("begun", 0)
        assert e.completion.startswith("".join(blocks[:count])) and e.group == same.group
        assert said.action_mask == [0] * begun + [1] * (len(said.tokens) - begun) and (begun > 0) == (count > 0)
        assert len(said.tokens) <= TASK.max_tokens and e.reward == TASK.score(e.problem, e.completion)
        assert (said.tokens == same.segments[-1].tokens) == (count == 0)
    assert [e.tokens for e in collected(ScaffoldedGroups(size=3, shown=(0,)))] == [e.tokens for e in plain]


def test_what_leaves_no_room_is_not_shown() -> None:
    longer: Any = type("Longer", (Toy,), {"demonstration": lambda self, problem: "abcdefgh"})(max_tokens=5)
    episodes = collected(ScaffoldedGroups(size=1, shown=(4,)), longer, 3)
    assert [e.info["blocks"] for e in episodes] == [2, 2, 2] and all(len(e.segments[-1].tokens) <= 5 for e in episodes)
    assert "no worked answer" in (ScaffoldedGroups().lacks(Toy()) or "")


def test_advantages_are_the_same_whether_a_failure_costs_1_or_nothing(make_batch: Any) -> None:
    """Identity (3) of the row: -1 and 2 against 0 and 1."""
    right, group = torch.tensor([1.0, 0, 0, 1, 0, 0, 0, 1], dtype=torch.float64), torch.tensor([0] * 4 + [1] * 4)
    part = GroupAdvantage(centre=GroupMean(), scale=GroupStd())
    batch = make_batch([[1]] * 8, group=group)
    found = [part.of_scores(batch, scores) for scores in (right, 3 * right - 1)]
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=0)
    assert float(found[0].abs().min()) > 0.5


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="how many of 4 blocks"):
        ScaffoldedGroups(shown=(5,))
    with pytest.raises(ConfigError, match="has several"):
        check(get_method("sparkle"), attr_20q)


@pytest.mark.slow
def test_the_second_stage_has_the_problems_that_the_first_never_solved(tmp_path: Path) -> None:
    fields = {
        "runs.first.steps": 1, "runs.second.steps": 2, "runs.rates.problems": 10, "problems": 4, "experience.size": 2,
        "experience.separator": ",",
    }  # fmt: skip
    done = etude.train("sparkle-two-stages", "sums", set=fields, evaluate=0, out=tmp_path / "r", quiet=True, threads=1)
    rates = done.folder / "02-rates" / "data.jsonl"
    rows = [json.loads(line) for line in rates.read_text().splitlines()]
    never = {row["id"] for row in rows if row["rate"] == 0}
    learned = [json.loads(line) for line in (done.folder / "03-second" / "episodes.jsonl").read_text().splitlines()]
    assert 0 < len(never) < len(rows) == 10 and {line["id"] for line in learned} <= never
    assert all(abs(20 * row["rate"] - round(20 * row["rate"])) < 1e-9 for row in rows)
    told = {name: json.loads((done.folder / name / "method.json").read_text()) for name in ("01-first", "03-second")}
    assert [told[name]["regularizers"][0]["coefficient"] for name in told] == [0.001, 0.01]
    assert told["01-first"]["rewards"] == told["03-second"]["rewards"]
    assert "01-first" in json.loads((done.folder / "03-second" / "config.json").read_text())["model"]

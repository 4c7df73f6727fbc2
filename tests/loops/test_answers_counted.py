"""How many tokens of answers a step learned from, and how many it had in view, against the task's own answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.policies.language import LanguagePolicy
from etude.tasks import resolve_task

SIZES = {"problems": 2, "experience.size": 2}  # of which the run folder keeps every episode


def trained(method: str, folder: Path, **fields: Any) -> tuple[dict[str, float], list[str]]:
    """The metrics of a step, and the worked answers of its problems."""
    told = {**SIZES, **fields}
    done = etude.train(method, "sums", set=told, steps=1, evaluate=0, out=folder, quiet=True, preset=False)
    ids = [json.loads(line)["id"] for line in (folder / "episodes.jsonl").read_text().splitlines()]
    task = resolve_task("sums")
    problems = task.problems("train")
    chosen = [problems[int(i.rsplit("/", 1)[-1])] for i in dict.fromkeys(ids)]
    assert [p.id for p in chosen] == list(dict.fromkeys(ids))
    return done.metrics[-1], [str(task.demonstration(p)) for p in chosen]


def tokens(texts: list[str]) -> int:
    policy = LanguagePolicy.load("tiny", device="cpu")
    return sum(len(policy.encode(text)) for text in texts)


def test_where_no_answer_is_used_none_is_counted(tmp_path: Path) -> None:
    found, _ = trained("grpo", tmp_path / "run")
    assert not {"given_tokens", "shown_tokens"} & set(found)


@pytest.mark.slow
@pytest.mark.parametrize(("gamma", "share"), [(1.0, 1), (-0.5, 0)])
def test_answers_that_the_gate_keeps_are_learned_from(gamma: float, share: int, tmp_path: Path) -> None:
    found, answers = trained("hpt", tmp_path / "run", **{"filters.0.gamma": gamma})
    assert len(answers) == SIZES["problems"] and "shown_tokens" not in found
    assert found.get("given_tokens", 0) == share * (tokens(answers) + len(answers)), "with an end token each"


def test_every_row_of_sft_is_given(tmp_path: Path) -> None:
    done = etude.train("sft", "sums", set={"problems": 3}, steps=1, evaluate=0, out=tmp_path / "run", quiet=True)
    (found,) = done.metrics
    assert found["given_tokens"] == pytest.approx(found["rows"] * found["completion_length"])


@pytest.mark.slow
def test_a_hint_is_counted_once_for_a_problem_and_a_stage(tmp_path: Path) -> None:
    fields = {"second_look.which": "all-problems", "second_look.shows.shares": "0.5,1.0"}
    found, answers = trained("ghpo", tmp_path / "run", **fields)
    halves = [text[: round(0.5 * len(text))] for text in answers]
    assert found["shown_tokens"] == tokens(halves) + tokens(answers) and "given_tokens" not in found


@pytest.mark.slow
def test_a_verdict_tells_the_answer_to_each_attempt(tmp_path: Path) -> None:
    attempts = 2
    found, answers = trained("critique-grpo", tmp_path / "run", **{"experience.size": attempts})
    last = [text.rsplit(",", 1)[-1] for text in answers]  # the sum ends its running totals
    assert found["shown_tokens"] == attempts * tokens(last) and "given_tokens" not in found


@pytest.mark.slow
def test_blocks_that_are_said_already(tmp_path: Path) -> None:
    found, answers = trained("sparkle", tmp_path / "run", **{"experience.shown": "2", "experience.blocks": 2})
    assert found["shown_tokens"] == tokens(answers)
    without, _ = trained("sparkle", tmp_path / "none", **{"experience.shown": "0"})
    assert "shown_tokens" not in without

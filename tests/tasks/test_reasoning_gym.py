"""The reasoning-gym adapter: its own verifiers, disjoint splits, and answers that must not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etude.core.errors import ConfigError, MissingExtraError, UnknownNameError
from etude.tasks import resolve_task
from etude.tasks.language import reasoning_gym as adapter
from etude.tasks.language.reasoning_gym import BLOCK, ReasoningGym

pytest.importorskip("reasoning_gym")
pytestmark = pytest.mark.slow  # the package lives in a process that takes a second or two to start


def test_problems_are_scored_by_their_own_verifier() -> None:
    task = resolve_task("reasoning-gym:chain_sum")
    assert isinstance(task, ReasoningGym)
    problem = task.problems("train")[3]
    numbers = problem.prompt.partition(":")[2].strip(" =")  # type: ignore[union-attr]
    total = sum(int(n) for n in numbers.replace("- ", "+ -").split(" + "))
    assert task.demonstration(problem) == problem.answer == str(total)
    assert task.score(problem, f" {total}\n") == 1.0
    assert task.score(problem, f"Let me see. <answer>{total}</answer> That is it.") == 1.0
    assert task.score(problem, str(total + 1)) == 0.0
    assert (problem.id, problem.level) == ("reasoning-gym:chain_sum/train/3", "chain_sum")


def test_a_seed_means_the_same_problems_and_splits_share_none() -> None:
    task = ReasoningGym("base_conversion", size=40)
    train, test = ([p.prompt for p in task.problems(split)] for split in ("train", "test"))
    assert len(set(train) & set(test)) == 0
    assert train == [p.prompt for p in ReasoningGym("base_conversion", size=40).problems("train")]
    assert train != [p.prompt for p in ReasoningGym("base_conversion", size=40, seed=1).problems("train")]


def test_seeds_of_splits_never_meet() -> None:
    taken: list[range] = []
    for seed in (0, 1, 2047):
        for split in ("train", "test"):
            first = ReasoningGym("chain_sum", seed=seed)._which(split, 0)["seed"]
            assert all(first >= r.stop or first + BLOCK <= r.start for r in taken)
            assert first + BLOCK <= 2**32  # numpy's limit
            taken.append(range(first, first + BLOCK))


def test_datasets_that_follow_the_hash_seed_are_the_same_in_every_process() -> None:
    worker = adapter._gym()
    which = ReasoningGym("word_ladder", size=10)._which("train", 1)
    before = worker.call({"what": "problem", **which}, 60)
    worker.close()
    assert worker.call({"what": "problem", **which}, 60) == before


def test_answers_are_not_run(tmp_path: Path) -> None:
    task = ReasoningGym("countdown", size=5)
    problem = task.problems("test")[0]
    for code in ("__import__('pathlib').Path({!r}).touch()", "(lambda p: open(p, 'w'))({!r})"):
        assert task.score(problem, code.format(str(tmp_path / "run"))) == 0.01  # what this dataset gives no answer
    assert task.score(problem, "1" * 3_000) == 0.01
    assert not (tmp_path / "run").exists()
    assert task.score(problem, problem.answer) == 1.0


def test_an_answer_that_hangs_the_verifier_scores_zero(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = ReasoningGym("countdown", size=5)
    problem = task.problems("test")[0]
    monkeypatch.setattr(adapter, "SECONDS", 0.3)
    assert task.score(problem, "9**9**9**9") == 0.0
    assert "did not return within 0.3 s on reasoning-gym:countdown/test/0; scored 0." in caplog.text


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("__import__('os').system('ls')", False),
        ("(preview)(x)", False),
        ("x.n(3)", False),
        ("S('x')", False),
        ("(1 + 2)*3/4 - sqrt(5)", True),
        ("2*x**2*sin(x) + 1e5*y(2)", True),
        ("[(1, 'a'), ('(', 2)]", True),
        ("ABBA", True),
    ],
)
def test_harmless(text: str, harmless: bool) -> None:
    from etude.tasks.language import _gym

    assert _gym.harmless(text) is harmless


def test_names_and_settings_that_do_not_exist() -> None:
    with pytest.raises(UnknownNameError, match=r"no reasoning-gym dataset named 'chain_sun'. Did you mean 'chain_sum'"):
        resolve_task("reasoning-gym:chain_sun")
    with pytest.raises(UnknownNameError, match="Did you mean 'test'"):
        ReasoningGym("chain_sum").problems("tests")
    with pytest.raises(ConfigError, match="reasoning-gym cannot make problem 0 of composite: AssertionError: Must"):
        ReasoningGym("composite").problems("train")
    with pytest.raises(ConfigError, match=r"ReasoningGym.seed must be a whole number in \[0, 2047\], got 2048"):
        ReasoningGym("chain_sum", seed=2048)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    find: Any = adapter.importlib.util.find_spec
    monkeypatch.setattr(adapter.importlib.util, "find_spec", lambda n: None if n == "reasoning_gym" else find(n))
    with pytest.raises(MissingExtraError, match=r"The task reasoning-gym:chain_sum needs .* 'etude\[tasks\]'"):
        ReasoningGym("chain_sum")

"""Program-DSL: what is carried out, by hand; simulated seconds; fits against independent ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from etude.core.episodes import Problem, Segment
from etude.core.errors import UnknownNameError
from etude.core.meters import metering
from etude.policies.agent_words import FEATURES, MODELS, SIZES
from etude.policies.word_tokenizer import build_word_tokenizer
from etude.tasks.agents.program_dsl import (
    Choice,
    ProgramDSL,
    _columns,
    _data,
    _linear,
    _neighbours,
    accuracy,
    executed,
    program,
    program_dsl,
    seconds,
)

BEST = "read features products model trees medium train predict save"


def run(text: str, task: ProgramDSL = program_dsl) -> tuple[float, dict[str, object], float]:
    """Reward, info and simulated seconds."""
    game = task.environment()
    game.reset(Problem("1", " plan 1\n", info={"number": 1}), 0)
    with metering() as meter:
        result = game.step(Segment("assistant", text))
    assert result.terminated and result.info is not None and meter.used is not None
    return result.reward, result.info, meter.used.seconds


def test_a_program_by_hand() -> None:
    reward, info, taken = run(BEST)
    assert reward == accuracy(0, 1, Choice("products", "trees", "medium")) > 0.9
    assert info == {"success": True, "valid": True, "steps": 6, "submitted": True}
    assert taken == pytest.approx(1.6 * 1.0 * 1.5 + 5 * 0.02)
    assert run(f"{BEST} read nonsense")[0] == reward, "nothing follows a submission"


@pytest.mark.parametrize(
    ("text", "steps", "taken"),
    [
        ("", 0, 0.0),
        (BEST.replace("read ", ""), 0, 0.0),
        (BEST.replace(" train", ""), 3, 0.06),
        (BEST.replace("products", "squared"), 1, 0.02),
        (BEST.replace(" medium", ""), 2, 0.04),
        (BEST.replace(" save", ""), 5, 2.4 + 0.08),  # fitted for nothing
        (BEST.replace(" predict", ""), 4, 2.4 + 0.06),
        ("model trees medium read features products train predict", 5, 2.4 + 0.08),
    ],
)
def test_what_lacks_a_step_fails_there(text: str, steps: int, taken: float) -> None:
    reward, info, used = run(text)
    assert (reward, info["steps"], info["submitted"]) == (-10.0, steps, False) and used == pytest.approx(taken)


def test_any_submission_beats_any_failure() -> None:
    """The failures with a tenth for each step still end below."""
    worst = min(accuracy(0, n, Choice("plain", "constant", "small")) for n in (1, 2, 3))
    assert worst > program_dsl.failure + 0.1 * 6


def test_better_models_are_slower() -> None:
    fast, slow = Choice("products", "linear", "small"), Choice("products", "trees", "medium")
    for number in (1, 2, 3):
        assert accuracy(0, number, slow) > accuracy(0, number, fast) + 0.02
    times = [seconds(Choice(*c)) for c in itertools.product(FEATURES, MODELS, SIZES)]
    assert 0.04 < min(times) < 0.1 and 4 < max(times) < 5


def test_fits_are_those_of_slow_ones() -> None:
    x, y = _data(0, 2)
    x, y = _columns(x, "products")[:60], y[:60]
    slow = np.linalg.solve(
        (a := np.concatenate([x[:40], np.ones((40, 1))], 1)).T @ a, a.T @ y[:40]
    )  # the normal equations
    expected = np.concatenate([x[40:], np.ones((20, 1))], 1) @ slow
    np.testing.assert_allclose(_linear(x[:40], y[:40], x[40:], 0), expected, atol=1e-6)
    votes = [sum(y[k] for k in sorted(range(40), key=lambda k: ((row - x[k]) ** 2).sum())[:9]) for row in x[40:]]
    np.testing.assert_allclose(_neighbours(x[:40], y[:40], x[40:], 0), votes)


def test_problems_are_the_same_every_time_and_written_in_words() -> None:
    words = build_word_tokenizer("games", 512)
    problems = [program_dsl.problems("train")[i] for i in range(100)]
    assert problems[7] == ProgramDSL().problems("train")[7] != program_dsl.problems("test")[7]
    whole = sum(executed(p.info["demonstration"].split())[0][-1:] == ["save"] for p in problems)
    assert 65 < whole < 95, "one in five lacks a step"
    for problem in problems[:10]:
        tokens = words.encode(problem.prompt + problem.info["demonstration"])
        assert words.unk_token_id not in tokens and len(tokens) < 16
    assert "".join(program(Choice(*BEST.split()[2::2][:1], "trees", "medium"))).split() == BEST.split()
    with pytest.raises(UnknownNameError, match="program-dsl"):
        program_dsl.problems("dev")

"""How mistakes add up: hazards by hand and by enumeration, on one's own texts and behind worked ones."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from etude.core.episodes import Problem
from etude.core.errors import DataError
from etude.evaluation.compounding import Hazard, counted, left_at, own_rollouts, shown_prefixes
from etude.evaluation.language import evaluate_split
from etude.policies.language import LanguagePolicy
from etude.tasks.language.checksums import ALLOWED, SYMBOLS, Checksums, walk
from etude.tasks.language.compose import Compose
from language_toys import random_policy

FIRST = "af"


def chances(text: str, error: float) -> float:
    """Of a policy that errs so often at every step, and is lost then: any of four wrong or of four right symbols."""
    string = FIRST + text
    steps = (string[i] in ALLOWED[string[i - 2 : i]] for i in range(2, len(string)))
    return math.prod((1 - error) / 4 if right else error / 4 for right in steps)


def test_without_repairs_a_string_is_valid_by_one_less_e_to_its_length() -> None:
    """Enumerated over all strings of up to four symbols."""
    for error, length in itertools.product((0.0, 0.1, 0.37), (1, 2, 4)):
        whole = ["".join(s) for s in itertools.product(SYMBOLS, repeat=length)]
        assert sum(chances(text, error) for text in whole) == pytest.approx(1.0, abs=1e-12)
        valid = [text for text in whole if (w := walk(FIRST, text, length)).left is None and not w.open]
        assert sum(chances(text, error) for text in valid) == pytest.approx((1 - error) ** length, abs=1e-12)


def test_a_constant_hazard_compounds() -> None:
    even = Hazard(np.array([1000, 900, 810, 729]), np.array([100, 90, 81, 0]))
    np.testing.assert_allclose(even.valid, [0.9, 0.81, 0.729, 0.729], atol=1e-12)
    random = np.random.default_rng(0)
    runs = []
    for _ in range(4000):
        wrong = np.flatnonzero(random.random(6) < 0.2)
        runs.append((int(wrong[0]) + 1, int(wrong[0])) if len(wrong) else (6, None))
    found = counted(runs, 6)
    assert found.mean == pytest.approx(0.2, abs=4 * (0.16 / found.tried.sum()) ** 0.5)
    assert found.valid[-1] == pytest.approx(sum(place is None for _, place in runs) / 4000, abs=1e-12)
    assert abs(found.valid[-1] - 0.8**6) < 4 * (0.8**6 * (1 - 0.8**6) / 4000) ** 0.5


def told(policy: LanguagePolicy, text: str, ends: bool, length: int = 2) -> int | None:
    tokens = policy.encode(text) + policy.end_ids[:1] * ends
    return left_at(tokens, Problem("1", f"{length}:{FIRST}>"), Checksums(lengths=(length,)), policy)


def test_the_token_that_leaves_may_be_the_end() -> None:
    policy = random_policy(seed=0)
    a = ALLOWED[FIRST][0]
    b = ALLOWED[FIRST[1] + a][0]
    wrong = next(s for s in SYMBOLS if s not in ALLOWED[FIRST])
    assert told(policy, a + b, True) is None and told(policy, a + b, False) is None
    assert told(policy, a, True) == 1 and told(policy, a, False) is None and told(policy, "", True) == 0
    assert told(policy, wrong, True) == 1 and told(policy, wrong + a, False) == 1
    assert told(policy, wrong + "!" + a + b, True) is None
    with pytest.raises(DataError, match="compose does not say of a beginning"):
        left_at([], Problem("1", "f1(x) a>"), Compose(), policy)


@pytest.mark.slow
def test_own_texts_are_followed_to_where_they_are_lost() -> None:
    policy, task = LanguagePolicy.load("tiny", device="cpu"), Checksums(lengths=(1,))
    problems = list(task.problems("train")[:100])
    found = own_rollouts(policy, task, problems, samples=2, seed=1)
    assert found.tried[0] == 200 and (np.diff(found.tried) <= 0).all() and (found.left <= found.tried).all()
    assert (found.tried[1:] <= found.tried[:-1] - found.left[:-1]).all()
    lost = found.left.sum()
    assert 0 < lost <= 200
    score = evaluate_split(policy, task, "train", problems=100, samples=2).rewards.mean()
    assert abs(1 - lost / 200 - score) < 0.15  # but for texts that a limit cuts


@pytest.mark.slow
def test_behind_a_worked_prefix_the_next_token_errs_as_the_policy_says() -> None:
    """Exactly: the chance of all tokens after which the beginning can never be valid, or which end it too soon."""
    policy, task = random_policy(seed=0), Checksums(lengths=(2,), repairs=0.0)
    (problem,) = task.problems("train")[:1]
    shown, size = problem.info["demonstration"], 400
    found = shown_prefixes(policy, task, [problem], samples=size, seed=2)
    assert found.tried.tolist() == [size] * 3 + [0] * 4
    for place in range(3):
        tokens = policy.encode(shown[:place])
        with torch.no_grad():
            seen = torch.tensor([policy.encode(str(problem.prompt)) + tokens])
            chance = policy.model(seen).logits[0, -1].double().softmax(-1).tolist()
        leaves = [left_at([*tokens, i], problem, task, policy) is not None for i in range(len(chance))]
        wanted = sum(p for p, lost in zip(chance, leaves) if lost)
        assert abs(found.rate[place] - wanted) < 4.5 * (wanted * (1 - wanted) / size) ** 0.5 + 1e-3

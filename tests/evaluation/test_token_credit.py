"""Credit of tokens: log-ratios as they are, the tokens of a step, and who is blamed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from etude.core.errors import ConfigError, DataError
from etude.core.rows import to_batch
from etude.evaluation.credit import CreditEvaluation, answered, evaluate_credit, lowest, token_ratios, tokens_of_step
from etude.policies.texts.models import SavedModel
from etude.runs.worlds import EvaluationOptions
from etude.runs.worlds.asked import credit_asked
from etude.tasks.agents.attr_20q import attr_20q
from etude.tasks.language.compose import compose
from etude.tasks.language.digest import VOCABULARY, Digest, digest, gold, words_of
from etude.tasks.language.sums import sums
from language_toys import random_policy

pytestmark = pytest.mark.usefixtures("one_thread")


def model(policy: Any) -> SavedModel:
    """A policy as one from outside of the run."""
    part = SavedModel(model="toy").bind()
    part.made["speaker"] = policy
    return part


def test_a_spoilt_answer_is_the_best_one_but_for_a_word_that_the_prompt_has_not() -> None:
    places = set()
    for i in range(40):
        problem = digest.problems("test")[i]
        (good, right), (spoilt, place) = digest.given_solutions(problem)
        assert right == -1 and [w for w, v in zip(good, spoilt) if w != v] == [good[place]]
        assert spoilt[place] in VOCABULARY and spoilt[place] not in words_of(problem)
        assert gold(words_of(problem), "".join(good)) == problem.info["best"]
        assert digest.given_solutions(problem) == Digest().given_solutions(problem)
        assert digest.solution_steps("".join(good)) == good and digest.step_joint.join(good) == "".join(good)
        places.add(place)
    assert len(places) > 4


def test_log_ratios_are_those_of_the_models_and_add_up_to_the_answers() -> None:
    own, other = random_policy(seed=0), random_policy(seed=1)
    problem = digest.problems("test")[0]
    rows = [answered(problem, text, n, own, digest) for n, text in enumerate(("abc", "d"))]
    found = token_ratios(own, model(other), rows)
    batch = to_batch(rows, own.tokenizer.pad_token_id, 1.0, own.device)
    sums_of = [(p.evaluate(batch).logp.detach() * batch.action_mask).sum(1) for p in (own, other)]
    np.testing.assert_allclose([f.sum() for f in found], (sums_of[0] - sums_of[1]).tolist(), atol=1e-4)
    assert [len(f) for f in found] == [4, 2]  # with the token that ends an answer
    assert not any(f.any() for f in token_ratios(own, model(own), rows))


def test_a_policy_that_knows_what_is_in_the_prompt_blames_the_wrong_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose log-ratio is -1 for a word that the prompt has not, at every place, and else 0: it hits always."""
    policy = random_policy()

    def ratios(own: Any, reference: Any, rows: Any) -> list[Any]:
        return [np.array([*[-float(w not in words_of(e.problem)) for w in e.completion], -0.5]) for e in rows]

    monkeypatch.setattr("etude.evaluation.credit.token_ratios", ratios)
    found = evaluate_credit(policy, model(policy), digest, "test", problems=12)
    scores = {name: interval.value for name, interval in found.summary().items()}
    assert scores["credit/hit"] == 1 and scores["credit/wrong"] == -1 and scores["credit/others"] == 0
    assert scores["credit/spoilt-answer"] == -1.5 and scores["credit/whole-answer"] == -0.5
    sizes = [len(digest.given_solutions(digest.problems("test")[i])[0][0]) for i in range(12)]
    assert scores["credit/chance"] == pytest.approx(np.mean([1 / n for n in sizes]))  # the end is no candidate
    assert scores["credit/gain"] == pytest.approx(1 - scores["credit/chance"])


def test_hits_by_hand() -> None:
    ratios = [np.array([0.2, -1.0, 0.0]), np.array([-3.0, -1.0])]
    wrong = [np.array([False, True, True]), np.array([False, True])]
    found = CreditEvaluation("test", ratios, wrong, np.array([-0.8, -4.0]), np.array([])).summary()
    assert found["credit/hit"].value == 0.5 and found["credit/chance"].value == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found["credit/wrong"].value == pytest.approx(-0.75) and found["credit/others"].value == pytest.approx(-1.4)
    assert "credit/whole-answer" not in found and lowest(np.array([1.0, 0.0])) == 1


def test_the_tokens_of_a_step_where_tokens_are_longer_than_characters() -> None:
    spelled = {1: "12", 2: ",", 3: "3,4", 4: "5", 9: ""}
    policy: Any = SimpleNamespace(decode=lambda tokens: "".join(spelled[t] for t in tokens))
    said = [1, 2, 3, 4, 9]  # 12,3,45 and the end
    for label, marked in enumerate(([1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1])):
        assert tokens_of_step(said, ["12", "3", "45"], label, ",", policy).tolist() == [bool(x) for x in marked]
    problem = sums.problems("test")[0]
    steps = sums.given_solutions(problem)[1][0]
    assert sums.solution_steps(sums.step_joint.join(steps)) == steps


def test_what_has_no_credit_is_refused() -> None:
    policy = random_policy()
    with pytest.raises(ConfigError, match="in one turn"):
        evaluate_credit(policy, model(policy), attr_20q, "test")
    with pytest.raises(DataError, match="'steps'"):
        evaluate_credit(policy, model(policy), compose, "test", problems=3)
    for wrong in ({"search": "best-of:2"}, {"k": (1,)}, {"temperature": 0.0}, {"judge": "plain"}):
        with pytest.raises(ConfigError, match="leave out --"):
            credit_asked(EvaluationOptions(credit="tiny", **wrong), digest, {})
    with pytest.raises(ConfigError, match="this is no run"):
        credit_asked(EvaluationOptions(credit="start"), digest, {})
    asked = credit_asked(EvaluationOptions(credit="start"), digest, {"model": "tiny"})
    assert asked == SavedModel(model="tiny") and credit_asked(EvaluationOptions(), digest, {}) is None

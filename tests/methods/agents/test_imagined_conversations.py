"""IE+RL: what is imagined, what the critique rejects, and ask-then-recommend in a table."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import torch

from etude.core.episodes import Segment
from etude.core.errors import DataError
from etude.core.registry import get_method
from etude.experience.dialogues import Dialogue, counted
from etude.learners.token_values import ImplicitTokenQ
from etude.learners.value import Expectile
from etude.methods.agents.imagined_conversations.imagination import (
    CONTRADICTS,
    GATHERS_NOTHING,
    Imagine,
    answers,
    criticised,
)
from etude.tasks import resolve_task
from etude.tasks.agents.recommend import Recommend, recommend
from value_tables import Tables, game, played, told

PERSONAS = [recommend.problems("train")[i] for i in range(60)]


def talk(*said: str) -> Dialogue:
    return Dialogue([Segment("assistant" if k % 2 else "user", text) for k, text in enumerate(said)])


# The task


def test_asking_what_matters_and_recommending_then_is_right_for_everybody() -> None:
    for persona in ("000000", "101010", "111111", "011000"):
        env = recommend.environment()
        env.reset(PERSONAS[0].__class__("p", "plan?\n", persona), 0)
        heard = [env.step(Segment("assistant", f"ask {k}")).segments[0].text.strip() for k in "abc"]
        bits = "".join(str(int(h == "yes")) for h in heard)
        last = env.step(Segment("assistant", f"go {int(bits, 2)}"))
        assert bits == persona[:3] and last.reward == 1.0 and last.terminated and (last.info or {})["asked"] == 3.0


def test_a_recommendation_ends_it_and_what_cannot_be_said_is_told() -> None:
    env = recommend.replace(cost=0.1).environment()
    env.reset(PERSONAS[0].__class__("p", "plan?\n", "110000"), 0)
    for said in ("go 9", "ask z", "ask ab", "hello"):
        result = env.step(Segment("assistant", said))
        assert (result.segments[0].text, result.reward) == ("what?\n", -0.1) and not (result.info or {})["valid"]
        assert not result.terminated
    wrong = env.step(Segment("assistant", "go 5"))
    assert wrong.terminated and wrong.reward == 0.0 and not (wrong.info or {})["success"]


def test_personas_of_the_test_are_others() -> None:
    train, test = ({p.answer for p in recommend.problems(s)[:500]} for s in ("train", "test"))  # type: ignore[attr-defined]
    assert train and test and not train & test


# The engine


def test_the_critique_rejects_what_contradicts_and_what_asks_nothing() -> None:
    right = talk("plan?\n", "ask a", "yes\n", "ask d", "no\n", "go 4")
    assert list(answers(right)) == [(0, "1"), (3, "0")]
    assert criticised(recommend, "100000", right) is None
    assert criticised(recommend, "000000", right) == CONTRADICTS
    assert criticised(recommend, "100100", right) == CONTRADICTS
    assert criticised(recommend, "100000", talk("plan?\n", "go 4")) == GATHERS_NOTHING


def test_what_is_imagined_agrees_with_its_persona_and_rejections_are_counted() -> None:
    engine = Imagine(called="imagined", each=5, errors=0.5, hurry=0.3, drafts=3)
    kept, rejected = engine.imagined(PERSONAS, recommend, 0)
    personas = {str(p.answer) for p in PERSONAS}
    assert rejected[CONTRADICTS] > 10 and rejected[GATHERS_NOTHING] > 10
    assert all(criticised(recommend, d.id, d) is None for d in kept)
    assert 0.3 * 5 * len(personas) < len(kept) < 5 * len(personas)
    assert len(kept) + sum(rejected.values()) <= 5 * 4 * len(personas)
    for d in kept:  # what is paid is the persona's, and in the end
        last = d.segments[-1].text
        assert d.rewards[:-1] == [0.0] * (len(d.rewards) - 1)
        assert d.rewards[-1] == float(last == f"go {recommend.right(d.id)}")
    with pytest.raises(DataError, match="The critique rejected every imagined dialogue"):
        Imagine(called="imagined", each=1, hurry=1.0).rows(PERSONAS[:2], recommend, 0)
    with pytest.raises(DataError, match="imagines dialogues of recommend, and the task is text-maze"):
        engine.rows([], resolve_task("text-maze"), 0)  # type: ignore[arg-type]


def test_without_critique_and_reflection_and_with_one_persona_it_is_plain_sampling() -> None:
    plain = Imagine(called="imagined", each=300, errors=0.25, hurry=0.4, drafts=0, reflection=False)
    kept, rejected = plain.imagined(PERSONAS[:1], recommend, 0)
    assert len(kept) == 300 and not rejected
    persona = str(PERSONAS[0].answer)
    wrong = [persona[place] != told_ for d in kept for place, told_ in answers(d)]
    assert sum(wrong) / len(wrong) == pytest.approx(0.25, abs=0.05)  # the generator's own rate
    lengths = Counter(len(d.rewards) for d in kept)
    assert lengths[1] / 300 == pytest.approx(0.4, abs=0.08) and max(lengths) <= 5
    twice = plain.imagined([PERSONAS[0], PERSONAS[0]], recommend, 0)[0]
    once = plain.replace(reflection=True).imagined([PERSONAS[0], PERSONAS[0]], recommend, 0)[0]
    assert len(twice) == 600 and once == kept  # reflection is that every persona is there once


def test_errors_that_nobody_rejects_stay() -> None:
    kept = Imagine(called="imagined", each=3, errors=0.5, drafts=0).imagined(PERSONAS, recommend, 0)[0]
    assert any(criticised(recommend, d.id, d) == CONTRADICTS for d in kept)
    assert counted(kept)["returns"]["most"] == 1.0


# In a table: two personas, two questions of which the first tells them apart, two recommendations

ASK, IDLE, FIRST, SECOND = 4, 5, 6, 7
OPEN, YES, NO = 1, 2, 3


def talks() -> Any:
    """Every dialogue of a question or none, and a recommendation, with either persona: an agent who does anything."""
    games = []
    for persona, right in ((YES, FIRST), (NO, SECOND)):
        for said in (FIRST, SECOND):
            paid = float(said == right)
            games += [game([(OPEN, said, paid)])] * 2
            games.append(game([(OPEN, ASK, 0.0), (persona, said, paid)]))
            games.append(game([(OPEN, IDLE, 0.0), (OPEN, said, paid)]))
    return played(games)


@pytest.mark.slow
def test_in_a_table_it_asks_first_and_then_recommends_where_cloning_does_anything() -> None:
    part, network, batch = ImplicitTokenQ(gamma=1.0, state_error=Expectile(tau=0.98)), Tables(8, 8), talks()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    for _ in range(400):
        optimizer.zero_grad()
        part.loss(told(part, batch, network, network)).backward()
        optimizer.step()
    q = [h.values.detach() for h in network.q]
    least = torch.minimum(*q)
    said = torch.tensor([ASK, IDLE, FIRST, SECOND])

    def best(state: int) -> int:
        return int(said[least[state, said].argmax()])

    assert [best(s) for s in (OPEN, YES)] == [ASK, FIRST] and int(least[NO, SECOND] > least[NO, FIRST])
    # what cloning says are the data's frequencies
    first = batch.tokens[:, 1]
    shares = torch.tensor([int((first == w).sum()) for w in (ASK, IDLE, FIRST, SECOND)]) / len(first)
    assert shares.tolist() == [0.25, 0.25, 0.25, 0.25]
    tilted = (shares.log() + 8.0 * least[OPEN, said]).softmax(0)
    assert float(tilted[0]) > 0.5 and torch.equal((shares.log() + 0.0 * least[OPEN, said]).softmax(0), shares)


def test_the_recipe_trains_ilql_on_what_it_imagined() -> None:
    recipe: Any = get_method("imagined-conversations")
    engine, rl = recipe.runs
    assert isinstance(engine, Imagine) and engine.drafts > 0 and rl.method == "ilql"
    assert rl.takes() == ["imagined"] and recipe.budget == rl.steps
    assert list(itertools.chain(recipe.contradictions())) == [] and isinstance(recommend, Recommend)

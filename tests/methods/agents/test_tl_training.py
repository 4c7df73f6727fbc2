"""TL-Training: the table of errors, which tokens choose a tool and what they weigh, calls that nobody learns."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Episode, Problem, Segment
from etude.core.errors import ConfigError, DataError
from etude.core.registry import get_method
from etude.core.rows import to_batch
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.loops.credit import kept, loss
from etude.loops.language import LanguageLoop
from etude.methods.agents.tl_training import key_tokens
from etude.methods.agents.tl_training.calls import CallErrors, SoundCalls, of_call
from etude.methods.agents.tl_training.key_tokens import KeyTokens, MarkedCalls, call_weights, factors, kinds_of, marks
from etude.methods.agents.tl_training.listed import listed
from etude.policies.language import LanguagePolicy
from etude.policies.loading import load_tokenizer
from etude.tasks.agents.tool_dialogue import ToolDialogue, tool_dialogue
from etude.tasks.agents.tool_dsl import tool_dsl
from etude.tasks.language.sums import Sums

TL: Any = get_method("tl-training")
PPO: Any = get_method("tl-training-ppo")
GOLD = {"name": "get", "parameters": {"a": 1, "b": "x"}}
TOOLS = {"get": ["a", "b", "c"], "set": ["a"]}


def written(name: str, parameters: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'parameters': parameters})}\n</tool_call>"


def worth(said: str, gold: dict[str, Any] = GOLD) -> float:
    problem = Problem("1", "?", written(gold["name"], gold["parameters"]), info={"signatures": TOOLS})
    return CallErrors().score([Episode(problem, [Segment("assistant", said)])], Context(None, None, Stream(0)))[0]


# The reward


TABLE = {
    "": 1.0, "H": -0.8, "D": -0.5, "M": -0.5, "HD": -1.3, "HM": -1.3, "DM": -1.0, "HDM": -1.8,
}  # fmt: skip


@pytest.mark.parametrize("errors", ["".join(e) for n in range(4) for e in itertools.combinations("HDM", n)])
def test_every_set_of_errors_is_worth_what_the_table_says(errors: str) -> None:
    parameters: dict[str, Any] = {"a": 1} if "M" in errors else {"a": 1, "b": "x"}
    parameters |= {"z": 0} if "H" in errors else {}
    parameters |= {"c": 0} if "D" in errors else {}
    assert worth(written("get", parameters)) == TABLE[errors]
    wrong = worth(written("get", {**parameters, "a": 2}))
    assert wrong == (TABLE[errors] if errors else -0.25), "a wrong value is said of calls that have no other error"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (written("get", {"b": "x", "a": 1}), 1.0),  # in any order
        (written("get", {"a": 1, "b": "y"}), -0.25),
        (written("get", {"a": "1", "b": "x"}), -0.25),  # "1" is not 1
        (written("get", {}), -0.5),
        (written("set", {"a": 1, "b": "x"}), -1.5),  # another tool, whatever its parameters
        (written("put", {"a": 1, "b": "x"}), -2.0),  # none that is listed
        (written("", {"a": 1, "b": "x"}), -2.0),
        ("get", -2.0),
        ("<tool_call>\n{\n</tool_call>", -2.0),
        ('<tool_call>\n{"name": ["get"], "parameters": {}}\n</tool_call>', -2.0),
        (written("get", {"a": 1, "b": "x"}).replace("</tool_call>", '{"name": "set", "parameters": {}}'), -2.0),  # two
    ],
)
def test_calls_that_cannot_be_held_against_the_right_one(said: str, expected: float) -> None:
    assert worth(said) == expected


def test_only_exact_calls_are_worth_something_and_all_is_within_the_clip() -> None:
    every = [*TABLE.values(), -0.25, -1.5, -2.0]
    assert [x for x in every if x > 0] == [1.0] and len(set(every)) == 9
    clip = next(part for part in PPO.rewards if part.name == "clipped-scores")
    assert clip.low == -5 <= min(every) and max(every) <= clip.high == 5
    assert of_call(None, GOLD, TOOLS) == of_call([], GOLD, TOOLS) == -2.0


def test_tasks_without_right_calls_are_refused() -> None:
    assert CallErrors().lacks(tool_dialogue) is None
    for task in (Sums(), tool_dsl.replace(calls=(2,))):
        assert "lack one of them: take tool-dialogue" in str(CallErrors().lacks(task))
    two = Episode(Problem("7", "?", "<tool_call>", info={"signatures": {}}), [Segment("assistant", "x")])
    with pytest.raises(ConfigError, match="answer of problem '7' must be one call as JSON"):
        CallErrors().score([two], Context(None, None, Stream(0)))


# Calls that failed


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (None, None),
        ("oslo", None),
        ({"role": "tool", "content": "oslo"}, None),
        ({"role": "function", "content": None}, None),
        ({"role": "user", "content": "oslo"}, "unanswered_left_out"),
        ({"role": "assistant", "content": "error"}, "unanswered_left_out"),
        ('{"error": "none of that name"}', "errors_left_out"),
        ({"role": "tool", "content": "NameError: name 'get' is not defined"}, "errors_left_out"),
        ("got an unexpected-keyword argument", "errors_left_out"),  # punctuation is left out first
        ("missing 1 required positional argument: 'day'", "errors_left_out"),
    ],
)
def test_what_is_left_out(reply: Any, why: str | None) -> None:
    assert SoundCalls().refused(reply) == why


def test_own_texts_of_errors() -> None:
    part = SoundCalls(errors=("no such",))
    assert part.refused("No such tool!") == "errors_left_out" and part.refused("error") is None
    with pytest.raises(ConfigError, match=r"SoundCalls.errors must have letters or digits in each, got '\?!'"):
        SoundCalls(errors=("error", "?!"))
    assert "have no 'reply'" in str(SoundCalls().lacks(Sums())) and SoundCalls().lacks(tool_dialogue) is None


def rows_of(problems: list[Problem], words: str = "blank:1x16@services", experience: Any = TL.experience) -> Any:
    policy = LanguagePolicy.load(words, device="cpu")
    episodes = experience.collect(problems, Context(tool_dialogue, policy, Stream(0)))
    batch = to_batch(episodes, policy.tokenizer.pad_token_id, 1.0, torch.device("cpu"))
    return batch.replace(rewards=batch.rewards.double(), advantages=torch.zeros_like(batch.rewards))


def of_all(batch: TokenBatch, method: Any, logp: Tensor) -> Tensor:
    """The loss of a bound method on the rows that its filters keep, `logp` [B, T] being of all of them."""
    batch = batch.replace(draw=torch.arange(len(batch)))
    left = kept(method, batch)
    assert left.draw is not None
    found: Tensor = loss(method, left, TokenLogProbs(logp[left.draw]), 32)
    return found


def random_logp(batch: TokenBatch) -> Tensor:
    random = torch.Generator().manual_seed(0)
    logp = -torch.rand(batch.tokens.shape, generator=random, dtype=torch.float64) * batch.action_mask
    return logp.requires_grad_(True)


def some(task: ToolDialogue, count: int) -> list[Problem]:
    return list(task.problems("train")[:count])


@pytest.mark.slow
def test_without_errors_nothing_is_left_out_and_with_them_failed_calls_have_no_gradient() -> None:
    method = TL.bind()
    fine, failing = (rows_of(some(ToolDialogue(errors=share), 12)) for share in (0.0, 1.0))
    everything = TL.replace(filters=()).bind()
    assert torch.equal(of_all(fine, method, random_logp(fine)), of_all(fine, everything, random_logp(fine)))
    logp = random_logp(failing)
    of_all(failing, method, logp).backward()
    assert logp.grad is not None
    failed = [" error:" in (e.problem.info["reply"] or "") for e in failing.episodes]
    assert sum(failed) == 4, "a place of three in each dialogue"
    said = failing.action_mask
    for row, wrong in enumerate(failed):
        assert bool((logp.grad[row] == 0).all()) == wrong
        assert wrong or bool((logp.grad[row][said[row]] != 0).all())
    assert any(" error:" in str(e.problem.prompt) for e in failing.episodes), "it is seen in later histories"


@pytest.mark.slow
def test_a_run_counts_what_it_leaves_out() -> None:
    policy = LanguagePolicy.load("blank:1x16@services", device="cpu")
    loop = LanguageLoop(TL.replace(problems=12), ToolDialogue(errors=1.0), policy, seed=0, steps=2)
    for _ in range(2):
        metrics = loop.step().metrics
        assert metrics["rows"] == 12 and 0 < metrics["errors_left_out"] < 12 and metrics["unanswered_left_out"] == 0
        assert metrics["given_tokens"] < 12 * metrics["completion_length"]


# Key tokens


def marked(text: str, tools: list[str], words: str = "blank:1x16@services") -> tuple[list[str], list[str]]:
    tokenizer = load_tokenizer(words)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    keys, ends = marks(text, tools, tokenizer)
    return tuple([tokenizer.decode(tokens[i]) for i in found] for found in (keys, ends))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("others", "keys"),
    [
        ([], ["get"]),
        (["set_item_city", "count_user"], ["get"]),  # differ at once
        (["get_item_price"], ["get", "_user"]),
        (["get_user_city"], ["get", "_age"]),
        (["get_item_price", "get_user_city", "get_user_boss"], ["get", "_user", "_age"]),
    ],
)
def test_the_first_token_and_those_that_tell_names_apart(others: list[str], keys: list[str]) -> None:
    call = written("get_user_age", {"person": "anna"})
    assert marked(call, ["get_user_age", *others]) == (keys, ['"}}'])


def test_names_that_go_on_from_each_other() -> None:
    trip, hotel = (written(name, {"person": "anna", "city": "oslo", "number": 3}) for name in
                   ("book_trip", "book_trip_hotel"))  # fmt: skip
    tools = ["book_trip", "book_trip_hotel"]
    assert marked(hotel, tools) == (["book", "_hotel"], ['", "', '", "', "}}"])
    assert marked(trip, tools) == (["book", '", "parameters": {"'], ['", "', '", "', "}}"]), "the token behind the name"


def test_tokens_of_pieces_of_words_and_calls_without_parameters() -> None:
    """The shipped model has a token for each character."""
    call = written("get_it", {"n": 12, "s": 'a"b'})
    assert marked(call, ["get_it", "get_on", "set"], "tiny") == (["g", "i"], [",", '"'])
    tokens = load_tokenizer("tiny").encode(call, add_special_tokens=False)
    keys, ends = marks(call, ["get_it", "get_on", "set"], load_tokenizer("tiny"))
    assert [call.index("get_it"), call.index("it")] == keys and len(tokens) == len(call)
    assert [call.index(', "s"'), call.rindex('"')] == ends
    assert marked(written("get_it", {}), ["set"], "tiny") == (["g"], [])
    assert marks("no call", ["get"], None) == ([], [])


def test_several_calls_of_an_answer() -> None:
    one, two = (
        json.dumps({"name": n, "parameters": {"city": c}}) for n, c in (("find_user", "oslo"), ("count_item", "rome"))
    )
    keys, ends = marked(f"<tool_call>\n{one}\n{two}\n</tool_call>", ["count_item", "count_user"])
    assert keys == ["find", "count", "_item"] and ends == ['"}}', '"}}']


def test_turns_that_a_template_changes_are_refused() -> None:
    tokenizer = load_tokenizer("tiny")
    tokens = tokenizer.encode("ab<call>c", add_special_tokens=False)
    assert key_tokens._begin(tokens, "<call>", tokenizer) == 2
    with pytest.raises(DataError, match="are not found in the turn as the chat template has it"):
        key_tokens._begin(tokens, "<Call>", tokenizer)


def test_weights_by_hand() -> None:
    mask = torch.ones(6, 14, dtype=torch.bool)
    mask[2, 4:] = mask[3, 3:] = mask[4, 4:] = False
    kinds = torch.zeros(6, 14, dtype=torch.long)
    kinds[0, [1, 2]], kinds[0, [5, 6]] = 1, 2  # ten others to two keys
    kinds[1, 0] = 1  # thirteen to one, more than nine
    kinds[2, [0, 1]] = 1  # two to two
    kinds[3, 0], kinds[3, 1] = 1, 2  # one to one, of which the third is the other
    kinds[4, :3] = 1  # three to one, and no key token at all in the last
    found = call_weights(kinds, mask, 9.0)
    assert found[0].tolist() == [1.0, 5.0, 5.0, *[1.0] * 11]
    assert found[1].tolist() == [9.0, *[1.0] * 13]
    assert bool((found[2:] == 1).all())
    assert call_weights(kinds, mask, 4.0)[0, 1] == 4.0 and bool((call_weights(kinds, mask, 1.0) == 1).all())


def test_the_mean_over_a_call_is_that_of_the_weights_at_any_scale() -> None:
    random = torch.Generator().manual_seed(1)
    losses, weights = torch.rand(2, 6, 9, generator=random, dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([9, 5, 1, 0, 7, 2])[:, None]
    for scale in (1.0, 0.01, 30.0):
        found = (losses * factors(scale * weights, mask) * mask).sum(1) / mask.sum(1).clamp(min=1)
        wanted = (losses * weights * mask).sum(1) / (weights * mask).sum(1).clamp(min=1e-300)
        torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    same = factors(torch.full((6, 9), 0.3, dtype=torch.float64), mask)
    torch.testing.assert_close(same[mask], torch.ones_like(same[mask]), atol=1e-12, rtol=0)


@pytest.mark.slow
def test_with_equal_weights_it_is_the_masked_mean_of_cross_entropy() -> None:
    batch = rows_of(some(ToolDialogue(errors=0.0), 8))
    equal = TL.replace(token_weights=(KeyTokens(most=1.0),)).bind()
    logp = random_logp(batch)
    said = batch.action_mask
    wanted = torch.stack([-logp[i][said[i]].mean() for i in range(len(batch))]).mean()
    torch.testing.assert_close(of_all(batch, equal, logp), wanted, atol=1e-9, rtol=0)
    plain = get_method("sft").replace(aggregation="sequence-mean").bind()
    torch.testing.assert_close(of_all(batch, plain, logp), wanted, atol=1e-9, rtol=0)
    assert abs(float((of_all(batch, TL.bind(), logp) - wanted).detach())) > 1e-3, "with w it is another"


@pytest.mark.slow
def test_rows_know_their_marks() -> None:
    problems = some(tool_dialogue, 6)
    batch = rows_of(problems)
    kinds, tokenizer = kinds_of(batch.episodes, batch.action_mask), load_tokenizer("blank:1x16@services")
    for row, problem in enumerate(problems):
        text = str(problem.info["demonstration"])
        keys, ends = marked(text, problem.info["signatures"])
        for kind, wanted in ((1, keys), (2, ends)):
            found = batch.tokens[row][kinds[row] == kind].tolist()
            assert [tokenizer.decode(t) for t in found] == wanted and len(found) >= (kind == 1)
        assert not bool((kinds[row][~batch.action_mask[row]] > 0).any())


def test_what_is_missing_is_said() -> None:
    with pytest.raises(ConfigError, match="nobody says which they are: set experience=marked-calls"):
        get_method("sft").replace(token_weights=(KeyTokens(),)).check()
    plain = Problem("7", "?", info={"demonstration": "x"})
    assert "Problem '7' lists no tools" in str(MarkedCalls().missing(plain, tool_dialogue))
    assert MarkedCalls().lacks(tool_dialogue) is None
    unreadable = Problem("7", "?", info={"template_arguments": {"tools": [{"type": "function", "function": "add"}]}})
    assert listed(unreadable) is None and listed(Problem("7", "?", info={"template_arguments": {}})) is None

    class Slow:
        is_fast = False

    with pytest.raises(ConfigError, match="which this model's tokenizer does not say"):
        marks(written("get", {}), ["set"], Slow())

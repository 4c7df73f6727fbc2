"""Where steps begin: by separators, by length, at unlikely tokens; over turns; in the loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from etude.core.batches import TokenBatch
from etude.core.errors import ConfigError
from etude.core.part import part_from_json
from etude.core.registry import get_method
from etude.learners.token import TokenCritic
from etude.methods.rlvr.rlanything.step_judge import StepVerdicts
from etude.policies.byte_tokenizer import build_tokenizer
from etude.rewards.steps import AtSeparator, EveryTokens, LowProbabilityCuts, MarkedSteps, step_ends
from language_toys import Toy, make_loop, random_batch

Make = Callable[..., TokenBatch]
TOKENIZER = build_tokenizer(256)


def test_steps_end_with_their_separator(make_batch: Make) -> None:
    text = TOKENIZER.encode("3+5+9=8,17,", add_special_tokens=False)
    batch = make_batch([[0] * 6 + [1] * 5], tokens=[text])
    step = AtSeparator(separator=",").step(batch, TOKENIZER)
    assert step.tolist() == [[-1] * 6 + [0, 0, 1, 1, 1]]
    assert step_ends(step).nonzero()[:, 1].tolist() == [7, 10]
    assert AtSeparator(separator=";").step(batch, TOKENIZER).tolist() == [[-1] * 6 + [0] * 5]


@pytest.mark.parametrize("splitter", [AtSeparator(separator=","), EveryTokens(length=2)])
def test_every_turn_begins_a_step(splitter: AtSeparator | EveryTokens, make_batch: Make) -> None:
    batch = make_batch([[0, 1, 1, 0, 0, 1, 1, 1, 0, 1]])
    third = 1 if isinstance(splitter, AtSeparator) else 2
    assert splitter.step(batch, TOKENIZER).tolist() == [[-1, 0, 0, -1, -1, 1, 1, third, -1, third + 1]]


def test_steps_begin_before_every_so_manieth_unlikely_token(make_batch: Make) -> None:
    sure, unsure = 0.0, -1.0
    logp = [[unsure, sure, unsure, unsure, sure, unsure, unsure, sure], [sure] * 8, [unsure] + [sure] * 7]
    batch = make_batch([[0] + [1] * 7] * 3, behaviour_logp=logp)

    def numbers(**fields: object) -> list[list[int]]:
        return LowProbabilityCuts(**fields).step(batch, TOKENIZER).tolist()  # type: ignore[arg-type]

    none = [-1, *[0] * 7]
    assert numbers(every=1) == [[-1, 0, 1, 2, 2, 3, 4, 4], none, none]
    assert numbers(every=2) == [[-1, 0, 0, 1, 1, 1, 2, 2], none, none]
    assert numbers(every=5) == [none] * 3
    nothing = [-1] * 8
    assert numbers(every=1, base="first-cut") == [[-1, -1, 0, 1, 1, 2, 3, 3], nothing, nothing]
    assert numbers(every=2, base="first-cut") == [[-1, -1, 0, 0, 0, 1, 1, 1], nothing, nothing]
    assert numbers(every=5, base="first-cut") == [[-1, -1, 0, 0, 0, 0, 0, 0], nothing, nothing]


def test_a_cut_at_the_first_token_begins_one_step_only(make_batch: Make) -> None:
    batch = make_batch([[0, 1, 1]], behaviour_logp=[[0.0, -1.0, -1.0]])
    for base in ("prompt", "first-cut"):
        assert LowProbabilityCuts(every=1, base=base).step(batch, TOKENIZER).tolist() == [[-1, 0, 1]]


@pytest.mark.parametrize("turns", [1, 3])
def test_single_tokens_and_no_cut_at_all(turns: int) -> None:
    batch = random_batch(turns=turns)
    each = EveryTokens(length=1).step(batch, TOKENIZER)
    assert torch.equal(each, torch.where(batch.action_mask, batch.action_mask.long().cumsum(1) - 1, -1))
    whole = EveryTokens(length=99).step(batch, TOKENIZER)
    assert whole.max() == turns - 1 and step_ends(whole).sum() == turns * len(batch)


def test_one_part_says_where_steps_are_and_others_read_it() -> None:
    ppo = get_method("ppo").replace(problems=2)
    method = ppo.replace(rewards=(*ppo.slots()["rewards"], MarkedSteps(splitter=EveryTokens(length=3))))
    seen = []

    class Watching(type(ppo.slots()["advantages"])):  # type: ignore[misc]
        def __call__(self, batch: TokenBatch) -> torch.Tensor:
            seen.append(batch)
            found: torch.Tensor = super().__call__(batch)
            return found

    make_loop(method.replace(advantages=Watching(), critic=TokenCritic()), Toy()).step()
    (batch,) = seen
    assert torch.equal(batch.step, EveryTokens(length=3).step(batch, TOKENIZER)) and batch.step.max() == 2
    assert torch.equal(batch.scores, torch.tensor([e.reward for e in batch.episodes]))  # it pays nothing


def test_a_judge_of_before_says_how_its_steps_end() -> None:
    part = part_from_json({"part": "step-verdicts", "separator": ">", "weight": 2.0})
    assert part == StepVerdicts(splitter=AtSeparator(separator=">"), weight=2.0)


def test_a_separator_that_no_token_holds_is_refused(make_batch: Make) -> None:
    batch = make_batch([[97, 44, 98]])
    with pytest.raises(ConfigError, match=r"AtSeparator\.separator ', ' is in no single token of this model"):
        AtSeparator(separator=", ").step(batch, TOKENIZER)


def test_a_separator_is_text() -> None:
    with pytest.raises(ConfigError, match="the text that ends a step"):
        AtSeparator(separator="")

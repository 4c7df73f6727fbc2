"""`tiny`: its tokenizer loses nothing, its weights are small and know what they should, and it can be made again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import etude.policies
from etude.core.episodes import Segment
from etude.core.errors import ConfigError
from etude.core.registry import load_task
from etude.core.streams import Stream
from etude.policies.byte_tokenizer import build_tokenizer
from etude.policies.measure import measure, sample
from etude.policies.worked_examples import Row, accumulate, rows
from etude.runs.bases.tiny import RIGHT, examples
from etude.runs.pretrain import POSITIONS, architecture, pretrain
from etude.tasks.agents.attr_20q import attr_20q, scripted_episode
from etude.tasks.language.compose import Compose, careless, trains
from etude.tasks.language.countdown import countdown
from etude.tasks.language.sums import Sums

TINY = Path(next(iter(etude.policies.__path__))) / "tiny"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def shipped() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32, local_files_only=True).eval()
    return model, AutoTokenizer.from_pretrained(TINY, local_files_only=True)


# The tokenizer


@settings(deadline=None)  # the first call loads the tokenizer
@given(st.text())
def test_any_text_survives(text: str) -> None:
    tokenizer = shipped()[1]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tokens_by_hand() -> None:
    tokenizer = build_tokenizer(POSITIONS)
    for text, tokens in (
        ("f6(f1(x)) cab>", ["f6(", "f1(", "x", "))", "Ġ", "c", "a", "b", ">"]),
        ("f1:abf>f6:", ["f1:", "a", "b", "f", ">", "f6:"]),
        ("12,345", ["1", "2", ",", "3", "4", "5"]),
        ("ask b1", ["askĠ", "b", "1"]),
        ("no\n", ["no", "Ċ"]),
    ):
        assert tokenizer.convert_ids_to_tokens(tokenizer.encode(text)) == tokens
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    assert tokenizer.encode("") == []


@pytest.mark.parametrize("name", ["compose", "sums", "countdown", "attr-20q"])
def test_task_texts_round_trip_and_join_without_merging(name: str) -> None:
    tokenizer, task = shipped()[1], load_task(name)
    for i, problem in enumerate(task.problems("train")[:50]):
        segments = [Segment("user", problem.prompt), Segment("assistant", task.demonstration(problem) or "")]
        if name == "attr-20q":
            segments = scripted_episode(task, problem, Stream(0).split(i))
        apart = [t for s in segments for t in tokenizer.encode(s.text)]
        together = "".join(s.text for s in segments)
        assert tokenizer.decode(apart) == together
        assert tokenizer.encode(tokenizer.decode(apart)) == apart
        assert len(apart) + len(segments) <= 150


def test_the_shipped_tokenizer_is_the_one_that_is_built(tmp_path: Path) -> None:
    build_tokenizer(POSITIONS).save_pretrained(tmp_path)
    built, kept = (json.loads((f / "tokenizer.json").read_text()) for f in (tmp_path, TINY))
    assert built == kept


# The weights


def test_what_is_shipped_is_small_and_complete() -> None:
    model, tokenizer = shipped()
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"} <= {
        p.name for p in TINY.iterdir()
    }
    assert (TINY / "model.safetensors").stat().st_size <= 3_000_000
    assert 500_000 <= model.num_parameters() <= 1_200_000
    assert model.config.eos_token_id == tokenizer.eos_token_id == model.generation_config.eos_token_id
    assert model.config.max_position_embeddings == tokenizer.model_max_length == POSITIONS
    assert all(p.isfinite().all() for p in model.parameters())
    assert "etude pretrain tiny" in (TINY / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "split", "low", "high"),
    [
        (Compose(), "atomic", 0.97, 1.0),
        (Compose(), "train", 0.20, 0.45),
        (Compose(), "test", 0.20, 0.45),
        (Compose(), "heldout", 0.05, 0.30),
        (Sums(terms=(2,)), "test", 0.90, 1.0),
        (Sums(terms=(3,)), "test", 0.80, 1.0),
        (Sums(terms=(4,)), "test", 0.05, 0.35),
        (countdown, "test", 0.10, 0.35),
        (attr_20q, "test", 0.20, 0.60),
    ],
)
def test_skills_leave_room_for_learning(task: Any, split: str, low: float, high: float) -> None:
    score = measure(*shipped(), task, split, count=60, samples=8)
    assert low <= score.pass_at_1 <= high
    assert score.pass_at_n >= min(0.95, 2 * score.pass_at_1 - 0.05)


def test_sampling_follows_the_model_and_ends() -> None:
    model, tokenizer = shipped()
    prompts = [tokenizer.encode(p) for p in ("f1(x) cab>", "f3(x) fdbca>", "f0(x) abc>")]
    said = sample(model, prompts, 32, Stream(0).torch)
    assert [tokenizer.decode(s) for s in said] == ["f1:abc<|end|>", "f3:abcdf<|end|>", "f0:cba<|end|>"]
    assert said == [sample(model, [p], 32, Stream(0).torch)[0] for p in prompts]
    assert [len(s) for s in sample(model, prompts, 2, Stream(0).torch)] == [2, 2, 2]


# How it was made


@pytest.mark.slow
def test_chains_are_shown_on_training_pairs_only() -> None:
    for level in (2, 3):
        task, random = Compose(levels=(level,), seed=1), Stream(0).numpy
        problems = task.problems("train")[:1000]
        shown = [careless(p, random, RIGHT) for p in problems]
        names = [[step[:2] for step in s.split(">")] for s in shown]
        assert all(trains(a, b) for chain in names for a, b in pairwise(chain))
        assert 0.15 < sum(map(task.score, problems, shown)) / 1000 < 0.4


def test_only_the_assistant_is_learned() -> None:
    tokenizer = build_tokenizer(POSITIONS)
    game = [Segment("user", "1+2="), Segment("assistant", "3"), Segment("user", "no\n"), Segment("assistant", "4")]
    (row,) = rows(tokenizer, [game])
    assert tokenizer.convert_ids_to_tokens(row.tokens) == [*"1+2=3", "<|end|>", "no", "Ċ", "4", "<|end|>"]
    assert row.learned == [False] * 4 + [True] * 2 + [False] * 2 + [True] * 2


def test_the_loss_is_the_mean_over_learned_tokens_however_rows_are_padded() -> None:
    """One global denominator: the loss equals the one computed row by row, in float64."""
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(architecture(300)).double()
    data = [Row([5, 6, 7, 8, 9], [False, False, True, True, True]), Row([5, 6], [False, True])]
    data += [Row([7, 8, 9], [False, True, False]), Row([4] * 9, [False] * 3 + [True] * 6)]
    total = 0.0
    for row in data:
        logp = model(input_ids=torch.tensor([row.tokens])).logits[0].log_softmax(-1)
        total -= sum(float(logp[t - 1, row.tokens[t]].detach()) for t in range(len(row.tokens)) if row.learned[t])
    for cuts in ((0.75,), (), (0.1, 0.5)):
        assert accumulate(model, data, cuts) == pytest.approx(total / 11, abs=1e-9)


@pytest.mark.slow
def test_examples_are_the_same_under_a_seed() -> None:
    first, again, other = (list(examples(seed, scale=0.001)) for seed in (0, 0, 1))
    assert first == again != other
    assert len(first) == sum(1 for _ in examples(0, scale=0.001))


@pytest.mark.slow
def test_pretraining_is_deterministic(tmp_path: Path) -> None:
    found = [pretrain(tmp_path / name, steps=3, scale=0.002, report=False) for name in "ab"]
    a, b = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert a == b and len(a) == found[0]["bytes"] == found[1]["bytes"]
    assert found[0]["loss"] == found[1]["loss"] > 0
    assert found[0]["parameters"] == shipped()[0].num_parameters()


def test_impossible_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="steps"):
        pretrain(tmp_path, steps=0)
    with pytest.raises(ConfigError, match="scale"):
        pretrain(tmp_path, scale=0.0)

"""`tiny-agent`: its words are those of its tasks, its weights are small and leave room, and it can be made again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import etude
from etude.core.errors import ConfigError
from etude.core.registry import family, files, load_task
from etude.core.streams import Stream
from etude.policies.loading import BUILT_IN, load_model, load_tokenizer
from etude.policies.word_tokenizer import build_word_tokenizer
from etude.runs.bases import BASES, TINY_AGENT
from etude.runs.bases.tiny_agent import UNREAD, examples, games
from etude.runs.pretrain import POSITIONS, pretrain

FOLDER = BUILT_IN["tiny-agent"]
TASKS = sorted({task.id for task, _, _ in games()})
ROW = re.compile(r"\| ([\w-]+) \| ([\d.]+) \(([\d.]+) to ([\d.]+)\) \| ([\d.]+) \(([\d.]+) to ([\d.]+)\) \|")


def table() -> dict[str, list[float]]:
    """The rows of the card: pass@1 and pass@8, each with its interval."""
    return {name: [*map(float, rest)] for name, *rest in ROW.findall((FOLDER / "README.md").read_text())}


# Its words


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(games())))
def test_every_text_is_words_and_every_turn_fits(number: int) -> None:
    tokenizer = build_word_tokenizer("agents", POSITIONS)
    shown, play, _ = games()[number]
    limit = load_task(shown.id).max_tokens
    for i in range(25):
        for game in play(shown.problems("train")[i], Stream(i)):
            tokens = [tokenizer.encode(s.text) for s in game]
            assert [tokenizer.decode(t) for t in tokens] == [s.text for s in game]
            assert not any(tokenizer.unk_token_id in t for t in tokens)
            assert all(len(t) < shown.max_tokens for s, t in zip(game, tokens) if s.role == "assistant")
            assert sum(map(len, tokens)) + limit < POSITIONS


def test_words_of_different_tasks_do_not_run_into_each_other() -> None:
    tokenizer = build_word_tokenizer("agents", POSITIONS)
    for text in (
        "paint_item·(·item·,·color·)· pay_person·(·person·,·number·)",
        "fly· monday· paris·,·ship· oslo· lamp·\n",
        "k·02· ·d·31· ·w·11· ·w·20·\n·00·\n",
        " goal· 4· 3·\n· at· 2· 3·\n",
        "keys ·c· ·a· ·f·\n",
        "no\n",
    ):
        tokens = tokenizer.encode(text.replace("·", ""))
        assert [tokenizer.decode([t]) for t in tokens] == text.split("·")


# Its weights


def test_every_task_of_agents_is_shown_or_said_not_to_be() -> None:
    made = {name for name in files("tasks") if family("tasks", name) == "agents"}
    assert sorted(made - {*UNREAD}) == TASKS and {*UNREAD} <= made


def test_what_is_shipped_is_small_and_complete() -> None:
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"} <= {
        p.name for p in FOLDER.iterdir()
    }
    assert (FOLDER / "model.safetensors").stat().st_size <= 3_000_000
    card = (FOLDER / "README.md").read_text()
    assert "etude pretrain tiny-agent" in card and "with seed 0" in card and "Apache-2.0" in card
    assert f"{TINY_AGENT.steps:,} steps" in card
    assert BASES.keys() == BUILT_IN.keys()


def test_the_shipped_tokenizer_is_the_one_that_is_built(tmp_path: Path) -> None:
    build_word_tokenizer("agents", POSITIONS).save_pretrained(tmp_path)
    built, kept = (json.loads((f / "tokenizer.json").read_text()) for f in (tmp_path, FOLDER))
    assert built == kept
    assert load_tokenizer("tiny-agent").eos_token_id == 1


def test_it_is_loaded_by_name() -> None:
    model = load_model("tiny-agent", torch.float32, torch.device("cpu"))
    assert model.config.num_hidden_layers == TINY_AGENT.layers
    assert model.config.vocab_size == len(load_tokenizer("tiny-agent"))
    assert all(p.isfinite().all() for p in model.parameters())


def test_the_card_has_every_task_and_names_those_that_leave_no_room() -> None:
    found = table()
    assert sorted(found) == TASKS
    assert all(low <= once <= high and often >= once for once, low, high, often, _, _ in found.values())
    outside = [name for name, (once, *_) in found.items() if not 0.05 <= once <= 0.5]
    assert len(outside) <= 4
    assert f"at pass@1: {', '.join(outside) or 'none'}." in (FOLDER / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("task", ["api-world", "collect", "number-hunt", "wordle"])
def test_scores_are_about_those_of_the_card(task: str) -> None:
    scores = etude.evaluate("tiny-agent", task, k=(1,), samples=4, problems=40, split="test", seed=1)["test"]
    assert scores["pass@1"].value == pytest.approx(table()[task][0], abs=0.15)


# How it was made


@pytest.mark.slow
def test_examples_are_the_same_under_a_seed() -> None:
    first, again, other = (list(examples(seed, scale=0.001)) for seed in (0, 0, 1))
    assert first == again != other


@pytest.mark.slow
def test_pretraining_is_deterministic(tmp_path: Path) -> None:
    found = [pretrain(tmp_path / name, steps=2, scale=0.002, report=False, base=TINY_AGENT) for name in "ab"]
    a, b = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert a == b and len(a) == (FOLDER / "model.safetensors").stat().st_size
    assert found[0]["loss"] == found[1]["loss"] > 0


def test_a_model_of_no_name_is_answered_with_these() -> None:
    with pytest.raises(ConfigError, match="'tiny' nor 'tiny-agent'"):
        load_tokenizer("tiny-agentt")

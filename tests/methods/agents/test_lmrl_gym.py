"""LMRL Gym and ILQL: the score, the composition, and a maze that is learned from dialogues without being played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.core.edit import set_values
from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.evaluation.data_measures import gym_score
from etude.evaluation.language import evaluate_problems
from etude.experience.dialogues import read_dialogues
from etude.experiments.agents.recorded_games import Games, methods, recorded_games
from etude.learners.token_values import ImplicitTokenQ, ReturnTokenQ, ValuedWords
from etude.loops.language import LanguageLoop
from etude.policies.language import LanguagePolicy
from etude.runs.worlds import language
from etude.stages.dialogues import RecordScript
from etude.tasks.agents._dialogues import Dialogues
from etude.tasks.agents.text_maze import TextMaze
from language_toys import make_loop, random_policy, resumed_exactly


def test_the_score_maps_least_mean_and_most() -> None:
    assert [gym_score(g, -3.0, -2.0, 1.0) for g in (-3.0, -2.0, 1.0)] == [0.0, 50.0, 100.0]
    assert gym_score(-2.5, -3.0, -2.0, 1.0) == 25.0 and gym_score(-0.5, -3.0, -2.0, 1.0) == 75.0
    assert gym_score(-4.0, -3.0, -2.0, 1.0) == -50.0
    shifted = [gym_score(g + 1, -2.0, -1.0, 2.0) for g in (-2.5, -0.5)]
    assert shifted == [25.0, 75.0]  # what is paid more in every game changes no score
    with pytest.raises(ConfigError, match="must lie between the least and the highest"):
        gym_score(0.0, 1.0, 1.0, 2.0)


ABOUT = {"id", "title", "paper", "claim", "row"}


def _slots(method: Any, other: Any) -> set[str]:
    """What differs."""
    return {path.partition(".")[0] for path in method.diff(other)}


def test_what_each_changes() -> None:
    sft, ilql, mc, gym = (get_method(n) for n in ("sft", "ilql", "mc-returns", "lmrl-gym"))
    assert _slots(ilql, sft) - ABOUT == {"rewards", "learners"}
    assert _slots(mc, ilql) - ABOUT == _slots(gym, ilql) - ABOUT == {"learners"}
    [iq], [rq], [gq] = (m.slots()["learners"] for m in (ilql, mc, gym))
    assert isinstance(iq, ImplicitTokenQ) and isinstance(rq, ReturnTokenQ) and isinstance(gq, ImplicitTokenQ)
    assert (gq.gamma, gq.cql, gq.beta, gq.state_error.tau, gq.learning.target.rate) == (0.99, 0.0, 16.0, 0.95, 0.005)  # type: ignore[attr-defined, union-attr]


def test_filtered_cloning_is_cloning_of_the_best_tenth() -> None:
    found = methods(("bc", "filtered", "ilql"))
    assert found["filtered"][0] == found["bc"][0] and found["filtered"][1] == 0.1 and found["ilql"][1] == 1.0


@pytest.mark.slow
def test_games_are_recorded_once_and_scored_by_their_returns() -> None:
    maze = TextMaze(size=3, max_turns=4, cost=0.25, slips=0.9)
    with recorded_games(maze, 60) as games:
        totals = [d.total for d in read_dialogues(games.file)]
        assert len(totals) == 60 and min(totals) == -1.0 and max(totals) == 1.0
        trained: Any = type("Run", (), {"rewards": np.array([[np.mean(totals)]])})()
        assert games.score(trained) == pytest.approx(50.0)
        assert isinstance(games, Games) and games.train("bc", methods(["bc"])["bc"][0], 0).task.top == 1.0


# A maze, end to end

MAZE = TextMaze(size=3, max_turns=6, cost=0.2, slips=1.0, loops=1.0)
GOAL = (2, 2)
CHANGES = {
    "problems": 32, "optimizer.lr": 5e-3, "learners.implicit-token-q.learning.optimizer.lr": 4e-3,
    "learners.implicit-token-q.learning.target.rate": 0.2, "learners.implicit-token-q.gamma": 0.9,
    "learners.implicit-token-q.beta": 16.0, "learners.implicit-token-q.state_error.tau": 0.8,
    "learners.implicit-token-q.learning.optimizer.schedule": "linear",
}  # fmt: skip


def words() -> LanguagePolicy:
    """A small model from nothing that reads a word at a time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = LanguagePolicy.load("tiny-agent", device="cpu").tokenizer
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=128, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return LanguagePolicy(LlamaForCausalLM(config).eval(), tokenizer)


def to_one_goal(count: int) -> list[Problem]:
    """Games to one cell of a maze without walls."""
    pool = MAZE.problems("train")
    return [p for p in (pool[i] for i in range(10 * count)) if p.info["goal"] == GOAL][:count]


class Unplayable(Dialogues):
    """Nothing is played while it is learned from."""

    def environment(self) -> Any:
        raise AssertionError("an environment was asked for")


def returned(policy: LanguagePolicy) -> float:
    """The mean return of games from everywhere."""
    return float(evaluate_problems(policy, MAZE, to_one_goal(60), "train", samples=1, seed=1).rewards.mean())


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_maze_is_learned_from_who_does_anything_without_being_played(tmp_path: Path) -> None:
    file, games = tmp_path / "games.jsonl", RecordScript(called="games").rows(to_one_goal(300), MAZE, 0)
    file.write_text("".join(json.dumps(game) + "\n" for game in games))
    loop = LanguageLoop(
        set_values(get_method("ilql"), CHANGES), Unplayable(data=str(file), game=MAZE), words(), seed=0, steps=60
    )  # fmt: skip
    for _ in range(60):
        loop.step()
    tilted = returned(loop.policy)
    loop.policy.tilting = None
    cloned = returned(loop.policy)
    assert tilted > cloned + 0.3, (tilted, cloned)


# Checkpoints


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    with recorded_games(TextMaze(size=3, max_turns=2, slips=1.0), 12) as games:
        method: Any = get_method("ilql").replace(problems=3)
        task = Dialogues(data=games.file)
        resumed_exactly(lambda: make_loop(method, task, random_policy(), steps=4), tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_checkpoint_is_sampled_from_as_it_was(tmp_path: Path) -> None:
    import etude

    with recorded_games(TextMaze(size=3, max_turns=2, slips=1.0), 12) as games:
        done = etude.train(
            "ilql", "text-maze", model="tiny-agent", steps=2, evaluate=0, quiet=True, out=tmp_path / "run",
            set=["task.size=3", "task.max_turns=2", f"task.data={games.file}", "problems=3"],
        )  # fmt: skip
    [checkpoint] = sorted((done.folder / "checkpoints").glob("step-2"))
    policy = language.restore(str(checkpoint), {}, MAZE)
    tilt: Any = policy.tilt
    assert isinstance(tilt.network, ValuedWords) and tilt.beta == 8.0
    assert float(tilt.network.q[0].last.bias.detach().abs().max()) > 0  # as they were learned
    assert language.restore("tiny-agent", {}, MAZE).tilt is None
    assert language.restore(str(checkpoint / "model"), {}, MAZE).tilt is None  # of a model alone nobody knows

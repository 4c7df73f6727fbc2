"""Several policies, each with its optimizer: every row reaches the player that said it, and nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.batches import TokenBatch
from etude.core.registry import get_method
from etude.core.streams import Stream
from etude.experience.groups import Groups
from etude.loops.language import LanguageLoop
from etude.loops.players import Player, restore, saved
from etude.loops.update import Updater
from etude.optimizers.adam import AdamW
from etude.runtime.checkpoints import load_tensors, save_tensors
from language_toys import make_loop, random_batch, random_policy

GRPO: Any = get_method("grpo").replace(experience=Groups(size=3), problems=2, optimizer=AdamW(lr=1e-3))


def two_players(second: str = "critic") -> LanguageLoop:
    loop = make_loop(GRPO)
    other = random_policy(seed=3)
    loop.players[second] = Player(other, Updater(other, loop.method, 10, 10_000, 8))
    return loop


def weights(player: Player) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in player.policy.parameters()])


def rows() -> TokenBatch:
    """Rows of no policy here, so that nothing compares log-probabilities."""
    batch = random_batch((3, 3))
    batch.scores = torch.arange(6.0)
    batch.rewards = batch.rewards.clone()
    return batch.replace(elsewhere=torch.ones(6, dtype=torch.bool))


def learned(loop: LanguageLoop, batch: TokenBatch) -> tuple[dict[str, bool], dict[str, float]]:
    before = {name: weights(player) for name, player in loop.players.items()}
    _, metrics = loop.trainer.learn(loop.method, batch, 0, Stream(0))
    return {name: not torch.equal(before[name], weights(p)) for name, p in loop.players.items()}, metrics


def test_there_is_one_today() -> None:
    loop = make_loop(GRPO)
    assert list(loop.players) == ["policy"]
    assert loop.players["policy"].policy is loop.policy


@pytest.mark.slow
def test_rows_train_the_player_that_said_them() -> None:
    first, second = torch.zeros(6, dtype=torch.long), torch.ones(6, dtype=torch.long)
    assert learned(two_players(), rows().replace(player=first))[0] == {"policy": True, "critic": False}
    assert learned(two_players(), rows().replace(player=second))[0] == {"policy": False, "critic": True}
    moved, metrics = learned(two_players(), rows().replace(player=torch.tensor([0, 0, 0, 1, 1, 1])))
    assert moved == {"policy": True, "critic": True}
    assert metrics["gradient_norm"] != metrics["critic/gradient_norm"]


@pytest.mark.slow
def test_a_players_step_is_that_of_its_rows_alone() -> None:
    both, alone = two_players(), make_loop(GRPO)
    player = torch.tensor([0, 0, 0, 1, 1, 1])
    learned(both, rows().replace(player=player))
    learned(alone, rows().rows(torch.arange(3)))
    assert torch.equal(weights(both.players["policy"]), weights(alone.players["policy"]))


@pytest.mark.slow
def test_every_player_is_saved_and_the_first_as_ever(tmp_path: Path) -> None:
    loop, again = two_players(), two_players()
    learned(loop, rows().replace(player=torch.tensor([0, 0, 0, 1, 1, 1])))
    tensors, counters = saved(loop.players)
    save_tensors(tmp_path / "x.safetensors", tensors)
    assert {"optimizer.0.exp_avg", "players.critic.optimizer.0.exp_avg", "players.critic.noise"} <= tensors.keys()
    restore(again.players, load_tensors(tmp_path / "x.safetensors"), counters)
    for name, player in loop.players.items():
        assert torch.equal(weights(again.players[name]), weights(player))
        mine, theirs = (p.updater.stepper.tensors() for p in (player, again.players[name]))
        assert all(torch.equal(v, theirs[k]) for k, v in mine.items()) and len(mine) > 1
        assert again.players[name].policy.version == player.policy.version == 1

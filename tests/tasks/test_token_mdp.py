"""Text as control: returns are what texts are paid, resets go behind any prefix, credit per token is credit whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

import etude
from etude.advantages.returns import RewardToGo
from etude.core.batches import TokenLogProbs
from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.objectives.policy_gradient import PolicyGradient
from etude.tasks import resolve_task
from etude.tasks.control.token_mdp import TokenMDP, TokenMDPTask
from etude.tasks.language.checksums import Checksums
from language_toys import random_batch

SYMBOLS = "abcdefgh!"
END = len(SYMBOLS)
TASK = Checksums(lengths=(2,))


def world() -> TokenMDP:
    return TokenMDP(TASK, SYMBOLS, limit=4)


def test_the_return_of_an_episode_is_what_its_text_is_paid() -> None:
    here, random, paid = world(), np.random.default_rng(0), []
    here.reset(seed=3)
    for number in range(300):
        here.reset()
        rewards, over, text = [], False, ""
        good = here.problem.info["demonstration"] + "."
        while not over:
            action = SYMBOLS.find(good[len(text)]) % (END + 1) if number % 2 else int(random.integers(END + 1))
            text += "" if action == END else SYMBOLS[action]
            _, reward, over, truncated, _ = here.step(np.int64(action))
            rewards.append(reward)
            assert not truncated
        assert sum(rewards) == rewards[-1] == TASK.score(here.problem, text) and len(text) <= 4
        paid.append(rewards[-1])
    assert paid[1::2] == [1.0] * 150 and 0 <= sum(paid[::2]) < 75


def test_credit_of_every_token_is_that_of_the_whole_text() -> None:
    """REINFORCE per token on the reward to go is REINFORCE on the sequence, gradient for gradient."""
    batch: Any = random_batch((3, 2))
    score = torch.tensor([1.0, 0.0, 0.5, -2.0, 3.0], dtype=torch.float64)
    places = torch.arange(batch.tokens.shape[1])
    last = torch.where(batch.action_mask, places, -1).amax(1)
    paid = torch.zeros(batch.tokens.shape, dtype=torch.float64)
    paid[torch.arange(5), last] = score
    batch = batch.replace(rewards=paid, scores=score)
    credit = RewardToGo(gamma=1.0, baseline=None)(batch) * batch.action_mask
    assert torch.equal(credit, score[:, None] * batch.action_mask)
    logp = torch.randn(paid.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_(True)
    loss = PolicyGradient()(batch.replace(advantages=credit), TokenLogProbs(logp)) * batch.action_mask
    whole = -(score * (logp * batch.action_mask).sum(1)).sum()
    torch.testing.assert_close(loss.sum(), whole, rtol=0, atol=1e-12)
    (one,), (other,) = (torch.autograd.grad(x, [logp]) for x in (loss.sum(), whole))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_reset_behind_a_prefix_is_where_its_steps_lead() -> None:
    here, there = world(), world()
    problem, text = TASK.problems("test")[3], "a!c"
    seen, _ = here.reset(options={"problem": problem})
    for place, symbol in enumerate(text):
        begun, _ = there.reset(options={"problem": problem, "prefix": text[:place]})
        np.testing.assert_array_equal(seen, begun)
        seen, reward, over, *_ = here.step(np.int64(SYMBOLS.index(symbol)))
        assert (reward, over) == (0.0, False)
    prompt = str(problem.prompt)
    shape = (here.longest + 4, len(here.places))
    letters = {i: c for c, i in here.places.items()}
    shown = [letters[int(row.argmax())] if row.any() else "" for row in seen.reshape(shape)]
    assert "".join(shown) == prompt + text and shown[-1] == "" and seen.sum() == len(prompt + text)
    with pytest.raises(ConfigError, match="begins behind fewer than 4 of the symbols"):
        here.reset(options={"prefix": "abcd"})
    with pytest.raises(ConfigError, match="longer than the prompts"):
        here.reset(options={"problem": Problem("1", "200000:af>")})


@pytest.mark.filterwarnings("ignore")
def test_it_is_an_environment_of_gymnasium() -> None:
    check_env(world(), skip_render_check=True)
    drawn = [here.problem.id for here in [world()] for seed in (5, 5, 6) if here.reset(seed=seed)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_as_a_task() -> None:
    assert resolve_task("token-mdp") == TokenMDPTask()
    task = TokenMDPTask(fields_of={"lengths": [2]})
    assert task.language == TASK
    made = task.make(seeds=[0], count=2)
    assert made.reset().shape == (1, 2, (5 + 6) * 12)  # "2:af>" and six symbols, of "abcdefgh!2:>"
    with pytest.raises(ConfigError, match="different characters"):
        TokenMDPTask(symbols="aa")
    with pytest.raises(ConfigError, match="no language task of one turn"):
        _ = TokenMDPTask(of="attr-20q").language


@pytest.mark.slow
def test_a_method_that_learns_from_a_replay_is_trained_on_it(tmp_path: Path) -> None:
    run = etude.train(
        "dqn", "token-mdp", steps=400, seeds=2, set=['task.fields_of={"lengths":[1]}', "experience.warmup=100"],
        out=tmp_path / "run", evaluate=2, quiet=True, preset=False,
    )  # fmt: skip
    assert run.metrics and (run.folder / "evaluation.json").is_file()

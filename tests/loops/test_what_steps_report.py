"""Entropy and divergences in the metrics: estimates from what a step has computed, against hand-made numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import etude
from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Episode, Problem
from etude.core.registry import get_method
from etude.experience.data import Demonstrations
from etude.experience.groups import Groups
from etude.loops.language_report import describe, divergences
from language_toys import Toy, random_episodes


def test_entropy_is_estimated_over_the_tokens_that_were_sampled(make_batch: Callable[..., TokenBatch]) -> None:
    logp = [[-9.0, -1.0, -2.0], [-0.5, -0.5, -9.0], [-7.0, -7.0, -7.0]]
    batch = make_batch([[0, 1, 1], [1, 1, 0], [1, 1, 1]], behaviour_logp=logp, written=[False, False, True])
    batch.episodes = random_episodes((2, 1))
    found = describe([batch], Toy(), True, {})
    assert found["entropy_estimate"] == pytest.approx((1 + 2 + 0.5 + 0.5) / 4)
    assert "reference_perplexity" not in found
    batch.scores = torch.tensor([0.0, 2.0, 9.0])
    batch.reference_logp = batch.behaviour_logp * 2
    found = describe([batch], Toy(), True, {})
    assert found["reference_perplexity"] == pytest.approx(math.exp(2.0))
    assert (found["reward_p05"], found["reward_p95"]) == (pytest.approx(0.1), pytest.approx(1.9))


class Told(Toy):
    """Says of an episode the number of its problem, and of odd ones three times that."""

    def metrics(self, episode: Episode) -> dict[str, float]:
        number = int(episode.problem.id.rpartition("/")[2])
        return {"number": float(number), **({"odd": 3.0 * number} if number % 2 else {})}


def test_what_the_task_says_of_episodes_is_averaged_over_those_of_which_it_says_it(
    make_batch: Callable[..., TokenBatch],
) -> None:
    batch = make_batch([[1, 1]] * 3, behaviour_logp=[[-1.0, -1.0]] * 3)
    batch.episodes = [Episode(Problem(f"toy/{n}", "?"), e.segments) for n, e in zip((1, 2, 5), random_episodes((2, 1)))]
    found = {name: mean for name, mean in describe([batch], Told(), True, {}).items() if name.startswith("task/")}
    assert found == {"task/number": pytest.approx(8 / 3), "task/odd": pytest.approx(9.0)}
    assert not [name for name in describe([batch], Toy(), True, {}) if name.startswith("task/")]


def test_divergences_by_hand(make_batch: Callable[..., TokenBatch], logprobs: Callable[..., TokenLogProbs]) -> None:
    two = math.log(2)
    batch = make_batch([[1, 1]], behaviour_logp=[[-1.0, -2.0]], reference_logp=[[-1.0, -2.0]])
    found = divergences(batch, logprobs([[two - 1, -two - 2]]), Groups())
    # of the sampler: rho - 1 - log rho; of the reference: 1 / rho - 1 + log rho
    assert found["behaviour_kl"][0].tolist() == pytest.approx([1 - two, two - 0.5])
    assert found["reference_kl"][0].tolist() == pytest.approx([two - 0.5, 1 - two])


def test_there_is_none_where_it_would_mean_something_else(
    make_batch: Callable[..., TokenBatch], logprobs: Callable[..., TokenLogProbs]
) -> None:
    batch, policy = make_batch([[1, 1]], behaviour_logp=[[-1.0, -2.0]]), logprobs([[-1.0, -2.0]])
    assert set(divergences(batch, policy, Groups())) == {"behaviour_kl"}
    assert divergences(batch, policy, Groups(top_p=0.9)) == {}
    sft = get_method("sft").slots()["experience"]
    assert isinstance(sft, Demonstrations) and divergences(batch, policy, sft) == {}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["reinforce", "rloo", "grpo"])
def test_every_method_that_samples_reports_them(method: str, tmp_path: Path) -> None:
    sizes = {"problems": 4, "experience.size": 4}
    done = etude.train(
        method, with_="kl-to-reference", set=sizes, steps=2, evaluate=0, out=tmp_path / "run", quiet=True
    )
    wanted = {"entropy_estimate", "behaviour_kl", "reference_kl", "completion_length"}
    assert wanted <= set(done.metrics[-1]) and done.metrics[0]["reference_kl"] == pytest.approx(0, abs=1e-6)
    assert done.metrics[-1]["reference_kl"] > 1e-6

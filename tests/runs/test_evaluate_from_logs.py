"""`etude evaluate RUN --data LOGS`: what is estimated, from which log-probabilities, and what is played beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import etude
from etude.core.errors import ConfigError, DataError
from etude.evaluation.off_policy import judge as judging
from etude.evaluation.off_policy.fqe import FQE
from etude.evaluation.off_policy.policies import Judged
from etude.experience.logs.reading import open_logs
from etude.policies.control.networks import MLP
from etude.runs.saved import locate
from etude.runs.worlds import control
from log_toys import cartpole_columns, pendulum_columns, written

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
SMALL: dict[str, Any] = {"policy.network.hidden": "8,8", "sampling.batch": 8}
ALLOW = {"task.allow": "constant-rewards"}
WEIGHTED = {"importance-sampling", "weighted-importance-sampling", "doubly-robust"}


@pytest.fixture(autouse=True)
def few_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "FQE", lambda: FQE(network=MLP(hidden=(8,)), resamples=4, updates=20))
    monkeypatch.setattr("etude.evaluation.off_policy.behaviour.UPDATES", 250)


@pytest.fixture(scope="module")
def choices(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of choices, and its logs."""
    folder = tmp_path_factory.mktemp("choices")
    data = written(folder / "pole.npz", cartpole_columns())
    given = {"seeds": 2, "steps": 250, "quiet": True, "evaluate": 0}
    return etude.train(
        "bc-discrete", data=str(data), out=str(folder / "run"), set={**SMALL, **ALLOW}, **given
    ).folder, data


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of numbers that acts by chance."""
    folder = tmp_path_factory.mktemp("numbers")
    data = written(folder / "swing.npz", pendulum_columns(episodes=6, length=30, following=True))
    own = {**SMALL, "policy": "stochastic-policy", "actor.clone.error": "likelihood"}
    given = {"seeds": 2, "steps": 250, "quiet": True, "evaluate": 0}
    return etude.train("bc", "pendulum", data=str(data), out=str(folder / "run"), set=own, **given).folder, data


def policy_of(run: Path, task: Any, member: int) -> Judged:
    place, config = locate(run)
    return Judged(control.restore(place, config, task), member)


def test_without_an_environment_nothing_is_played(
    choices: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, data = choices
    found = etude.evaluate(run, data=str(data), member=1)
    assert set(found) == {"logs"}
    assert set(found["logs"]) == WEIGHTED | {"logged", "fqe", "fqe/deterministic", "action-distance", "beyond-logs"}
    said = capsys.readouterr().err
    assert "bc, fitted to the same rows" in said and "discounted by 0.99" in said
    for name, one in found["logs"].items():
        assert one.low <= one.value <= one.high and (one.effective is not None) == (name in WEIGHTED)
    assert etude.evaluate(run, data=str(data), member=1) == found  # same seed, same numbers


def test_the_behaviours_own_policy_earns_what_was_logged(choices: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = choices
    logs = open_logs(data, allow=("constant-rewards",))
    from etude.runs.training import compose_task

    _, config = locate(run)
    judged = policy_of(run, compose_task(config["task"], config["task_fields"]), 0)
    logp = judged.on(logs, torch.Generator()).logp
    own = written(tmp_path / "own.npz", {**cartpole_columns(), "logp": logp})
    found = etude.evaluate(run, data=str(own), gamma=1.0)["logs"]
    for name in ("importance-sampling", "weighted-importance-sampling"):
        assert found[name].value == pytest.approx(found["logged"].value, rel=1e-4)
        assert found[name].effective == pytest.approx(logs.episodes, rel=1e-4)
    assert found["logged"].value > logs.returns.mean()  # of the last episode nobody saw the end
    wrong = written(tmp_path / "wrong.npz", {**cartpole_columns(), "behaviour_logp": np.exp(logp)})
    with pytest.raises(DataError, match="natural logarithms"):
        etude.evaluate(run, data=str(wrong))


def test_densities_are_of_what_the_environment_takes(numbers: tuple[Path, Path]) -> None:
    """pi is a normal in units of half the range, which is 2."""
    run, data = numbers
    task = etude.task("pendulum")
    judged, logs = policy_of(run, task, 1), open_logs(data)
    found = judged.on(logs, torch.Generator().manual_seed(0))
    with torch.no_grad():
        mean, said = judged.actor(judged.actor.see(torch.as_tensor(logs.observations)[None]))[0].chunk(2, -1)
    normal = torch.distributions.Normal(2 * mean, 2 * torch.nn.functional.softplus(said))
    np.testing.assert_allclose(found.logp, normal.log_prob(torch.as_tensor(logs.actions))[:, 0], atol=1e-5)
    assert found.acts.now.shape == (logs.rows, 4, 1) and float(found.acts.now.abs().max()) <= 1
    np.testing.assert_allclose(found.acts.actions.numpy() * 2, logs.actions, atol=1e-6)


def test_with_an_environment_the_same_return_is_played(numbers: tuple[Path, Path]) -> None:
    run, data = numbers
    found = etude.evaluate(run, data=str(data), episodes=2, gamma=0.0)
    assert set(found) == {"logs", "test"} and {"played", "played/deterministic"} < set(found["logs"])
    assert len(found["test"]["return"].members) == 2
    assert -17 < found["logs"]["played"].value < 0  # with gamma = 0 it is the first reward, of at least -16.3
    assert found["logs"]["logged"].value == pytest.approx(open_logs(data).rewards[::30].mean())


def test_one_action_has_no_density(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = written(tmp_path / "swing.npz", pendulum_columns(episodes=6, length=20, following=True))
    done = etude.train(
        "bc", data=str(data), out=str(tmp_path / "run"), seeds=1, steps=250, set=SMALL, quiet=True, evaluate=0
    )
    found = etude.evaluate(done.folder, data=str(data))["logs"]
    assert set(found) == {"logged", "fqe", "fqe/deterministic", "action-distance", "beyond-logs"}
    assert found["fqe/deterministic"] == found["fqe"], "it does nothing else"
    assert "nothing can be weighted by importance" in capsys.readouterr().err


def test_what_cannot_be_judged_is_refused(
    choices: tuple[Path, Path], numbers: tuple[Path, Path], tmp_path: Path
) -> None:
    run, data = choices
    with pytest.raises(ConfigError, match="and the policy Discrete"):
        etude.evaluate(run, data=str(numbers[1]))
    with pytest.raises(ConfigError, match=r"There is no member 7"):
        etude.evaluate(run, data=str(data), member=7)
    with pytest.raises(ConfigError, match="--gamma is of what is estimated from logs"):
        etude.evaluate(numbers[0], gamma=0.9)
    few = {k: v[:60] for k, v in cartpole_columns().items()}
    few["timeouts"][-1] = not few["terminals"][-1]
    with pytest.raises(DataError, match="needs at least 5"):
        etude.evaluate(run, data=str(written(tmp_path / "few.npz", few)))
    with pytest.raises(ConfigError, match="logs of steps"):
        etude.evaluate("tiny", "compose", data=str(data))

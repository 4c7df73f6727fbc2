"""Data that is made: who acts and how likely that was, what is recorded, the same numbers twice, what is said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

import etude
from data_toys import Known, Side
from etude.cli.app import app
from etude.core.errors import ConfigError, DataError, MissingExtraError, UnknownNameError
from etude.core.population import Member
from etude.core.registry import get_method
from etude.evaluation.behaviours import AnyAction, NoisyController, TrainedSampling
from etude.evaluation.recording import SIDE_BY_SIDE, record
from etude.experience.logs.reading import open_logs
from etude.experience.logs.writing import LoggedEpisode, write_minari
from etude.loops.off_policy import OffPolicyLoop
from etude.runs import data_make
from etude.runs.data_make import MadeData, make_data
from etude.tasks import resolve_task
from replay_toys import small as small_replay

h5py: Any = pytest.importorskip("h5py")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
TINY = [
    "critic.network.hidden=8", "sampling.batch=16", "experience.warmup=50", "experience.random=50",
    "experience.every=2", "experience.updates=0.5", "exploration.over=300", "critic.learning.target.every=10",
]  # fmt: skip
MAZE: dict[str, Any] = {"task": "pointmaze-umaze", "size": 150, "set": "task.limit=45", "quiet": True}
KNOWN: dict[str, Any] = {"task": "data_toys:known", "size": 90, "quiet": True}
LEARNED: dict[str, Any] = {"task": "data_toys:side", "size": 120, "steps": 1_000, "set": TINY, "quiet": True}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module", autouse=True)
def fewer() -> Any:
    """Stages and expert by fewer episodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_make, "RUNGS", 4), patch.setattr(data_make, "COMPARED", 60)
        yield


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> MadeData:
    """All levels by dqn, whose training was stopped once on the way."""
    out = tmp_path_factory.mktemp("learned")
    etude.train("dqn", "data_toys:side", steps=1_000, until=500, seeds=1, seed=0, evaluate=0, keep=6, set=TINY,
                checkpoint_every=1, quiet=True, out=str(out / "behaviour"))  # fmt: skip
    return make_data(out=out, **LEARNED)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> MadeData:
    return make_data(out=tmp_path_factory.mktemp("known"), **KNOWN)


# Who acts, and how likely that was


def test_any_action_is_as_likely_as_another() -> None:
    choices = AnyAction(spaces.Discrete(4))
    actions, logp = choices.act(np.zeros((4_000, 1), np.float32), generator())
    assert sorted(np.unique(actions)) == [0, 1, 2, 3] and np.bincount(actions[:, 0].astype(int)).min() > 900
    np.testing.assert_allclose(logp, np.log(1 / 4))
    box = AnyAction(spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)))
    actions, logp = box.act(np.zeros((4_000, 1), np.float32), generator())
    np.testing.assert_allclose(logp, np.log(1 / 4))
    np.testing.assert_allclose(actions.mean(0), [0.0, 0.5], atol=0.06)
    assert actions.min() >= -2 and actions[:, 1].max() <= 1


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_a_blurred_controller_has_the_density_that_it_says(epsilon: float) -> None:
    """Drawn in the cells of a grid as often as the density there says; over all of them it comes to 1."""
    space = spaces.Box(-2.0, 2.0, (1,), np.float32)
    acts = NoisyController(lambda seen: np.full((len(seen), 1), 1.5), space, epsilon, blur=0.4)
    actions, logp = acts.act(np.zeros((40_000, 1), np.float32), generator())
    edges = np.linspace(-2, 2, 17)
    found = np.histogram(actions[:, 0], edges)[0] / len(actions)
    place = np.digitize(actions[:, 0], edges[1:-1])
    said = np.array([np.exp(logp[place == k]).mean() if (place == k).any() else 0.0 for k in range(16)]) * 0.25
    assert (np.abs(said - found) < 0.03 * found.max() + 4 * np.sqrt(found / 40_000)).all()
    inverse = np.exp(-logp)  # E[1 / p] over what has any density is how much room there is
    if epsilon > 0:
        assert inverse.mean() == pytest.approx(4.0, rel=0.1)
    top = np.exp(logp[np.abs(actions[:, 0] - 1.5) < 1e-2])
    from scipy.stats import norm

    room = norm.cdf(0.5 / 0.8) - norm.cdf(-3.5 / 0.8)
    if epsilon < 1:
        assert top.max() == pytest.approx((1 - epsilon) * norm.pdf(0) / 0.8 / room + epsilon / 4, rel=1e-3)


def loop_of(name: str, task: Any) -> OffPolicyLoop:
    return OffPolicyLoop(small_replay(get_method(name)), task, [Member(0)], 1, 20)


def test_a_trained_policy_is_as_likely_as_its_distribution_says() -> None:
    loop: Any = loop_of("sac", Side(boxes=True))
    acts, seen = TrainedSampling(loop, "sac", 0.0), np.linspace(-1, 1, 8, dtype=np.float32)[:, None]
    acts.begin(8)
    actions, logp = acts.act(seen, generator())
    mean, log_std = loop.actor(torch.from_numpy(seen)[None]).detach().double()[0].unbind(-1)
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp()), torch.distributions.TanhTransform()
    )
    wanted = squashed.log_prob(torch.from_numpy(actions).double()[:, 0] / 2) - np.log(2)
    np.testing.assert_allclose(logp, wanted, atol=1e-4)


def test_a_policy_that_leaves_nothing_to_chance_is_blurred() -> None:
    """By a tenth of half the range, -2 to 2, cut off at the bounds."""
    from scipy.stats import truncnorm

    loop: Any = loop_of("td3", Side(boxes=True))
    acts, seen = TrainedSampling(loop, "td3", 0.0), np.linspace(-1, 1, 4_000, dtype=np.float32)[:, None]
    acts.begin(4_000)
    actions, logp = acts.act(seen, generator())
    middle = 2 * np.tanh(loop.actor(torch.from_numpy(seen)[None]).detach().double()[0, :, 0].numpy())
    own = truncnorm((-2 - middle) / 0.2, (2 - middle) / 0.2, middle, 0.2)
    np.testing.assert_allclose(logp, own.logpdf(actions[:, 0]), atol=1e-4)
    assert (
        abs((actions[:, 0] - own.mean()).mean()) < 0.015 and abs((own.cdf(actions[:, 0]) < 0.25).mean() - 0.25) < 0.03
    )


def test_data_is_made_by_a_policy_that_leaves_nothing_to_chance(tmp_path: Path) -> None:
    tiny = [
        "policy.network.hidden=8", "critic.network.hidden=8", "sampling.batch=16", "experience.random=100",
        "experience.warmup=100", "task.boxes=true", "optimizer.lr=1e-2",
    ]  # fmt: skip
    made = make_data(
        "data_toys:side", levels="medium", out=tmp_path, size=60, steps=1_000, behaviour="td3", set=tiny, quiet=True
    )
    assert made.levels["medium"]["behaviours"][0].startswith("td3 step-")
    assert open_logs(tmp_path / "medium").rows >= 60


def test_a_critic_is_followed_but_for_epsilon() -> None:
    loop: Any = loop_of("dqn", Side())
    acts, seen = TrainedSampling(loop, "dqn", 0.4), np.full((5_000, 1), 0.3, np.float32)
    acts.begin(5_000)
    actions, logp = acts.act(seen, generator())
    best = loop.actor.distribution.mode(loop.actor(loop.actor.see(torch.from_numpy(seen[:1])[None]))).item()
    mine = actions[:, 0] == best
    assert abs(mine.mean() - 0.8) < 0.03
    np.testing.assert_allclose(np.exp(logp[mine]), 0.8)
    np.testing.assert_allclose(np.exp(logp[~mine]), 0.2)


# What is recorded


def test_episodes_are_whole_and_short_ones_do_not_count_more_often() -> None:
    acts = AnyAction(spaces.Discrete(2))
    found = record(acts, Side(), 3, "data x", steps=150)
    again, other = record(acts, Side(), 3, "data x", steps=150), record(acts, Side(), 3, "data y", steps=150)
    assert sum(e.steps for e in found) >= 150 > sum(e.steps for e in found[:-1])
    assert all((a == b).all() for x, y in zip(found, again) for a, b in zip(x[:6], y[:6]))
    assert not np.array_equal(found[0].observations, other[0].observations)
    for n, episode in enumerate(found):
        assert episode.observations.shape == (episode.steps + 1, 1) and episode.actions.shape == (episode.steps,)
        assert (episode.terminations | episode.truncations).tolist() == [False] * (episode.steps - 1) + [True]
        assert episode.truncations[-1] <= (episode.steps == 6)
        assert episode.origin == {"seed": 3, "environment": n % SIDE_BY_SIDE, "number": n // SIDE_BY_SIDE}
    assert 1 < np.mean([e.steps for e in found]) < 6
    assert len(record(acts, Side(), 3, "data x", episodes=50)) == 50
    mean = np.mean([e.steps for e in record(acts, Side(), 3, "data z", episodes=4_000)])
    survives = 0.75 ** np.arange(6)  # half are wrong, of which half end
    assert mean == pytest.approx(survives.sum(), abs=4 * 2 / 4_000**0.5)


def test_a_folder_that_minari_reads(tmp_path: Path) -> None:
    episodes = record(AnyAction(spaces.Box(-2.0, 2.0, (1,), np.float32)), Side(boxes=True), 0, "data x", episodes=3)
    box = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    for _ in range(2):  # what is there is replaced
        write_minari(tmp_path / "x", episodes, box, spaces.Box(-2.0, 2.0, (1,), np.float32), {"dataset_id": "x-v0"})
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    about = json.loads((tmp_path / "x" / "data" / "metadata.json").read_text())
    assert about["total_episodes"] == 3 and about["total_steps"] == sum(e.steps for e in episodes)
    with h5py.File(tmp_path / "x" / "data" / "main_data.hdf5") as file:
        group = file["episode_1"]
        assert dict(group.attrs) == {
            "id": 1, "total_steps": episodes[1].steps, "behaviour": "random", "seed": 0, "environment": 1, "number": 0
        }  # fmt: skip
        np.testing.assert_array_equal(group["infos/behaviour_logp"], episodes[1].behaviour_logp)
    logs = open_logs(tmp_path / "x", allow=["one-step-episodes"])
    np.testing.assert_array_equal(logs.observations, np.concatenate([e.observations[:-1] for e in episodes]))
    np.testing.assert_array_equal(logs.next_observations, np.concatenate([e.observations[1:] for e in episodes]))
    np.testing.assert_array_equal(logs.actions, np.concatenate([e.actions for e in episodes]))
    np.testing.assert_array_equal(logs.terminated, np.concatenate([e.terminations for e in episodes]))
    with pytest.raises(ConfigError, match="Logs hold vectors, numbers and choices, and this is MultiBinary"):
        write_minari(tmp_path / "y", episodes, spaces.MultiBinary(2), box, {})


# The levels


def stages_of(made: MadeData) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made.folder / "recipe.json").read_text())
    return found


def test_levels_of_a_trained_behaviour(learned: MadeData) -> None:
    kept = stages_of(learned)
    low, high = learned.returns["chance"], learned.returns["expert"]
    returns = list(kept["stages"].values())
    assert len(returns) == 5 and high > low and returns[kept["expert"]] == max(returns)
    third = low + (high - low) / 3
    assert returns[kept["medium"]] >= third and all(r < third for r in returns[: kept["medium"]])
    levels, names = learned.levels, list(kept["stages"])
    assert levels["expert"]["behaviours"] == [names[kept["expert"]]]
    assert levels["medium"]["behaviours"] == [names[kept["medium"]]]
    assert levels["replay"]["behaviours"] == names[: kept["medium"] + 1]
    assert levels["mixed"]["behaviours"] == ["random", names[kept["expert"]]]
    assert levels["random"]["score"] < levels["expert"]["score"]
    assert all(120 <= facts["steps"] < 120 + 7 * 6 for facts in levels.values())
    for level, facts in levels.items():
        logs = open_logs(learned.folder / level, allow=facts["allow"])
        assert (logs.fingerprint, logs.rows, logs.episodes) == (facts["fingerprint"], facts["steps"], facts["episodes"])
        assert str(logs.spaces.action_space) == "Discrete(2)"
        assert facts["score"] == pytest.approx(100 * (logs.returns.mean() - low) / (high - low))


def test_a_run_that_was_stopped_comes_to_the_same_data(learned: MadeData, tmp_path: Path) -> None:
    whole = make_data(out=tmp_path, levels="expert,replay", **LEARNED)
    assert whole.levels == {k: learned.levels[k] for k in ("expert", "replay")}


def test_the_same_call_twice_makes_the_same_arrays(known: MadeData, tmp_path: Path) -> None:
    again = make_data(out=tmp_path / "again", **KNOWN)
    assert again.levels == known.levels and len({f["fingerprint"] for f in known.levels.values()}) == 5
    for level in known.levels:
        files = [folder / level / "data" / "main_data.hdf5" for folder in (known.folder, again.folder)]
        one, two = ({n: x[()] for n, x in _arrays(h5py.File(f))} for f in files)
        assert one.keys() == two.keys() and all(np.array_equal(one[k], two[k]) for k in one)
    other = make_data(out=tmp_path / "other", levels=["random"], **{**KNOWN, "seed": 1})
    assert other.levels["random"]["fingerprint"] != known.levels["random"]["fingerprint"]
    assert other.levels["random"]["score"] is None and other.returns == {}


def _arrays(file: Any) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    file.visititems(lambda name, thing: found.append((name, thing)) if hasattr(thing, "dtype") else None)
    return found


def test_what_is_there_stays_and_what_is_missing_is_made(known: MadeData, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(known.folder / "medium")
    purposes: list[str] = []

    def noted(behaviour: Any, task: Any, seed: int, purpose: str, **sizes: int) -> Sequence[LoggedEpisode]:
        purposes.append(purpose)
        return record(behaviour, task, seed, purpose, **sizes)

    monkeypatch.setattr(data_make, "record", noted)
    assert make_data(out=known.folder, **KNOWN).levels == known.levels
    assert purposes == ["data medium 0"]  # which stage that is, is kept
    with pytest.raises(ConfigError, match=r"made by another recipe \(size 90, now 91\): give another --out"):
        make_data(out=known.folder, **{**KNOWN, "size": 91})


def test_levels_of_a_maze_whose_controller_knows_the_way(tmp_path: Path) -> None:
    made = make_data(out=tmp_path, levels="random,expert", **MAZE)
    assert made.levels["expert"]["score"] > 50 > made.levels["random"]["score"]
    task: Any = resolve_task("pointmaze-umaze").replace(goals="drawn")  # type: ignore[attr-defined]
    seen = task.make([0], 3).reset()
    plain = resolve_task("pointmaze-umaze").controller()(seen[..., :4])  # type: ignore[attr-defined]
    assert task.controller()(seen).shape == plain.shape == (1, 3, 2)


def test_a_built_in_id_has_rewards_that_are_all_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app(
        ["data", "make", "CartPole-v1", "--levels", "random", "--size", "60", "--out", str(tmp_path)],
        result_action="return_value",
    )
    said = capsys.readouterr().out
    logs = open_logs(tmp_path / "random", allow=["constant-rewards"])
    assert f"{logs.rows}" in said and logs.fingerprint[:12] in said
    assert "--task CartPole-v1" in said and "task.allow=constant-rewards" in said


# What is said


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"levels": "random,middle"}, UnknownNameError, "no level named 'middle'"),
        ({"task": "compose"}, ConfigError, "Data is made of tasks of control, and compose is none"),
        ({"behaviour": "ppo"}, ConfigError, "learn from a replay .*, and ppo is none"),
        ({"behaviour": "td3-bc"}, ConfigError, "learn from a replay .*, and td3-bc is none"),
        ({"behaviour": "sacc"}, UnknownNameError, "Did you mean 'sac'"),
        ({"behaviour": "controller"}, ConfigError, "data_toys:side has no controller"),
        ({"task": "data_toys:known"}, ConfigError, "is not trained: leave out --steps and fields"),
        ({"set": ["task.boxes=true"], "epsilon": 0.1}, ConfigError, "which --epsilon does not change"),
        ({"size": 0}, ConfigError, "size must be a whole number of at least 1"),
        ({"epsilon": 2.0}, ConfigError, r"epsilon must be a number in \[0, 1\]"),
    ],
)
def test_what_cannot_be_made_is_said(changes: Any, error: type, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=sentence):
        make_data(out=tmp_path / "x", **{**LEARNED, **changes})
    assert not (tmp_path / "x").exists()


def test_a_behaviour_that_did_not_learn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Known, "controller", lambda self: lambda seen: np.zeros_like(seen, np.float64))
    with pytest.raises(DataError, match=r"did not learn: its best stage returns .*, and chance"):
        make_data(out=tmp_path, **KNOWN)


def test_without_h5py_nothing_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"etude\[data\]"):
        make_data(out=tmp_path / "x", **LEARNED)
    assert not (tmp_path / "x").exists()


def test_episodes_that_never_end_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.evaluation.recording.LONGEST", 3)
    with pytest.raises(ConfigError, match="no episode that ended within 3 steps"):
        record(AnyAction(spaces.Discrete(2)), SimpleNamespace(make=_endless, id="endless"), 0, "x", episodes=1)  # type: ignore[arg-type]


def _endless(seeds: Sequence[int], count: int, purpose: str) -> Any:
    made = Side().make(seeds, count, purpose)
    made.limit = 10_000  # type: ignore[attr-defined]
    made.luck = lambda n: np.full((1, count, n), 0.9)  # type: ignore[attr-defined]
    return made

"""Animated pictures of an episode, drawn by Gymnasium or by EnvPool."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import etude
from corridor import Corridor
from etude.core.errors import ConfigError
from etude.evaluation.animation import LONGEST, Frames
from etude.experience import envpool_pictures
from etude.experience.envpool_pictures import EnvPoolPictures
from etude.experience.envpool_vector import EnvPoolVector
from etude.tasks.control.environment import EnvironmentTask

SHORT = {"max_episode_steps": 30}


def test_frames_of_a_long_episode_are_equally_far_apart() -> None:
    frames = Frames()
    for step in range(5 * LONGEST):
        frames.take(lambda step=step: step)
    assert frames.kept == [*range(0, 5 * LONGEST, 4)] and frames.every == 4


@pytest.mark.slow
def test_envpool_draws_the_episode_that_is_played() -> None:
    pytest.importorskip("envpool")
    drawn = EnvPoolPictures("Breakout-v5", 3, "test", SHORT, 60.0)
    plain = EnvPoolVector("Breakout-v5", [3], 1, "test", arguments=SHORT)
    np.testing.assert_array_equal(drawn.reset(), plain.reset())
    first = drawn.render()
    for _ in range(5):
        fire = np.ones((1, 1, 1), np.float32)
        np.testing.assert_array_equal(drawn.step(fire).observations, plain.step(fire).observations)
    assert first.shape == (210, 160, 3) and first.dtype == np.uint8
    assert (first != drawn.render()).any(), "the ball flies"


@pytest.mark.slow
def test_a_video_of_what_only_envpool_plays(tmp_path: Path) -> None:
    from PIL import Image

    pytest.importorskip("envpool")
    sizes: dict[str, Any] = {"experience.steps": 4, "experience.environments": 2}
    told = sizes | {f"task.arguments.{k}": v for k, v in SHORT.items()}
    run = etude.train("ppo", "Breakout-v5", steps=8, seeds=1, evaluate=0, set=told, out=tmp_path / "run", quiet=True)
    etude.evaluate(run.folder, episodes=1, video=str(tmp_path / "a.gif"))
    with Image.open(tmp_path / "a.gif") as picture:
        assert picture.size == (160, 210) and picture.n_frames > 1  # type: ignore[attr-defined]  # of a GIF


def test_what_ends_the_process_that_asks_for_a_picture_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envpool_pictures, "TRY", "print('ERROR: an OpenGL library is missing'); raise SystemExit(1)")
    with pytest.raises(ConfigError, match=r"^Breakout-v5 draws no pictures here, says EnvPool: ERROR: an OpenGL"):
        EnvironmentTask("Breakout-v5").pictured(0, "test")
    monkeypatch.setattr(envpool_pictures, "TRY", "import time; time.sleep(60)")
    monkeypatch.setattr(envpool_pictures, "DEADLINE", 0.05)
    with pytest.raises(ConfigError, match="EnvPool had none after 0 seconds"):
        EnvironmentTask("Breakout-v5").pictured(0, "test")
    assert EnvironmentTask("CartPole-v1").pictured(0, "test") is None


class Unlit(Corridor):
    """A corridor that wants a screen."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> None:
        raise RuntimeError("an OpenGL platform library\nhas not been loaded")


@pytest.mark.slow
def test_what_cannot_be_drawn_here_is_a_sentence(tmp_path: Path) -> None:
    """MuJoCo's own exception without a screen: no traceback, and what to try."""
    options: dict[str, Any] = {"steps": 64, "seeds": 1, "evaluate": 0, "set": {"experience.steps": 8}, "quiet": True}
    result = etude.train("ppo", Unlit, out=tmp_path / "run", **options)
    sentence = r"draws no pictures here: RuntimeError: an OpenGL platform library has not been loaded\. .*MUJOCO_GL=egl"
    with pytest.raises(ConfigError, match=sentence):
        etude.evaluate(result.folder, episodes=1, video=str(tmp_path / "room.gif"))
    assert not (tmp_path / "room.gif").exists()

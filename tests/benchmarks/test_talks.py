"""The episodes that are timed against TRL's tool loop: as long as they say, and answered by what was said."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from _talk_task import Talking  # noqa: E402
from _talks import TALKS, make_talker  # noqa: E402

from etude.core.slots import Context  # noqa: E402
from etude.core.streams import Stream  # noqa: E402
from etude.experience.rollout import fresh, rollout  # noqa: E402
from etude.policies.language import LanguagePolicy  # noqa: E402
from etude.policies.sampling import Sampling  # noqa: E402


def test_tools_answer_what_was_said() -> None:
    talk = TALKS["steps"]
    assert talk.tool("w1 w2") == talk.tool(" w1  w2 ") != talk.tool("w2 w1")
    assert len(talk.tool("w1 w2").split()) == talk.observation


@pytest.mark.slow
@pytest.mark.parametrize("name", ["single", "steps", "calls"])
def test_episodes_are_as_long_as_their_talk_says(name: str, tmp_path: Path) -> None:
    talk = TALKS[name]
    policy = LanguagePolicy.load(str(make_talker(talk, tmp_path)), device="cpu")
    task = Talking(talk=name, max_turns=talk.turns)
    context = Context(task, policy, Stream(0))
    problems = task.problems("train")[:2]
    for episode in rollout(fresh(problems, 2, Stream(0)), context, Sampling(max_tokens=talk.answer)):
        opening, *rest = episode.segments
        assert len(opening.tokens) == len(str(episode.problem.prompt).split())
        assert sum(len(s.tokens) for s in rest) == talk.length and episode.action_count == talk.said
        said, shown = rest[::2], rest[1::2]
        assert [policy.decode(s.tokens) for s in shown] == [talk.tool(s.text) for s in said[:-1]]

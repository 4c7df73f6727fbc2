"""Worked answers beside a saved model's: who is paid what, and whose words they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etude.core.errors import ConfigError
from etude.core.slots import Context
from etude.core.streams import Stream
from etude.experience.adversarial import DemonstrationsAndSamples, paid
from etude.experience.data import Demonstrations
from etude.experience.groups import Groups
from etude.policies.language import LanguagePolicy
from etude.policies.texts.models import SavedModel
from etude.runs.training import compose_method
from language_toys import Toy, random_policy


class Shown(Toy):
    def problems(self, split: str) -> Any:
        made = super().problems(split)
        for problem in made:
            problem.info["demonstration"] = "abc"
        return made


@pytest.mark.slow
def test_the_saved_model_says_the_bad_ones_whoever_learns(tmp_path: Path) -> None:
    random_policy(seed=1).save(tmp_path)
    learner, other = random_policy(seed=0), LanguagePolicy.load(str(tmp_path), device="cpu")
    part: Any = DemonstrationsAndSamples(whose=SavedModel(model=str(tmp_path))).bind()
    task: Any = Shown(scoring=lambda *_: 7.0)
    problems = task.problems("train")[:2]
    found = part.collect(problems, Context(task, learner, Stream(3), max_tokens=6))
    assert [e.reward for e in found] == [1.0, 0.0, 1.0, 0.0] and [e.group for e in found] == [0, 0, 1, 1]
    shown = Demonstrations().collect(problems, Context(task, learner, Stream(3), max_tokens=6))
    said = Groups(size=1).collect(problems, Context(task, other, Stream(3), max_tokens=6))
    assert [e.segments[-1].tokens for e in found[::2]] == [e.segments[-1].tokens for e in shown]
    assert [e.segments[-1].tokens for e in found[1::2]] == [e.segments[-1].tokens for e in said]
    assert said[0].reward == 7.0 and paid(said[0], 2.0).reward == 2.0


def test_it_needs_a_model() -> None:
    with pytest.raises(ConfigError, match="names no model"):
        compose_method("irl-llm-survey", ["experience=demonstrations-and-samples"])

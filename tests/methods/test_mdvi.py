"""What the regularised greedy step needs of a method."""

from __future__ import annotations

from typing import Any

import pytest

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.learners.heads import Atoms, CrossEntropy
from etude.policies.control.replay import FromCritic


@pytest.mark.parametrize(
    ("slots", "fields", "sentence"),
    [
        ({"policy": FromCritic(), "order": ("critic",)}, {}, "weighs the chances of choices: set policy=softmax"),
        ({}, {"policy.learning.target": "none"}, r"near its slow copy: set policy\.learning\.target"),
        ({"critic": "atoms"}, {}, r"says probabilities of returns: set critic\.head=scalar"),
    ],
)
def test_what_the_step_cannot_be_taken_in_is_refused(slots: Any, fields: Any, sentence: str) -> None:
    method: Any = get_method("mdvi")
    if slots.get("critic"):
        slots = {"critic": method.critic.replace(head=Atoms(), error=CrossEntropy())}
    with pytest.raises(ConfigError, match=sentence):
        set_values(method.replace(**slots), fields).check()

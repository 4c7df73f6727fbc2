"""Methods and parts stacked onto each other train; what contradicts is refused."""

from __future__ import annotations

import math

import pytest

from etude.core.errors import ConfigError
from etude.policies.language import LanguagePolicy
from etude.runs.training import compose_method
from etude.tasks import resolve_task
from language_toys import make_loop

pytestmark = pytest.mark.usefixtures("one_thread")
STACKS = [
    ("grpo", "forking-tokens", "gdro-grpo"),
    ("grpo", "maxrl", "curvature-mask"),
    ("grpo", "lens", "rollout-gdro"),
    ("grpo", "g2rl", "hpt"),
    ("hpt", "forking-tokens"),
    ("r3l", "oblr-po", "forking-tokens"),
    ("hpt", "oblr-po", "curvature-mask"),
    ("rloo", "max-at-k", "kl-to-reference"),
    ("dapo", "oblr-po", "entropy-bonus"),
    ("dapo", "one-shot-rlvr", "forking-tokens"),
    ("relift", "critique-grpo"),
    ("relift", "ghpo"),
    ("dapo", "relift"),
    ("dr-grpo", "sasr", "entropy-bonus"),
]


NAMED = {
    "one-shot-rlvr": {"curriculum.chosen": "named-problems", "curriculum.chosen.ids": "compose/train/1"},
    "relift": {"stages.0.chooser.size": 1},
}
"""What has to be named for a method, or set so that it shows in two steps."""


@pytest.mark.slow
@pytest.mark.parametrize("stack", STACKS, ids="+".join)
def test_a_stack_trains(stack: tuple[str, ...]) -> None:
    named = {k: v for name in stack for k, v in NAMED.get(name, {}).items()}
    method = compose_method(stack[0], {"problems": 4, **named}, stack[1:])
    loop = make_loop(method, resolve_task("compose"), LanguagePolicy.load("tiny", device="cpu"))  # type: ignore[arg-type]
    for _ in range(2):
        assert all(math.isfinite(v) for v in loop.step().metrics.values())


def test_a_stack_has_the_changes_of_both() -> None:
    method = compose_method("grpo", (), ("forking-tokens", "gdro-grpo"))
    names = {part.name for part in method.parts().values()}
    assert {"high-entropy-tokens", "prompt-gdro"} <= names
    assert "informative-groups" not in names  # dapo's, which forking-tokens did not change


def test_adversaries_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="two adversaries over the same bins"):
        compose_method("grpo", (), ("gdro-grpo", "rollout-gdro"))

"""Papers stacked on papers: what is said to go together trains, with the parts of each; what does not is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from etude.core.edit import set_values, stack
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.registry import get_method
from etude.loops.language import LanguageLoop
from etude.policies.language import LanguagePolicy
from etude.tasks import resolve_task

SMALL: Mapping[str, Any] = {"problems": 4}
SCORED = {**SMALL, "rewards.reward-model.model": "{model}"}
STACKS: Mapping[str, tuple[str, Mapping[str, Any], tuple[str, ...]]] = {
    "grpo+clip-cov+dump": ("sums", SMALL, ("covariance-clip", "learnability-bandit")),
    "dapo+ghpo+memory-r-plus": ("sums", {**SMALL, "experience.size": 4}, ("look-again", "memory-reward")),
    "dr-grpo+nft": ("sums", {**SMALL, "minibatches": 1}, ("negative-aware",)),
    "relift+critique-grpo": ("sums", SMALL, ("look-again", "attempt-and-critique", "interleaved")),
    "sparkle+ghpo": ("sums", {**SMALL, "experience.size": 2}, ("scaffolded-groups", "look-again")),
    "rloo+aepo": ("sums", SMALL, ("aepo",)),
    "ppo-max+rto+pf-ppo": (
        "digest", {**SCORED, "rewards.dpo-token-reward.whose.model": "{model}"}, ("dpo-token-reward", "rank-filter"),
    ),
    "rebel+pf-ppo": ("digest", SCORED, ("rank-filter", "squared-to-reward")),
    "rebel+salsa": ("digest", {**SMALL, "reference.models": "{model}"}, ("soup", "squared-to-reward")),
    "grpo+brpo": ("digest", SMALL, ("balanced-groups",)),
    "grpo+brpo by-judge": (
        "digest", {**SMALL, "rewards.against-one-other.oracle": "by-judge"}, ("by-judge", "simulated-judge"),
    ),
    "grpo+brpo asked": (
        "digest", {**SMALL, "rewards.against-one-other.oracle": "by-judge",
                   "rewards.against-one-other.oracle.judge": "model-pair-judge",
                   "rewards.against-one-other.oracle.judge.model": "{model}"},
        ("by-judge", "model-pair-judge"),
    ),
    "grpo+rlmt": ("digest", {**SMALL, "rewards.answer-score.model": "{model}"}, ("answer-score",)),
    "cosmos-mcts+orpo": (
        "grammar-stories", {**SMALL, "experience.search.simulations": 4}, ("pairs-by-search", "log-odds"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a model with a value head, for whoever scores by one."""
    policy, folder = LanguagePolicy.load("tiny", device="cpu"), tmp_path_factory.mktemp("model")
    policy.add_value_head()
    policy.save(Path(folder))
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", STACKS)
def test_a_stack_that_is_said_to_run_takes_a_step(name: str, model: str) -> None:
    task, fields, parts = STACKS[name]
    base, *others = name.partition(" ")[0].split("+")
    method = stack(get_method(base), others)
    method = set_values(method, {k: v.format(model=model) if isinstance(v, str) else v for k, v in fields.items()})
    there = {part.name for part in method.parts().values()}
    assert there.issuperset(parts), f"{sorted(set(parts) - there)} of {sorted(there)}"
    played: Any = resolve_task(task)
    check(method, played)
    loop = LanguageLoop(method, played, LanguagePolicy.load("tiny", device="cpu"), seed=0, steps=1)
    assert loop.step().metrics["rows"] > 0


REFUSED: Mapping[str, tuple[str, str]] = {
    "grpo+deepsearch+spo": ("sums", "both set experience"),  # two searches
    "grpo+hgpo+spo": ("hybrid-sums", "both set experience"),  # a forced token and fresh endings
    "grpo+hgpo+spo-tree": ("hybrid-sums", "both set experience"),  # a forced token and a tree
    "hgpo+deepsearch": ("hybrid-sums", "a method has one experience. Leave out --with deepsearch"),  # the same
    "spo+deepsearch": ("sums", "a method has one experience"),
    "grpo+hgpo+deepsearch": ("hybrid-sums", "both set experience"),  # a forced token and a tree that is searched
    "hgpo+spo-tree": ("hybrid-sums", "both-modes, and --with spo-tree would put tree in its place"),
    "hgpo+groups": ("hybrid-sums", "set experience=both-modes"),  # compares modes that nobody forces
    "ghpo+hgpo": ("hybrid-sums", "what a second look tries again is in none of them"),  # no mode is forced there
    "rlp+ghpo": ("streams", "what a second look puts in is none"),  # a thought, which a hint is not
    "deepsearch+ghpo": ("sums", "has no steps of those that second_look adds"),
    "sft+dpo+orpo": ("preferences", "both set objective"),  # two losses of pairs
    "grpo+dpo": ("preferences", "groups, and --with dpo would put pairs in its place"),
    "dpo+ppo": ("preferences", "Pairs takes its rows from data"),
    "rebel+dpo": ("digest", "rebel samples by groups, and --with dpo would put pairs"),
    "deepsearch+t-ppo": ("sums", "would put successive-batches in its place"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_stack_that_contradicts_itself_is_refused_in_a_sentence(name: str) -> None:
    task, words = REFUSED[name]
    base, *others = name.split("+")
    with pytest.raises(ConfigError, match=words):
        check(stack(get_method(base), others), resolve_task(task))


def test_a_recipe_takes_another_method_as_its_last_stage() -> None:
    fields = {"runs.rlvr.method": "rebel", "runs.rlvr.set": ["rewards.missing-end.value=-2.0"]}
    recipe: Any = set_values(get_method("tulu-3"), fields)
    check(recipe, resolve_task("lookups"))
    last = recipe.runs[-1]
    assert last.method == "rebel" and last.begins == "dpo"
    assert any(
        getattr(part, "name", "") == "squared-to-reward" for m in recipe.made_of() for part in m.parts().values()
    )


DENOMINATORS = ["objective=pair-loss", "objective.of=log-ratio",
                "objective.of.denominators=reference-policy,behaviour-policy"]  # fmt: skip


@pytest.mark.parametrize("name", ["rebel+frozen", "rebel+rloo", "grpo+frozen"])
def test_a_log_ratio_with_two_denominators_needs_their_weights(name: str) -> None:
    """Whatever it is stacked on, and not where the weights are said."""
    base, *others = name.split("+")
    method = stack(get_method(base), others)
    with pytest.raises(ConfigError, match="behaviour-policy with weights that add up to 2: a log-ratio has one"):
        check(set_values(method, DENOMINATORS), resolve_task("digest"))
    weights = [f"objective.of.denominators.{place}.weight=0.5" for place in (0, 1)]
    there = set_values(method, [*DENOMINATORS, *weights]).parts()
    assert [part.name for path, part in there.items() if "denominators" in path] == [
        "reference-policy", "behaviour-policy"
    ]  # fmt: skip

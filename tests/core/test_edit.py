"""`--set` and `--with`: paths, ranges, names, and contradictions, each refused in a sentence."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

import etude
from etude.advantages.group import BatchStd, GroupStd, LeaveOneOut
from etude.core.edit import assignments, set_value, set_values, stack
from etude.core.errors import ConfigError, EtudeError, UnknownNameError
from etude.core.fit import check as check_fit
from etude.core.part import Part
from etude.core.registry import files, get_method
from etude.policies.control.networks import CNN
from etude.regularizers.kl import KLToReference
from etude.runs.training import compose_method, compose_task
from etude.tasks import resolve_task


@pytest.fixture
def grpo() -> etude.Method:
    return etude.method("grpo")


def test_sets_slots_fields_nested_parts_and_lists(grpo: etude.Method) -> None:
    assert set_value(grpo, "problems=4").problems == 4
    assert set_value(grpo, "aggregation=fixed-length").aggregation == "fixed-length"
    assert set_value(grpo, "optimizer.lr=3e-4").optimizer.lr == 3e-4
    assert set_value(grpo, " optimizer.lr = 1 ").optimizer.lr == 1.0
    assert set_value(grpo, "optimizer.lr=none").optimizer.lr is None
    assert set_value(grpo, "objective=policy-gradient").objective.name == "policy-gradient"
    assert set_value(etude.method("gpg"), "advantages.of.scale=group-std").advantages.of.scale == GroupStd()
    assert set_value(grpo, "advantages.centre=leave-one-out").advantages.centre == LeaveOneOut()
    assert set_values(grpo, ["advantages.scale=batch-std", "advantages.scale.epsilon=0"]).advantages.scale == (
        BatchStd(epsilon=0.0)
    )
    assert set_value(grpo, "advantages.scale=none").advantages.scale is None
    assert set_value(grpo, "regularizers=kl-to-reference,entropy-bonus").regularizers[0] == KLToReference()


def test_fields_that_belong_together_are_set_in_any_order_and_then_checked() -> None:
    """Three lists of a CNN must be of one length: any order, and any two of three are refused by the part's path."""
    ppo = etude.method("ppo", world="control")
    lists = ["policy.network.channels=16,32", "policy.network.kernels=3,3", "policy.network.strides=2,1"]
    for order in itertools.permutations(lists):
        network = set_values(ppo, ["policy.network=cnn", *order]).policy.network
        assert (network.channels, network.kernels, network.strides) == ((16, 32), (3, 3), (2, 1))
    with pytest.raises(
        ConfigError, match=r"^critic\.network: CNN needs a kernel and a stride for each of its channels"
    ):
        set_values(ppo, ["critic.network=cnn", "critic.network.channels=16,32"])
    with pytest.raises(ConfigError, match=r"^CNN needs a kernel"):  # made outside, a part is checked at once
        CNN(channels=(16,))


def test_a_part_is_said_before_its_fields() -> None:
    ppo = etude.method("ppo", world="control")
    sentence = r"^network\.channels=8 is set before network=cnn, which has that field or not: say the part first\.$"
    with pytest.raises(ConfigError, match=sentence):
        set_values(ppo, ["network.channels=8", "network=cnn", "network.kernels=3", "network.strides=1"])
    with pytest.raises(UnknownNameError, match=r"no field of MLP.*products\. cnn has it: first set network=cnn\."):
        set_value(etude.method("ppo", world="control"), "network.channels=8")
    with pytest.raises(UnknownNameError, match=r"no field of MLP named 'channels'.* critic\.network has: hidden, "):
        set_value(etude.method("ppo", world="control"), "critic.network.channels=8")
    with pytest.raises(UnknownNameError, match=r"no field of CNN named 'chanels'"):
        set_values(ppo, ["network=cnn", "network.chanels=8", "network.hidden=8"])


def test_what_several_slots_have_is_set_in_all_of_them(grpo: etude.Method) -> None:
    ppo = etude.method("ppo", world="control")
    wide = set_values(ppo, ["network.hidden=128,128", "critic.network.activation=relu"])
    assert [(n.hidden, n.activation) for n in (wide.policy.network, wide.critic.network)] == [
        ((128, 128), "tanh"), ((128, 128), "relu"),
    ]  # fmt: skip
    seen = set_value(ppo, "network=cnn")
    assert (seen.policy.network, seen.critic.network) == (CNN(), CNN())
    assert set_value(grpo, "centre=leave-one-out").advantages.centre == LeaveOneOut()
    for path, name in (("netwrok.hidden=8", "netwrok"), ("lr=1e-3", "lr"), ("hidden=8", "hidden")):
        with pytest.raises(UnknownNameError, match=f"no slot of ppo named '{name}'"):
            set_value(ppo, path)
    with pytest.raises(UnknownNameError, match="no field of MLP named 'hiden'"):
        set_value(ppo, "network.hiden=8")


def test_finds_parts_of_a_list_by_name_and_by_index(grpo: etude.Method) -> None:
    dapo = etude.method("dapo")
    assert [p.name for p in dapo.rewards] == ["task-reward", "overlong-penalty"]
    by_name = set_value(dapo, "rewards.overlong-penalty.buffer=0.5")
    assert by_name == set_value(dapo, "rewards.1.buffer=0.5") != dapo
    assert by_name.rewards[0] == dapo.rewards[0]
    assert [p.name for p in set_value(dapo, "rewards.overlong-penalty=none").rewards] == ["task-reward"]
    assert [p.name for p in set_value(dapo, "rewards.0=kl-penalty").rewards] == ["kl-penalty", "overlong-penalty"]


def test_none_empties_what_may_be_empty() -> None:
    dapo = etude.method("dapo")
    assert set_value(dapo, "filters=none").filters == ()
    assert set_value(etude.method("ppo"), "critic=none").critic is None


def test_order_and_text_do_not_matter(grpo: etude.Method) -> None:
    ways = (
        {"problems": 3, "optimizer.lr": 1e-3},
        ["optimizer.lr=0.001", "problems=3"],
    )
    first, second = (set_values(grpo, way) for way in ways)
    assert first == second
    assert assignments({"task.levels": (2, 3), "filters": ()}) == ["task.levels=2,3", "filters=none"]
    assert assignments("problems=3") == ["problems=3"]


def test_a_lone_value_is_a_list_of_one() -> None:
    assert compose_task("compose", ["task.levels=3"]).levels == (3,)
    assert compose_task("compose", {"task.levels": (2, 4)}).levels == (2, 4)


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("problems", "--set takes PATH=VALUE"),
        ("=3", "--set takes PATH=VALUE"),
        ("optimzer.lr=1", "no slot of grpo named 'optimzer'. Did you mean 'optimizer'"),
        ("optimizer.lrr=1", "no field of AdamW named 'lrr'. Did you mean 'lr'"),
        ("optimizer.lr=-1", "AdamW.lr must be a number above 0 or none, got '-1'"),
        ("optimizer.lr=nan", "AdamW.lr must be a number above 0 or none"),
        ("optimizer.lr=", "AdamW.lr must be a number above 0 or none, got ''"),
        ("objective.low=1.5", "ClippedSurrogate.low must be a number in (0, 1), got '1.5'"),
        ("objective=clipped-surogate", "Did you mean 'clipped-surrogate'"),
        ("objective=uniform", "There is no part for grpo: objective named 'uniform'"),
        ("problems=0", "problems must be a whole number of at least 1, got '0'"),
        ("problems=2.5", "problems must be a whole number of at least 1, got '2.5'"),
        ("problems.x=1", "problems is a value, so it has no field 'x'; set it as in problems=VALUE"),
        ("critic.clip=1", "critic is empty, so it has no field 'clip'; set the part first, as in critic=NAME"),
        ("aggregation=mean", "must be one of 'token-mean', 'sequence-mean', 'fixed-length', got 'mean'"),
        ("rewards.7.weight=1", "no part in grpo: rewards named '7'. It holds: task-reward"),
        ("id=other", "no slot of grpo named 'id'"),
        ("rewards=function-reward", "function-reward needs a value for function"),
    ],
)
def test_refuses_in_a_sentence(grpo: etude.Method, assignment: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        set_value(grpo, assignment)
    assert sentence in str(caught.value)


def test_a_bad_value_is_named_with_the_part_that_it_is_of() -> None:
    for part in ("policy", "critic"):
        with pytest.raises(ConfigError, match=rf"^{part}\.network: MLP\.hidden must be a list, .*, got '-3'\.$"):
            set_value(etude.method("ppo", world="control"), f"{part}.network.hidden=-3")


def test_an_object_is_no_value() -> None:
    """Of a network its class is given, not one that is made: each member has its own."""
    with pytest.raises(ConfigError, match=r"^network is set to text, .* got an object of Linear\. Give the class of a"):
        assignments({"network": torch.nn.Linear(2, 3)})


def test_a_list_of_values_has_no_places() -> None:
    with pytest.raises(ConfigError, match=r"MLP\.hidden is a value, so it has no field '0'; set it as in MLP\.hidden="):
        set_value(etude.method("ppo", world="control"), "policy.network.hidden.0=32")


def test_stacks_parts_and_methods(grpo: etude.Method) -> None:
    both = stack(grpo, ["kl-to-reference", "dapo"])
    assert [p.name for p in both.regularizers] == ["kl-to-reference"]
    assert both.objective == etude.method("dapo").objective
    assert both.filters == etude.method("dapo").filters
    assert stack(grpo, "kl-to-reference") == stack(grpo, ["kl-to-reference"])
    assert stack(both, ["kl-to-reference"]) == both, "a part twice is there once"


def test_stacks_a_part_of_a_file(grpo: etude.Method, tmp_path: Path) -> None:
    (tmp_path / "bonus_part.py").write_text(
        "from etude.core.slots import Reward\n\n\nclass Bonus(Reward):\n    amount: float = 1.0\n\n"
        "    def score(self, episodes, context):\n        return [self.amount] * len(episodes)\n\n\nx = 3\n"
    )
    added = stack(grpo, [f"{tmp_path / 'bonus_part.py'}:Bonus"]).rewards[-1]
    assert isinstance(added, Part)
    assert added.fields() == {"amount": 1.0}
    with pytest.raises(UnknownNameError, match="Did you mean 'Bonus'"):
        stack(grpo, [f"{tmp_path / 'bonus_part.py'}:Bonu"])
    with pytest.raises(ConfigError, match="must be a Part class, got 3"):
        stack(grpo, [f"{tmp_path / 'bonus_part.py'}:x"])


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["kl-to-referense"], "Did you mean 'kl-to-reference'"),
        (["reinforce"], "reinforce has no parent"),
        (["policy-gradient", "clipped-surrogate"], "both set objective, which holds one value"),
        (["dapo", "dr-grpo"], "--with dapo and --with dr-grpo both set aggregation"),
    ],
)
def test_refuses_stacks_in_a_sentence(grpo: etude.Method, names: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stack(grpo, names)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("method", "changes", "parts", "sentence"),
    [
        ("grpo", [], ["gae"], "GAE is computed from values that no critic learns"),
        ("ppo", ["critic=none"], [], "GAE is computed from values that no critic learns"),
        ("grpo", [], ["token-critic"], "TokenCritic has no returns to learn from"),
        ("grpo", ["experience.size=1"], [], "experience.size = 1 gives only one"),
        ("gpg", ["experience.size=1"], [], "experience.size = 1 gives only one"),
        ("rloo", ["experience.size=1"], [], "experience.size = 1 gives only one"),
        ("grpo", ["experience.top_p=0.9"], [], "samples from a truncated distribution"),
        ("grpo", ["advantages=none"], [], "learns from advantages, and the slot advantages is empty"),
        ("grpo", ["rewards=none"], [], "there are advantages but no rewards"),
        ("grpo", ["optimizer=none"], [], "grpo has no optimizer"),
        ("sft", ["objective=clipped-surrogate"], [], "Demonstrations takes its rows from data"),
        ("dpo", ["experience=groups", "experience.size=1"], [], "compares answers to one problem"),
        ("dpo", [], [], "has no 'chosen' answer to compare"),
    ],
)
def test_refuses_contradictions(method: str, changes: list[str], parts: list[str], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_fit(compose_method(method, changes, parts), resolve_task("countdown"))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("method", "changes", "parts"),
    [
        ("grpo", [], ["gae", "token-critic"]),
        ("grpo", ["critic=token-critic"], ["gae"]),
        ("grpo", ["experience.size=1", "advantages.centre=none", "advantages.scale=none"], []),
        ("reinforce", ["experience.size=1"], []),
        ("gpg", [], ["kl-to-reference"]),
        ("grpo", ["reference=moving-average"], ["kl-to-reference"]),
    ],
)
def test_accepts_what_goes_together(method: str, changes: list[str], parts: list[str]) -> None:
    check_fit(compose_method(method, changes, parts), resolve_task("compose"))


@pytest.mark.parametrize("other", ["avg", "bve", "one-step-sarsa", "td3-bc"])
def test_whatever_is_stacked_on_what_there_is_a_method_or_a_sentence(other: str) -> None:
    """Parts of methods that learn from logs, from one step, or from a replay, on each other's."""
    found = set()
    for name in sorted(files("methods")):
        try:
            made = stack(get_method(name), other)
        except EtudeError:
            continue
        found.add(any(sentence for sentence in made.objections()))
    assert found == {True, False}


def test_an_order_is_one_value() -> None:
    assert stack(get_method("a2pr"), "iql").slots()["order"] == get_method("iql").slots()["order"]


@pytest.mark.parametrize("part", ["actor", "learners", "critic"])
def test_an_entropy_that_nobody_has_is_refused(part: str) -> None:
    made = stack(get_method("sac"), "td3").replace(**{part: get_method("sac").slots()[part]})
    assert any(
        "asks for the policy's entropy, and DeterministicPolicy has no log-probabilities" in sentence
        for sentence in made.objections()
    )


def test_a_list_whose_items_have_commas_is_read_as_it_was() -> None:
    """What a run of a recipe is told, in a file of a bed or a study."""
    told = ["problems=16", "task.ops=[1,2]"]
    (text,) = assignments({"runs.rl.set": told})
    recipe = get_method("interplay-rl-alone")
    assert set_values(recipe, [text]).runs[1].set == tuple(told)
    assert assignments({"runs.rl.set": told[:1], "task.levels": (2, 3)}) == [
        "runs.rl.set=problems=16",
        "task.levels=2,3",
    ]

"""Kinds of method: each has its loop's slots alone, and what does not fit is refused by name in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

import etude
from etude.core.complete import complete_rollout, complete_token
from etude.core.edit import set_value, stack
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.fit import check, objections
from etude.core.kind_names import KINDS, all_slots
from etude.core.kinds import ReplayMethod, RolloutMethod, TokenMethod
from etude.core.method import Method
from etude.core.part import Need
from etude.core.registry import compositions, files, get_method, parent_of
from etude.core.slots import TokenAdvantages, TokenRegularizer
from etude.core.worlds import World
from etude.methods.rlvr.poly_ppo.vine import Vine
from etude.regularizers.behaviour_kl import BehaviourKL
from etude.runs.kinds import check_options
from etude.runs.training import Options, compose_method
from etude.tasks import resolve_task


def test_an_id_may_have_one_composition_of_each_kind() -> None:
    token, rollout = compositions("ppo")
    assert (type(token), type(rollout)) == (TokenMethod, RolloutMethod)
    assert get_method("ppo") is token and get_method("ppo", "control") is rollout
    assert etude.method("ppo", world=World.ENUMERABLE) is token
    parent = parent_of(rollout)
    assert parent is not None and (parent.id, type(parent)) == ("reinforce", RolloutMethod)
    for name in files("methods"):
        kinds = [type(m) for m in compositions(name)]
        assert len(set(kinds)) == len(kinds), name


def test_a_file_may_declare_several_methods() -> None:
    assert files("methods")["planning-q-learning"] == files("methods")["planning-pg-vs-q"]
    assert get_method("planning-q-learning").parent == "planning-pg-vs-q"


@pytest.mark.parametrize(
    ("task", "change", "slot"),
    [("cartpole", "problems=5", "problems"), ("cartpole", "aggregation=sequence-mean", "aggregation"),
     ("compose", "policy=actor-policy", "policy")],
)  # fmt: skip
def test_what_a_loop_does_not_read_cannot_be_set(task: str, change: str, slot: str) -> None:
    with pytest.raises(UnknownNameError, match=f"no slot of ppo named '{slot}'"):
        set_value(get_method("ppo", resolve_task(task).world), change)
    with pytest.raises(UnknownNameError, match=f"no slot of ppo named '{slot}'"):
        compose_method("ppo", [change], world=resolve_task(task).world)


@pytest.mark.parametrize(
    ("task", "option", "sentence"),
    [
        ("cartpole", {"dtype": "bfloat16"}, "--dtype means nothing for cartpole, a task of control"),
        ("cartpole", {"dtype": "float64"}, "--dtype means nothing"),
        ("enumerable", {"model": "foo"}, "--model means nothing"),
        ("enumerable", {"population": ("lr=1,2",)}, "--population means nothing for enumerable"),
        ("compose", {"seeds": 4}, "--seeds means nothing for compose"),
        ("compose", {"population": ("lr=1,2",)}, "--population means nothing for compose"),
    ],
)
def test_options_that_a_run_would_not_read_are_refused(task: str, option: dict[str, Any], sentence: str) -> None:
    goal = resolve_task(task)
    method = get_method("ppo", goal.world)
    with pytest.raises(ConfigError, match=sentence):
        check_options(Options(**option), method, goal)
    check_options(Options(steps=3, seed=1, quiet=True), method, goal)


def test_another_world_is_refused_with_the_methods_that_fit() -> None:
    with pytest.raises(ConfigError, match=r"^dapo learns in tasks of enumerable and language, and this is one of con"):
        get_method("dapo", "control")
    with pytest.raises(ConfigError, match=r"There fit: a2c, a2pr, a3c, avg, awac, bc and \d+ more"):
        compose_method(get_method("dapo"), world=World.CONTROL)
    with pytest.raises(ConfigError, match=r'the one for control is etude.method\("ppo", world="control"\)'):
        compose_method(get_method("ppo").replace(epochs=4), world=World.CONTROL)
    with pytest.raises(ConfigError, match=r"^trpo learns in tasks of control, and this is one of language\. There fit"):
        check(get_method("trpo"), resolve_task("compose"))
    with pytest.raises(
        ConfigError, match=r"It learns from logs: give --data, and --task ENVIRONMENT to play in\. There"
    ):
        get_method("td3-bc", "language")


def test_parts_of_another_kind_fill_no_slot() -> None:
    grpo, ppo = get_method("grpo"), get_method("ppo", "control")
    with pytest.raises(ConfigError, match="must be a list of TokenRegularizer parts"):
        grpo.replace(regularizers=(BehaviourKL(),))
    with pytest.raises(ConfigError, match="optimizer must be a StepOptimizer part"):
        ppo.replace(optimizer=get_method("oblr-po").optimizer)
    with pytest.raises(ConfigError, match="cannot be stacked on ppo, a RolloutMethod: its slot filters is one of"):
        stack(ppo, "informative-groups")
    with pytest.raises(ConfigError, match="dapo is a TokenMethod and ppo a RolloutMethod"):
        stack(ppo, "dapo")
    with pytest.raises(ConfigError, match="only methods of one kind can be compared slot by slot"):
        grpo.diff(ppo)
    with pytest.raises(ConfigError, match="standardises over each minibatch in control only"):
        check(set_value(get_method("ppo"), "advantages.per_minibatch=true"))


def test_slots_are_those_of_the_kinds() -> None:
    slots = all_slots()
    assert slots["objective"] == (TokenMethod, RolloutMethod) and slots["learners"] == (
        TokenMethod,
        RolloutMethod,
        ReplayMethod,
    )
    assert slots["filters"] == (TokenMethod,) and slots["policy"] == (RolloutMethod, ReplayMethod)
    for kind in KINDS.values():
        assert set(kind.required) <= set(kind.slot_names())
        assert all(set(absent) <= set(kind.slot_names()) for absent in kind.absent.values())


def test_what_a_world_has_no_use_for_is_refused() -> None:
    enumerable = resolve_task("enumerable")
    with pytest.raises(ConfigError, match="whose loop has no use for the slot stages"):
        check(get_method("planning-pg-vs-q"), enumerable)
    with pytest.raises(ConfigError, match=r"Vine \(experience\) is for tasks of language"):
        check(get_method("rpg-kl").replace(experience=Vine()), enumerable)
    assert list(objections(get_method("grpo"), enumerable)) == []


def test_needs_are_checked_when_the_class_is_made() -> None:
    with pytest.raises(UnknownNameError, match=r"no need of Misspelt named 'entorpy'. Did you mean 'entropy'"):

        class Misspelt(TokenRegularizer):
            needs = frozenset({"entorpy"})  # type: ignore[arg-type]

    class Spelt(TokenAdvantages):
        needs = frozenset({"entropy"})  # type: ignore[arg-type]

    assert Spelt.needs == {Need.ENTROPY}


def test_runs_from_before_there_were_kinds_still_load() -> None:
    """Their JSON had all slots, no 'type', `kind` for `row`, and a policy where it was for control."""

    def old(method: Method, **more: Any) -> dict[str, Any]:
        data = method.to_json()
        del data["type"]
        data["kind"] = data.pop("row")
        every: dict[str, Any] = {
            name: kinds[0].__dataclass_fields__[name].default for name, kinds in all_slots().items()
        }
        every = {k: list(v) if isinstance(v, tuple) else v for k, v in every.items()}
        return {**every, "on_control": {}, **data, **more}

    assert Method.from_json(old(get_method("dapo"))) == get_method("dapo").replace(claim=None)
    control = get_method("ppo", "control").replace(claim=None)
    assert Method.from_json(old(control, problems=32)) == control
    with pytest.raises(ConfigError, match=r"^ppo has aggregation = fixed-length, which a RolloutMethod does not have"):
        Method.from_json(old(control, aggregation="fixed-length"))
    with pytest.raises(UnknownNameError, match=r"no kind of method named 'TokensMethod'. Did you mean 'TokenMethod'"):
        Method.from_json({**control.to_json(), "type": "TokensMethod"})


def test_a_loop_has_methods_of_its_kind_that_are_complete() -> None:
    grpo, ppo = get_method("grpo"), get_method("ppo", "control")
    assert complete_token(grpo) is grpo and complete_rollout(ppo) is ppo
    with pytest.raises(ConfigError, match="grpo is a TokenMethod, and this loop trains a RolloutMethod"):
        complete_rollout(grpo)
    with pytest.raises(ConfigError, match="grpo has no optimizer, so it cannot be trained"):
        complete_token(grpo.replace(optimizer=None))

"""Networks of somebody's own: plain modules, one for each member, computed together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import etude
from etude.core.edit import set_value, set_values
from etude.core.errors import ConfigError
from etude.core.population import Member, Population
from etude.core.registry import get_method
from etude.evaluation.export import export_policy, plain_policy
from etude.loops.on_policy import OnPolicyLoop
from etude.policies.control.modules import OwnModule
from etude.tasks.control.cartpole import cartpole
from image_toys import Dot
from own_modules import Net
from solo_runs import TOLERANCE, member, results

torch.set_num_threads(1)
FILE = str(Path(__file__).parents[2] / "own_modules.py")
PEOPLE = Population([Member(s) for s in range(3)])


def method(name: str = "Net") -> Any:
    changes = [f"policy.network={FILE}:{name}", "experience.environments=2", "experience.steps=16", "epochs=2"]
    return set_values(get_method("ppo", "control"), [*changes, "minibatches=2"])


def test_each_member_has_a_module_of_its_own() -> None:
    """The numbers of P plain modules with these weights."""
    built, width = OwnModule(f"{FILE}:Net").build((4,), PEOPLE, "policy")
    x, weights = torch.randn(3, 6, 4), dict(built.named_parameters())
    assert width == 5 and [w.shape[0] for w in weights.values()] == [3] * 4
    for k in range(3):
        own = Net((4,))
        own.load_state_dict(
            {k2.replace("/", "."): v[k] for k2, v in {**weights, **dict(built.named_buffers())}.items()}
        )
        torch.testing.assert_close(built(x)[k], own(x[k]), atol=1e-6, rtol=1e-6)
    assert not torch.equal(weights["layers/0/weight"][0], weights["layers/0/weight"][1])
    alone, _ = OwnModule(f"{FILE}:Net").build((4,), Population([Member(2)]), "policy")
    assert torch.equal(dict(alone.named_parameters())["layers/0/weight"][0], weights["layers/0/weight"][2])


@pytest.mark.slow
def test_members_learn_as_they_would_alone() -> None:
    """To rounding: how vmap computes a product may depend on how many there are."""
    whole = results(method(), cartpole, [Member(s) for s in range(3)], 2)
    alone = results(method(), cartpole, [Member(1)], 2)
    for name, value in member(whole, 1).items():
        one, other = torch.as_tensor(value), torch.as_tensor(member(alone, 0)[name])
        assert torch.allclose(one.double(), other.double(), atol=TOLERANCE, rtol=1e-3), name


@pytest.mark.slow
def test_images_go_through_it_and_trust_regions_differentiate_it_twice() -> None:
    plain = method("Pictures").replace(critic=None, advantages=get_method("reinforce", "control").slots()["advantages"])
    ppo = OnPolicyLoop(plain, Dot(), [Member(0), Member(1)], 2)
    assert ppo.step().metrics["gradient_norm"] > 0
    trpo: Any = set_value(get_method("trpo"), f"policy.network={FILE}:Net")
    small = trpo.replace(experience=trpo.experience.replace(environments=2, steps=32))
    assert OnPolicyLoop(small, cartpole, [Member(0), Member(1)], 2).step().metrics["accepted"] >= 0


@pytest.mark.slow
def test_it_is_exported_without_etude(tmp_path: Path) -> None:
    loop = OnPolicyLoop(method(), cartpole, [Member(0), Member(1)], 2)
    loop.step()
    program: Any = torch.export.load(export_policy(loop, 1, tmp_path / "policy.pt2")).module()
    x = torch.randn(7, 4)
    assert torch.equal(program(x), plain_policy(loop, 1)(x))


@pytest.mark.slow
def test_a_run_names_it_records_it_and_goes_on_with_it(tmp_path: Path) -> None:
    changes = {"policy.network": Net, "experience.environments": 2, "experience.steps": 16, "epochs": 1}
    done = etude.train("ppo", "cartpole", set=changes, steps=64, seeds=2, evaluate=0, out=tmp_path / "run")
    assert "own_modules" in (done.folder / "method.json").read_text()
    assert (done.folder / "sources" / "own_modules.py").is_file()
    assert etude.resume(done.folder, steps=96).steps == 3
    assert etude.evaluate(done.folder, episodes=2)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Batch", "policy: what .*:Batch says of one observation depends on the others beside it, or it writes into"),
        ("Drop", "policy: .*:Drop cannot be computed for all members at once: Dropout draws random numbers in the"),
        ("Flat", r"policy: .*:Flat must map \[2, 4\] to \[2, width\], got"),
        ("Needy", r"policy: .*:Needy cannot be made: TypeError: .*depth.* called with the shape of one observation"),
        ("thing", "policy: .*:thing must be a class of torch.nn.Module, got 3"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        OwnModule(f"{FILE}:{name}").build((4,), PEOPLE, "policy")


def test_a_class_that_nobody_else_can_import_is_refused() -> None:
    class Here(torch.nn.Module):
        pass

    with pytest.raises(ConfigError, match=r"Here is only known here, so a run could not be resumed: put it at the top"):
        etude.train("ppo", "cartpole", set={"policy.network": Here})

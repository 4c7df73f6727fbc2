"""What runs are made from: the user's own files are found from anywhere, and a change of any input is noticed."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import etude
import processes
from etude.core.errors import CheckpointError, ConfigError
from etude.core.method import Method
from etude.core.registry import get_method, load_attribute
from etude.policies.loading import BUILT_IN
from etude.runs.jobs import jobs_for
from etude.runtime import environment, fingerprints, sources

pytestmark = pytest.mark.usefixtures("one_thread")

METHOD = """
from amounts import BASE
from etude.core.slots import Filter
from etude.methods.rlvr.rloo import rloo

class Constant(Filter):
    def weigh(self, batch):
        return BASE + 0 * batch.scores

mine = rloo.replace(id="mine", filters=(Constant(),))
"""
ENVIRONMENT = """
import gymnasium
import numpy as np
from amounts import BASE

class Line(gymnasium.Env):
    metadata = {"render_modes": []}
    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.time = 0.0, 0
        return np.array([self.at], np.float32), {}

    def step(self, action):
        self.at, self.time = self.at + (BASE if action else -BASE) / 4, self.time + 1
        return np.array([self.at], np.float32), -abs(self.at), False, self.time >= 8, {}
"""
NETWORK = """
from amounts import BASE
from etude.policies.control.networks import MLP

class Wide(MLP):
    hidden: tuple[int, ...] = (8 * BASE,)
"""
TASK = """
from amounts import BASE
from etude.core.episodes import Problem
from etude.core.task import LanguageTask

class Echo(LanguageTask):
    id = "echo"
    max_tokens = 4
    letters: str = "abc"

    def problems(self, split):
        return [Problem(f"{split}/{c}", f"{c}>", c) for c in self.letters]

    def score(self, problem, completion):
        return float(completion == problem.answer) * BASE

echo = Echo(letters="xyz")
"""
REWARD = """
from amounts import BASE

def score(completions):
    return [BASE * len(c) / 10 for c in completions]
"""
CONTROL = {
    "set": {"experience.environments": 2, "experience.steps": 16, "critic.network.hidden": "8", "epochs": 1},
    "steps": 32, "seeds": 2, "evaluate": 1,
}  # fmt: skip
SMALL = {"set": {"problems": 2, "experience.size": 2}, "steps": 1, "evaluate": 0}
NETWORK_SET = {**CONTROL["set"], "policy.network": "own.py:Wide"}  # type: ignore[dict-item]
KINDS: dict[str, tuple[str, tuple[str, str], dict[str, Any]]] = {
    "method": (METHOD, ("own.py:mine", "enumerable"), {"steps": 1, "seeds": 2}),
    "environment": (ENVIRONMENT, ("ppo", "own.py:Line"), CONTROL),
    "part": (NETWORK, ("ppo", "CartPole-v1"), {**CONTROL, "set": NETWORK_SET}),
    "task": (TASK, ("grpo", "own.py:echo"), SMALL),
    "reward": (REWARD, ("grpo", "compose"), {**SMALL, "reward": "own.py:score"}),
}
"""Text of `own.py`, method and task, options."""
GO_ON = """
import etude, sys
from pathlib import Path
run, steps, world = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
few = {"control": {"episodes": 1}, "language": {"k": (1,), "problems": 2}, "enumerable": {}}[world]

def go_on(times):
    assert etude.resume(run, steps=times * steps, quiet=True).steps == times
    assert etude.evaluate(run, **few)
    if world == "control":
        assert etude.export(run, f"{times}.pt2").stat().st_size

go_on(2)
for name in ("own.py", "amounts.py"):
    (run.parent / name).unlink()
go_on(3)
"""


class Project(NamedTuple):
    """A folder with `own.py` and what it imports, and another one."""

    home: Path
    elsewhere: Path

    @property
    def run(self) -> Path:
        return self.home / "run"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    made = Project(tmp_path / "home", tmp_path / "elsewhere")
    for folder in made:
        folder.mkdir()
    (made.home / "amounts.py").write_text("BASE = 1\n")
    monkeypatch.chdir(made.home)
    monkeypatch.setattr(sys, "path", [str(made.home), *sys.path])
    yield made
    for name in ("own", "amounts"):
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_users_own_file_is_found_from_anywhere_and_after_it_is_gone(project: Project, kind: str) -> None:
    text, names, options = KINDS[kind]
    (project.home / "own.py").write_text(text)
    etude.train(*names, out=project.run, quiet=True, **options)
    world = json.loads((project.run / "config.json").read_text())["world"]
    process = processes.python(project.elsewhere, GO_ON, str(project.run), str(options["steps"]), world)
    code, err = process.end(timeout=300)
    assert code == 0, err


@pytest.mark.slow
def test_a_changed_module_is_refused_by_name_or_accepted_and_recorded(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    text, names, options = KINDS["method"]
    (project.home / "own.py").write_text(text)
    etude.train(*names, out=project.run, quiet=True, **options)
    amounts = project.home / "amounts.py"
    amounts.write_text("BASE = 2.5\n")
    with pytest.raises(CheckpointError) as caught:
        etude.resume(project.run, steps=2, quiet=True)
    assert f"{amounts} changed" in str(caught.value)
    assert "own.py" not in str(caught.value)
    assert f"--resume {project.run} --accept-changes" in str(caught.value)
    capsys.readouterr()
    assert etude.evaluate(project.run)
    assert f"{amounts} changed since {project.run} was trained" in capsys.readouterr().err
    assert "amounts" not in sys.modules, "a table is evaluated without the method that trained it"

    assert etude.resume(project.run, steps=2, accept_changes=True, quiet=True).steps == 2
    assert sys.modules["amounts"].BASE == 2.5
    record = json.loads((project.run / "inputs.json").read_text())
    assert record["accepted"] == [{"step": 1, "changed": [str(amounts)]}]
    assert (project.run / "sources/amounts.py").read_text() == "BASE = 2.5\n"
    assert (project.run / "sources-until-step-1/amounts.py").read_text() == "BASE = 1\n"
    assert etude.resume(project.run, steps=3, quiet=True).steps == 3, "it is what the run is made from now"


@pytest.mark.slow
def test_changed_data_reward_and_model_are_refused_by_name(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) for i in range(8)]
    (project.home / "data.jsonl").write_text("\n".join(rows))
    (project.home / "own.py").write_text(REWARD)
    shutil.copytree(BUILT_IN["tiny"], project.home / "start")
    etude.train("grpo", "data.jsonl", reward="own.py:score", model="start", out=project.run, quiet=True, **SMALL)
    for name, inside in {"data.jsonl": "", "own.py": "", "start/model.safetensors": " (model.safetensors)"}.items():
        path = project.home / name
        before = path.read_bytes()
        path.write_bytes(before.replace(b"8", b"9") + b" ")
        sentence = re.escape(f"{path.parent if inside else path}{inside} changed. Put back")
        with pytest.raises(CheckpointError, match=sentence):
            etude.resume(project.run, steps=2, quiet=True)
        path.write_bytes(before)
    monkeypatch.chdir(project.elsewhere)
    assert etude.resume(project.run, steps=2, quiet=True).steps == 2


def test_folders_are_compared_file_by_file(tmp_path: Path) -> None:
    model, run = tmp_path / "model", tmp_path / "run"
    (model / ".cache").mkdir(parents=True)
    run.mkdir()
    for name in ("config.json", "model.safetensors", ".cache/x"):
        (model / name).write_text(name)
    sources.record(run, sources.gather([], [], str(model)))
    (model / ".cache/x").write_text("hidden files do not count")
    (model / "runs/one").mkdir(parents=True)
    (model / "runs/one/run.lock").write_text("nor do runs")
    assert sources.check(run, 4) == []
    (model / "config.json").write_text("{}")
    (model / "more.json").write_text("{}")
    with pytest.raises(CheckpointError, match=re.escape(f"{model} (config.json, more.json) changed")):
        sources.check(run, 4)
    assert sources.check(run, 4, accept=True) == [
        f"From step 4 on with changed inputs: {model} (config.json, more.json)."
    ]
    assert sources.check(run, 5) == []


def test_copies_are_used_only_as_they_were_recorded(project: Project) -> None:
    text, names, options = KINDS["method"]
    (project.home / "own.py").write_text(text)
    etude.train(*names, out=project.run, quiet=True, **options)
    (project.home / "own.py").unlink()
    copy, record = project.run / "sources/own.py", project.run / "inputs.json"
    copy.write_text(text + "\n")
    with pytest.raises(CheckpointError, match=re.escape(f"{copy} is not the file that the run was trained with")):
        etude.evaluate(project.run)
    copy.write_text(text)
    assert etude.evaluate(project.run)
    record.write_text(record.read_text().replace('"own.py"', '"../own.py"'))
    with pytest.raises(CheckpointError, match="lies outside"):
        etude.evaluate(project.run)


def test_a_run_that_recorded_nothing_goes_on_as_it_did(project: Project) -> None:
    text, names, options = KINDS["method"]
    (project.home / "own.py").write_text(text)
    etude.train(*names, out=project.run, quiet=True, **options)
    (project.run / "inputs.json").unlink()
    shutil.rmtree(project.run / "sources")
    config = json.loads((project.run / "config.json").read_text())
    (project.run / "config.json").write_text(json.dumps({**config, "sources": [str(project.home / "own.py")]}))
    assert etude.resume(project.run, steps=2, quiet=True).steps == 2


def test_a_part_that_cannot_be_imported_is_a_sentence(project: Project) -> None:
    stored = {**get_method("grpo").to_json(), "filters": [{"part": "nowhere:Part"}]}
    with pytest.raises(ConfigError, match="Cannot import 'nowhere'"):
        Method.from_json(stored)


def test_a_file_that_was_edited_is_imported_again(project: Project) -> None:
    own = project.home / "own.py"
    for value in (1, 25):
        own.write_text(f"x = {value}\n")
        os.utime(own, ns=(value * 10**9, value * 10**9))
        assert load_attribute("own.py:x") == value


# Runs of comparisons


def test_runs_are_named_by_the_content_of_all_that_is_the_users_own(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, name in (("data", "train.jsonl"), ("start", "config.json")):
        (project.home / folder).mkdir()
        (project.home / folder / name).write_text("{}")
    (project.home / "own.py").write_text(NETWORK)

    def name() -> str:
        job = jobs_for("ppo", "data", "start", 1, 5, ["policy.network=own.py:Wide", "problems=2"], project.home)[0]
        return job.folder.parent.name

    seen = [name()]
    for changed in ("data/train.jsonl", "start/config.json", "own.py", "amounts.py"):
        (project.home / changed).write_text((project.home / changed).read_text() + "\n")
        seen.append(name())
        assert name() == seen[-1]
    monkeypatch.setattr(environment, "version", lambda package: "99")
    assert len({*seen, name()}) == 6


# Fingerprints


def test_large_weights_are_sampled_and_everything_else_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprints, "BLOCK", 10)
    monkeypatch.setattr(fingerprints, "BLOCKS", 3)

    def digest(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        return fingerprints.digest(tmp_path / name)

    zeros = bytes(100)
    for name, between in (("w.safetensors", 1), ("w.jsonl", 2)):
        found = {digest(name, zeros), digest(name, b"1" + zeros[1:]), digest(name, zeros[1:] + b"1")}
        found |= {digest(name, zeros + b"0"), digest(name, zeros[:50] + b"1" + zeros[51:])}
        assert len(found) == 5
        found = {digest(name, zeros), digest(name, zeros[:20] + b"1" + zeros[21:])}
        assert len(found) == between


def test_imports_are_followed_as_far_as_they_are_the_users_own(tmp_path: Path) -> None:
    texts = {
        "main.py": "import json, torch\nfrom kit.inner import thing\ndef f():\n    import late",
        "kit/__init__.py": "from . import beside",
        "kit/beside.py": "",
        "kit/inner/__init__.py": "",
        "kit/inner/thing.py": "from ..deep import x",
        "kit/deep.py": "import main",
        "kit/unused.py": "",
        "late.py": "from etude.core import part",
        "json.py": "",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = fingerprints.modules("main", tmp_path / "main.py")
    assert {*found} == {*texts} - {"kit/unused.py", "json.py"}
    assert all(path == tmp_path / place for place, path in found.items())


def test_a_name_with_dots_is_one_file(tmp_path: Path) -> None:
    (tmp_path / "own.v2.py").write_text("")
    assert fingerprints.modules("own.v2", tmp_path / "own.v2.py") == {"own.v2.py": tmp_path / "own.v2.py"}


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.py").write_text("")
    with pytest.raises(ConfigError, match=r"a/own.py and .*b/own.py would be the same module in one run: rename"):
        sources.gather([f"{tmp_path}/a/own.py:x", f"{tmp_path}/b/own.py:y"])

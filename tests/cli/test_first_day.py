"""The sixty tasks of `docs/coming-from.md`: what the page shows is run as it stands there, in fewer steps.

Each task is a heading with a number, then blocks of `sh` or `python`, then what they promise: `Leaves` names files
(patterns) and what stands in them, `Says` what is printed. A task gets the files of `docs/examples/first-day` that
its blocks name, and `my-model`. Ten of them are in the suite; `make test-tasks` runs all.
"""

from __future__ import annotations

import dataclasses
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command import Cli

import etude
from etude.core.worlds import World
from etude.policies.loading import BUILT_IN

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, FILES = DOCS / "coming-from.md", DOCS / "examples/first-day"
TASK = re.compile(r"^### (\d+)\. ([^\n]+)\n\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMISE = re.compile(r"^(Leaves|Says) (.+?)\.(?=\s|\Z)", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([^`]+)`(?:\s+with\s+`([^`]+)`)?")
QUICK = (1, 3, 17, 33, 42, 43, 55, 57, 59, 60)
"""In the suite as well."""
SECONDS = 300
TEMPLATE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' + ('' if enable_thinking | default(true) else '!') }}{% endif %}"
)


class Task(NamedTuple):
    """A task of the page: its blocks, in order, and what they promise."""

    number: int
    title: str
    blocks: list[tuple[str, str]]
    leaves: list[tuple[str, str]]
    says: list[str]


def tasks() -> list[Task]:
    """Every task of the page. What is the peers' stands after the promise, in words."""
    found = []
    for number, title, body in TASK.findall(PAGE.read_text(encoding="utf-8")):
        own = body.partition("\nTRL: ")[0].partition("\nSB3: ")[0].partition("\nThere: ")[0]
        promises = PROMISE.findall(re.sub(r"\. (?=Leaves|Says)", ".\n", own))
        leaves = [pair for what, named in promises if what == "Leaves" for pair in FILE.findall(named)]
        says = [words for what, named in promises if what == "Says" for words in re.findall(r"`([^`]+)`", named)]
        found.append(Task(int(number), title, BLOCK.findall(own), leaves, says))
    return found


TASKS = tasks()


# In fewer steps


def sizes(method: Any, task: object) -> dict[str, Any]:
    """A run of a second of this method on this task."""
    from etude.runs.given import task_of
    from etude.runs.training import compose_method, compose_task

    world = compose_task(task_of(task, Path("runs/given"))).world  # type: ignore[arg-type]
    if world == World.CONTROL:
        first = method if isinstance(method, str) else method[0]  # of those that are compared
        gathered = compose_method(first, world=world).parts()["experience"].fields()
        lower = {"steps": 64, "random": 32, "warmup": 64}  # where there are such: of rollouts, and of a replay
        shorter = [f"experience.{field}={value}" for field, value in lower.items() if field in gathered]
        shorter += ["sampling.batch=32"] if "warmup" in gathered else []
        return {"steps": 128, "seeds": 2, "evaluate": 2, "evaluate_every": 64, "set": shorter}
    return {"steps": 2, "evaluate": 2, "evaluate_every": 1, "set": ["problems=2"]}


def fewer(verb: Callable[..., Any], *usual: str) -> Callable[..., Any]:
    """The verb with the sizes of a small run: these always, others where the call has them."""
    from etude.core.edit import assignments
    from etude.runs.config import merged

    def small(method: Any = None, task: Any = None, **given: Any) -> Any:
        told = merged(given["config"], {"task": task} if task else {}) if given.get("config") else {"task": task}
        small = sizes(told.get("method") or method, told.get("task") or "compose")
        fields = [f for f in small.pop("set") if f.partition("=")[0] not in str([given.get("set"), told.get("set")])]
        least = {k: v for k, v in small.items() if k in usual or given.get(k)}
        if given.get("evaluate") == 0:
            least.pop("evaluate", None)
        given = {**given, **least, "set": [*fields, *assignments(given.get("set") or ())]}
        return verb(*(x for x in (method, task) if x is not None), **given)

    return small


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of seconds: fewer steps, problems, episodes, members and settings, by every verb."""
    from etude.runs import comparing, evaluate, search, train
    from etude.runs.saved import run_world

    def evaluation_of(checkpoint: Any, task: Any, options: Any, *fields: Any) -> Any:
        what = "episodes" if run_world(Path(checkpoint)) == World.CONTROL else "problems"
        return measured(checkpoint, task, dataclasses.replace(options, **{what: 2}), *fields)

    measured, resume = evaluate.evaluation_of, train.resume
    monkeypatch.setattr(train, "resume", lambda *a, **k: resume(*a, **{**k, "steps": k.get("steps") and 256}))
    monkeypatch.setattr(evaluate, "evaluation_of", evaluation_of)
    monkeypatch.setattr(train, "train", fewer(train.train, "steps", "seeds", "evaluate"))
    compare = fewer(comparing.compare, "steps", "seeds")
    monkeypatch.setattr(comparing, "compare", lambda *a, **k: compare(*a, **{**k, "seeds": 2, "workers": 1}))
    tune = fewer(search.tune, "steps", "evaluate")
    monkeypatch.setattr(search, "tune", lambda *a, **k: tune(*a, **{**k, "budget": 2, "workers": 1}))


# A task


@pytest.fixture
def deadline() -> Iterator[None]:
    """No task takes longer than this, whatever it waits for."""

    def late(*_: object) -> None:
        raise TimeoutError(f"not done after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped model with a chat template."""
    folder = tmp_path_factory.mktemp("models") / "my-model"
    shutil.copytree(BUILT_IN["tiny"], folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture
def folder(tmp_path: Path, talker: Path) -> Iterator[Path]:
    """An empty folder; what is imported from it is forgotten afterwards."""
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def give(task: Task, folder: Path, talker: Path) -> None:
    """The files that a task's blocks name, and no others."""
    text = "\n".join(code for _, code in task.blocks)
    for path in FILES.iterdir():
        if re.search(rf"\b{re.escape(path.name)}\b|\bfrom {path.stem} import\b", text):
            shutil.copy(path, folder)
    if "my-model" in text:
        shutil.copytree(talker, folder / "my-model")


def do(kind: str, code: str, cli: Cli, capsys: pytest.CaptureFixture[str]) -> str:
    """Run one block; returns what it printed."""
    if kind == "python":
        Path("block.py").write_text(code)
        runpy.run_path("block.py", run_name="__main__")
        return capsys.readouterr().out
    printed = ""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["etude"]:
            answer = cli(*words[1:])
            assert answer.code == 0, f"{line}\n{answer.err}"
            printed += answer.out + answer.err
        elif words:
            printed += subprocess.run(["bash", "-c", line], check=True, capture_output=True, text=True).stdout
    return printed


@pytest.mark.first("17", "55", "57", "59", "60")
@pytest.mark.parametrize(
    "task",
    [
        pytest.param(t, id=f"{t.number}", marks=() if t.number in QUICK else (pytest.mark.tasks, pytest.mark.slow))
        for t in TASKS
    ],
)
def test_a_task_of_the_first_day(
    task: Task, cli: Cli, folder: Path, talker: Path, small: None, deadline: None, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """It does what the page says, and leaves and prints what the page promises."""
    give(task, folder, talker)
    monkeypatch.syspath_prepend(folder)
    printed = " ".join("".join(do(kind, code, cli, capsys) for kind, code in task.blocks).split())
    for pattern, words in task.leaves:
        there = list(folder.glob(pattern))
        assert there, f"{task.title}: there is no {pattern}"
        assert not words or words in there[0].read_text(), f"{task.title}: {pattern} is without {words}"
    for words in task.says:
        assert words in printed, f"{task.title}: {words!r} was not said:\n{printed[-2000:]}"


# The page


def test_the_page_has_sixty_tasks_and_each_promises_something() -> None:
    assert [t.number for t in TASKS] == list(range(1, 61))
    for task in TASKS:
        assert task.blocks and (task.leaves or task.says), task.title
    body = {int(n): text for n, _, text in TASK.findall(PAGE.read_text(encoding="utf-8"))}
    assert not [n for n, text in body.items() if not re.search(r"^(TRL|SB3|There): ", text, re.MULTILINE)]


ROW = re.compile(r"^\|.*\| ([^|]+) \|$", re.MULTILINE)


def test_every_name_of_the_tables_is_a_name_here() -> None:
    """Fields of `grpo`, `ppo`, `dqn`, `td3` and `sac` with the parts that the page adds, parts, verbs, options."""
    import inspect

    from etude.cli.train import train
    from etude.core.part import hints, part_classes
    from etude.policies.adapters import Adapter

    page = PAGE.read_text(encoding="utf-8")
    grpo, ppo = (etude.method(name, world) for name, world in (("grpo", "language"), ("ppo", "control")))
    parts, known = part_classes(), {"network.hidden", *(f"adapter.{f.name}" for f in dataclasses.fields(Adapter))}
    options = {f"--{name.strip('_').replace('_', '-')}" for name in inspect.signature(train).parameters}
    for method in (grpo, ppo, *(etude.method(name, "control") for name in ("dqn", "td3", "sac"))):
        first = next((part.name for part in method.slots().get("learners", ())), "")
        paths = {path.replace("learners.0", f"learners.{first}"): part for path, part in method.parts().items()}
        known |= {f"{path}.{field}" for path, part in paths.items() for field in part.fields()}
        known |= {*method.slots()}
    known |= {*parts, *(f"sampling.horizon.{f}" for f in hints(parts["n-step"]))}
    known |= {f"regularizers.{n}.{f}" for n in ("kl-to-reference", "entropy-bonus") for f in hints(parts[n])}
    checked = 0
    for cell in ROW.findall(page.partition("### 1.")[0]):
        for name in re.findall(r"`([^`]+)`", cell):
            words = name.split("=")[0].split()
            if words[:2] == ["etude", "train"]:
                assert words[2] in etude.methods(), name
            elif words[0] == "--with":
                assert words[1] in parts, name
            else:
                assert words[0] in (options if words[0].startswith("--") else known), name
            checked += 1
    assert checked > 50

"""Names, signatures and flags that users rely on. A wanted change is written down by running this file."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import etude
from etude.cli import check, claims, compare, engine, evaluate, export, methods, parts, pretrain, report, tasks, train
from etude.runs.training import Options, Result
from etude.runs.worlds import EvaluationOptions

STORED = Path(__file__).parent / "surface.json"


def signature(function: Any) -> list[str]:
    """Each parameter as 'name' or 'name = default', after a '*' if it takes a keyword only."""
    found = []
    for name, parameter in inspect.signature(function).parameters.items():
        star = {parameter.KEYWORD_ONLY: "* ", parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        found.append(f"{star.get(parameter.kind, '')}{name}{default}")
    return found


def surface() -> dict[str, Any]:
    """The public surface as JSON values."""
    verbs = ("train", "resume", "evaluate", "compare", "export", "policy", "method", "task")
    commands = {
        "train": train.train, "evaluate": evaluate.evaluate, "compare": compare.compare, "parts": parts.parts,
        "methods": methods.list_methods, "methods show": methods.show, "tasks": tasks.list_tasks,
        "tasks show": tasks.show, "claims": claims.list_claims, "claims run": claims.run,
        "pretrain": pretrain.pretrain, "report": report.report, "check": check.check, "export": export.export,
        "engine start": engine.start, "engine show": engine.show,
    }  # fmt: skip
    return {
        "names": sorted(etude.__all__),
        "verbs": {name: signature(getattr(etude, name)) for name in verbs},
        "options": {f.name: repr(f.default) for f in dataclasses.fields(Options)},
        "evaluation options": {f.name: repr(f.default) for f in dataclasses.fields(EvaluationOptions)},
        "result": [*(f.name for f in dataclasses.fields(Result)), "metrics", "score"],
        "method": sorted(n for n in dir(etude.Method) if not n.startswith("_")),
        "commands": {name: signature(function) for name, function in commands.items()},
    }


def test_the_public_surface_is_as_written_down() -> None:
    stored, now = json.loads(STORED.read_text()), json.loads(json.dumps(surface()))
    for section, content in now.items():
        assert content == stored[section], f"{section} changed; if that is wanted: python {Path(__file__).name}"


def test_a_notebook_completes_every_public_name() -> None:
    """Also of a new process, in which nothing has been loaded yet."""
    code = "import etude, sys; assert {*etude.__all__} <= {*dir(etude)}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there() -> None:
    for name in etude.__all__:
        assert getattr(etude, name).__doc__, name


def test_shell_and_python_have_the_same_options() -> None:
    flags = inspect.signature(train.train).parameters
    repeated = {"sinks": "sink", "callbacks": "callback"}  # each is said once for each
    for name, default in {f.name: f.default for f in dataclasses.fields(Options)}.items():
        flag = repeated.get(name, name)
        assert flag in flags, name
        if name != "steps":
            assert flags[flag].default == default, name


def test_shell_and_python_evaluate_with_the_same_options() -> None:
    flags = inspect.signature(evaluate.evaluate).parameters
    fields = {f.name: f.default for f in dataclasses.fields(EvaluationOptions)}
    assert set(flags) - {"checkpoint", "others", "task", "set", "json", "of_task"} == set(fields)
    assert flags["k"].default == ",".join(map(str, fields["k"]))
    for name in set(fields) - {"k"}:
        assert flags[name].default == fields[name], name


if __name__ == "__main__":
    STORED.write_text(json.dumps(surface(), indent=1) + "\n")

"""`docs/your-logs.md`, followed step by step in an empty folder."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import etude
from etude.core.errors import CheckpointError, DataError
from etude.core.registry import get_method, import_source
from etude.experience.logs import faults
from etude.runs.data_info import MEANT
from etude.runs.kinds import run_of
from etude.runs.train import resume
from etude.runs.training import Options, compose_task
from etude.tasks.control.logged import LoggedTask

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "your-logs.md").read_text(encoding="utf-8")
COLUMNS = "obs=inside,outside action=heating reward=score episode=day"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("pyarrow")
    shutil.copy(DOCS / "examples" / "thermostat.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "thermostat.py"], check=True)
    return tmp_path


def said(text: str) -> str:
    """As it stands on the page, wherever lines are broken."""
    return re.sub(r"\s+", " ", text).strip()


def test_the_log_is_the_one_that_is_shown(folder: Path) -> None:
    assert "\n".join(Path("thermostat.csv").read_text().splitlines()[:3]) in PAGE


def test_columns_are_asked_for_in_the_words_of_the_page(folder: Path) -> None:
    with pytest.raises(DataError) as caught:
        etude.train("iql", data="thermostat.csv", quiet=True)
    assert f"etude: {caught.value}" in PAGE and f"--columns '{COLUMNS}'" in PAGE


def test_what_will_run_is_said_in_the_words_of_the_page(folder: Path) -> None:
    task = compose_task("logs", ["task.data=thermostat.csv", f"task.columns={COLUMNS}"])
    method, run = get_method("iql"), run_of(get_method("iql"))
    loop = run.build(method, task, Options(steps=run.budget(method, task)))
    assert run.sentence(loop, method, task) == said("10 members" + PAGE.split("```\n10 members")[1].split("```")[0])


def test_it_learns_in_the_room_and_is_exported(folder: Path) -> None:
    changes = {k: "8,8" for k in re.findall(r"(\w+\.network\.hidden)=64,64", PAGE)} | {"sampling.batch": 8}
    assert len(changes) == 4
    given = {"data": "thermostat.csv", "columns": COLUMNS, "steps": 250, "seeds": 3, "evaluate": 5, "quiet": True}
    done = etude.train("iql", "thermostat.py:Room", set=changes, out="played", **given)
    assert done.score("return/deterministic") < 0
    etude.export("played", "thermostat.pt2")
    heating = torch.export.load("thermostat.pt2").module()(torch.tensor([[12.0, 0.0]]))
    first = heating[0] if isinstance(heating, tuple) else heating
    assert 0.0 <= float(first.flatten()[0]) <= 1.0


def test_other_data_is_refused(folder: Path) -> None:
    small = {"policy.network.hidden": "4,4"}
    etude.train("bc", data="thermostat.csv", columns=COLUMNS, steps=500, until=250, out="played", set=small, quiet=True)
    import_source("thermostat.py").log_days(Path("yesterday.csv"), days=2)
    with pytest.raises(
        CheckpointError, match=r"learned from .*thermostat\.csv .*, and --data is .*yesterday\.csv"
    ) as caught:
        resume("played", data="yesterday.csv", quiet=True)
    fingerprints = re.findall(r"\b[0-9a-f]{12}\b", str(caught.value))
    assert all(mark in PAGE for mark in fingerprints) and len(fingerprints) == 2
    resume("played", data="thermostat.csv", quiet=True)


def test_what_can_be_meant_is_named(folder: Path) -> None:
    """Of the sentences that the page says can be allowed."""
    rows = Path("thermostat.csv").read_text().splitlines()
    flat = [",".join([*row.split(",")[:4], "1.0"]) for row in rows[1:]]
    Path("flat.csv").write_text("\n".join([rows[0], *flat]))
    with pytest.raises(DataError, match=r"task\.allow=constant-rewards"):
        LoggedTask(data="flat.csv", columns=COLUMNS).logs()
    allowed = LoggedTask(data="flat.csv", columns=COLUMNS, allow=("constant-rewards",)).logs()
    assert np.ptp(allowed.rewards) == 0


def test_all_that_can_be_meant_is_listed() -> None:
    section = PAGE.split("## When something is wrong with them")[1]
    assert sorted(re.findall(r"^\| `([a-z-]+)` \|", section, re.M)) == sorted(MEANT)
    source = Path(faults.__file__).read_text(encoding="utf-8")
    assert all(f'"{name}"' in source for name in MEANT)

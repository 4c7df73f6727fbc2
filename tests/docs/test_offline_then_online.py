"""`docs/offline-then-online.md`: its command is run small, its table and its method are the code's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.core.edit import set_values
from etude.core.fit import check
from etude.core.registry import get_method
from etude.runs.kinds import run_of
from etude.runs.training import Options, compose_task

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "offline-then-online.md").read_text(encoding="utf-8")
COLUMNS = "obs=inside,outside action=heating reward=score episode=day"


def test_the_command_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    shutil.copy(DOCS / "examples" / "thermostat.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "thermostat.py"], check=True)
    changes = dict(re.findall(r"--set ([\w.]+)=([\d,]+)", PAGE))
    assert len(changes) == 6 and f"--columns '{COLUMNS}'" in PAGE
    task = compose_task("thermostat.py:Room", ["task.data=thermostat.csv", f"task.columns={COLUMNS}"])
    method = set_values(get_method("wsrl"), changes)
    run = run_of(method)
    said = run.sentence(run.build(method, task, Options(steps=30_000)), method, task)
    assert said.startswith("10 members" + PAGE.split("```\n10 members")[1].split("\n```")[0])
    small = {**changes, "policy.network.hidden": "4,4", "critic.network.hidden": "4,4", "sampling.batch": 8,
             "stages.handover.warmup": 245, "stages.phase.end": 0.5, "critic.count": 2,
             "critic.penalties.conservative-q.actions.count": 1}  # fmt: skip
    given = {"data": "thermostat.csv", "columns": COLUMNS, "steps": 500, "seeds": 2, "evaluate": 0, "quiet": True}
    etude.train("wsrl", "thermostat.py:Room", set=small, out="onward", **given)
    lines = [line for line in Path("onward/metrics.jsonl").read_text().splitlines() if '"updates"' in line]
    assert len(lines) == 2 and "updates_per_second" in lines[0] and "environment_steps" in lines[1]


def test_the_table_and_the_method_are_the_codes() -> None:
    for column, name in ((3, "wsrl"), (4, "cal-ql-online")):
        handover: Any = get_method(name).slots()["stages"][1]
        rows = {m[1]: m for m in (line.split("|") for line in PAGE.splitlines()) if len(m) == 6}
        told = {key.strip(" `"): row[column].strip(" `") for key, row in rows.items()}
        assert float(told["keep"]) == handover.keep
        assert int(told["warmup"].replace(",", "")) == handover.warmup
        assert told["share"] == ("" if handover.share is None else str(handover.share))
        assert told["exploration"] == handover.exploration.name
    scope: dict[str, Any] = {}
    exec(PAGE.split("```python\n")[1].split("```")[0], scope)
    check(scope["iql_online"])

"""`docs/how-much-to-believe.md`, followed in an empty folder; a small policy, and few updates of FQE."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import etude
from etude.core.registry import import_source
from etude.evaluation.off_policy import behaviour
from etude.evaluation.off_policy import judge as judging
from etude.evaluation.off_policy.fqe import FQE
from etude.policies.control.networks import MLP

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "how-much-to-believe.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line) for line in PAGE.split("```sh\n")[1].split("```")[0].strip().splitlines()]
COLUMNS = "obs=inside,outside action=heating reward=score episode=day"


def test_the_page_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    shutil.copy(DOCS / "examples" / "thermostat.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    import_source("thermostat.py").log_days(Path("thermostat.csv"), days=6)
    small = {"policy.network.hidden": "4,4", "critic.network.hidden": "4,4", "value.network.hidden": "4,4"}
    etude.train(
        "iql", "thermostat.py:Room", data="thermostat.csv", columns=COLUMNS, steps=250, seeds=1, evaluate=0,
        set={**small, "actor.clone.weight.beta": 0.1, "sampling.batch": 8}, out="played", quiet=True,
    )  # fmt: skip
    made, info, evaluate = COMMANDS
    subprocess.run([sys.executable, *made[1:]], check=True)
    from etude.cli.data_info import info as data_info

    assert info[:3] == ["etude", "data", "info"] and info[4:] == ["--columns", COLUMNS]
    data_info(Path(info[3]), columns=COLUMNS)
    assert "5,700 steps of 60 episodes" in capsys.readouterr().out
    monkeypatch.setattr(judging, "FQE", lambda: FQE(network=MLP(hidden=(4,)), resamples=2, updates=5))
    monkeypatch.setattr(behaviour, "UPDATES", 250)
    assert evaluate[:2] == ["etude", "evaluate"] and evaluate[3] == "--data"
    found = etude.evaluate(evaluate[2], data=evaluate[4], episodes=1)["logs"]
    said = [line.replace("(250 updates)", "(2,000 updates)") for line in capsys.readouterr().err.splitlines()]
    assert len(own := [line for line in said if "august.csv" in line]) == 2 and all(line in PAGE for line in own)
    rows = set(re.findall(r"^\| \**`([a-z/-]+)`", PAGE, re.MULTILINE))
    assert rows | {"action-distance", "beyond-logs"} == set(found)
    shown = re.search(r"`logged` \| (\S+) \| (\S+) to (\S+) \|", PAGE)
    assert shown is not None  # it depends on nothing that was learned
    assert [f"{x:.1f}" for x in (found["logged"].value, found["logged"].low, found["logged"].high)] == [*shown.groups()]

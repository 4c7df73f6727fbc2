"""`docs/make-data.md`: its commands are run small, its tables and numbers are the code's."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from etude.cli.app import app
from etude.experience.logs.reading import open_logs
from etude.runs import data_make
from etude.runs.data_make import EPSILON, LEVELS, MORE, RUNGS, SURE, THIRD

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "make-data.md").read_text(encoding="utf-8")
SAID = " ".join(PAGE.split())
MAKE, TRAIN = (shlex.split(line)[1:] for line in PAGE.split("```sh\n")[1].split("```")[0].strip().splitlines())
TABLE = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", PAGE.split("| level |")[1].split("\n\n")[0], re.MULTILINE))
SHORT = ["--size", "150", "--set", "task.limit=45"]
SMALL = ["--steps", "250", "--seeds", "1", "--evaluate", "0", "--quiet", "--out", "run", "--set", "sampling.batch=8",
         "--set", "policy.network.hidden=4,4", "--set", "critic.network.hidden=4,4"]  # fmt: skip


@pytest.fixture
def fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, with four stages, by fewer episodes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data_make, "RUNGS", 4)
    monkeypatch.setattr(data_make, "COMPARED", 60)


def etude(words: list[str]) -> None:
    app(words, result_action="return_value")


def test_the_levels_are_the_codes() -> None:
    assert len(TABLE) == len(LEVELS) + len(MORE) and set(TABLE) == {*LEVELS, *MORE}
    assert {name for name, told in TABLE.items() if told.endswith("made where it is named")} == set(MORE)
    header = next(line for line in PAGE.splitlines() if line.startswith("| |"))
    assert re.findall(r"`([a-z-]+)`", header) == list(LEVELS)


def test_the_numbers_are_the_codes() -> None:
    """Of stages, of episodes that scores go by, and of what a call does where nothing is said."""
    assert f"of about {'twenty' if RUNGS == 20 else RUNGS} stages" in SAID and "a third of the expert" in SAID
    assert round(THIRD, 3) == 33.333
    assert (
        f"by returns of {data_make.COMPARED} episodes each" in SAID
        and f"in `--epsilon` of its steps, {EPSILON} by" in SAID
    )
    assert f"by {'three' if SURE == 3 else SURE} standard errors" in SAID
    defaults: Any = data_make.make_data.__kwdefaults__
    assert f"`--size` steps at least ({defaults['size']:,})" in SAID and defaults["levels"] == LEVELS


@pytest.mark.usefixtures("fewer")
def test_the_page_step_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("h5py")
    etude([*MAKE, *SHORT])
    said, folder = capsys.readouterr().out, Path(MAKE[MAKE.index("--out") + 1])
    recipe = json.loads((folder / "recipe.json").read_text())
    assert tuple(recipe["levels"]) == LEVELS and not (folder / "behaviour").exists()  # the maze has a controller
    low, high = (recipe["returns"][k] for k in ("chance", "expert"))
    for level, facts in recipe["levels"].items():
        logs = open_logs(folder / level, allow=facts["allow"])
        assert logs.fingerprint == facts["fingerprint"] and logs.behaviour_logp is not None and logs.rows >= 150
        assert facts["score"] == pytest.approx(100 * (logs.returns.mean() - low) / (high - low))
    assert "**Scores** are 0 for chance and 100 for the expert *of this recipe*" in SAID
    assert f"Score 0 is chance's return, {low:.4g}, and 100 that of the expert of this recipe, {high:.4g}." in said
    assert recipe["levels"]["replay"]["behaviours"] == list(recipe["stages"])[: recipe["medium"] + 1]
    assert recipe["levels"]["mixed"]["behaviours"] == ["random", recipe["levels"]["expert"]["behaviours"][0]]
    etude([*TRAIN, *SMALL, "--set", "task.limit=45"])
    assert json.loads((Path("run") / "environment.json").read_text())["data"]["path"] == str(
        (folder / "mixed").resolve()
    )
    etude([*MAKE, *SHORT, "--levels", ",".join(MORE)])  # the same call adds levels
    more = json.loads((folder / "recipe.json").read_text())
    assert tuple(more["levels"]) == (*LEVELS, *MORE) and more["stages"] == recipe["stages"]

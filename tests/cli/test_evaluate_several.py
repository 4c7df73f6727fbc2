"""`etude evaluate A B`: several models on the same problems."""

from __future__ import annotations

import json

import pytest
from command import Cli

FLAGS = ("--task", "compose", "--k", "1", "--problems", "2", "--split", "test")


@pytest.mark.slow
def test_several_models_side_by_side(cli: Cli) -> None:
    answer = cli("evaluate", "tiny", "blank:1x32", *FLAGS, "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert set(found) == {"tiny", "blank:1x32"} and set(found["tiny"]["test"]) == set(found["blank:1x32"]["test"])
    alone = json.loads(cli("evaluate", "tiny", *FLAGS, "--json").out)
    assert found["tiny"] == alone
    table = cli("evaluate", "tiny", "blank:1x32", *FLAGS).out
    assert "2 models: 2 problems per split" in table and table.count("blank:1x32") == len(alone["test"])

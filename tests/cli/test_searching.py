"""`etude evaluate --search`: what is said, and what it does not go with."""

from __future__ import annotations

import pytest
from command import Cli

import etude
from etude.core.errors import ConfigError
from etude.planners.search import BestOf
from etude.tasks.agents.attr_20q import attr_20q


@pytest.mark.slow
def test_searching_from_the_shell_and_from_python(cli: Cli) -> None:
    said = cli("evaluate", "tiny", "--task", "compose", "--search", "best-of:2", "--problems", 8, "--json")
    assert '"accuracy"' in said.out and '"tokens"' in said.out
    found = etude.evaluate("tiny", "compose", search=BestOf(samples=2), problems=8)["test"]
    assert {*found} == {"accuracy", "reward", "tokens"} and f'"value": {found["tokens"].value}' in said.out
    for flags, why in (
        (("--k", "1"), "leave out --k"), (("--samples", 4), "leave out --samples"),
        (("--temperature", 0), "leave out --temperature 0"),
    ):  # fmt: skip
        assert why in cli("evaluate", "tiny", "--task", "compose", "--search", "best-of:2", *flags).sentence
    with pytest.raises(ConfigError, match=r"up to \d+ turns"):
        etude.evaluate("tiny", attr_20q, search="best-of:2", problems=2)
    with pytest.raises(ConfigError, match="--search means nothing"):
        etude.evaluate("tiny", "enumerable", search="best-of:2")

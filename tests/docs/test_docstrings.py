"""The examples in docstrings say what comes out."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import etude

ROOT = Path(etude.__file__).parent
MODULES = [
    ".".join(("etude", *path.relative_to(ROOT).with_suffix("").parts))
    for path in sorted(ROOT.rglob("*.py"))
    if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0

"""The examples in docstrings say what comes out."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import etude
from etude.core.registry import module_at

ROOT = Path(etude.__file__).parent
FILES = [
    str(path.relative_to(ROOT))
    for path in sorted(ROOT.rglob("*.py"))
    if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_examples_in_docstrings(file: str) -> None:
    assert doctest.testmod(module_at(ROOT / file)).failed == 0

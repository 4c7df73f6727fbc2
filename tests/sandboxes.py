"""Whether programs can be locked in on this machine; tests that need it are skipped elsewhere, with the reason."""

from __future__ import annotations

from functools import cache

import pytest

from etude.runtime.sandbox.jail import Walled
from etude.runtime.sandbox.limits import Limits
from etude.runtime.sandbox.pool import Pool
from etude.runtime.sandbox.probe import holes


@cache
def why_not() -> str:
    """Why there is no sandbox here; '' if there is one."""
    pool = Pool(1, Limits())
    try:
        return "; ".join(holes(pool))
    except Walled as error:
        return str(error)
    finally:
        pool.close()


needs_sandbox = pytest.mark.skipif(bool(why_not()), reason=f"no sandbox here: {why_not()}")

"""The methods: one file each, in the folder of its family."""

import sys

from etude.core.registry import Listing

sys.modules[__name__].__class__ = Listing

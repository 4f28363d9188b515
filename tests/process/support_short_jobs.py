"""A runner that takes every job for a short one, and none for one that comes alone. Not a test itself."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src"))

from rota.runner import handed, starters
from rota.runner.__main__ import main

handed.SHORT_S = starters.SHORT_S = float("inf")
handed.HandedOver._is_alone = lambda *_: False

sys.exit(main())

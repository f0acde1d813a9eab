"""The modules of bench/ are imported by their names, as its scripts do."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench"))

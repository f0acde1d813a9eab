"""What the command does before torch starts where others use this machine's cores."""

import os
import sys

from drill.crowd import PASSIVE, POLICY, crowded, others_running


def wait_passively_in_a_crowd() -> None:
    """Let threads sleep while they wait, unless somebody has chosen or it is too late to."""
    if POLICY not in os.environ and "torch" not in sys.modules and crowded() and others_running():
        os.environ[POLICY] = PASSIVE

"""What a part says of the way it takes, so that a slower one is not taken in silence."""

import logging
from functools import cache

logger = logging.getLogger("drill")


@cache
def tell_once(part: str, chosen: str, reason: str) -> None:
    """To the logger ``drill`` at level INFO, once for every choice of a process."""
    logger.info("%s: %s (%s)", part, chosen, reason)

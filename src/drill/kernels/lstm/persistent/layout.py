"""How the persistent LSTM kernels are laid out on a device, and how batches are cut for them.

The same numbers are in ``recurrence.cuh``, from the same sizes.
"""

from typing import NamedTuple

UNITS = 16  # of a block
ROWS = 64  # of weights that a warpgroup holds in registers
COLUMNS = 576  # of these at most
CLUSTER = 8  # blocks of the largest cluster
LARGEST_GROUP = 40  # batch rows that are multiplied at once: registers about hold their sums
GROUPS = 2  # of a batch: while the words of one travel, the other is multiplied
LARGEST_BATCH = GROUPS * LARGEST_GROUP
BARRIERS = 256  # bytes of a block's shared memory for barriers, at most


class Shape(NamedTuple):
    """How a pass is laid out on the device, as ``recurrence.cuh`` counts it."""

    hidden: int  # with padding
    backward: bool

    @property
    def warpgroups(self) -> int:
        """Warpgroups of a block that multiply; one more fetches words, and one finishes sums."""
        return 2 if self.hidden > COLUMNS else 1

    @property
    def cluster(self) -> int:
        """Blocks that share the columns of their weights and send one another sums."""
        return (4 if self.backward else 1) * self.warpgroups

    @property
    def share(self) -> int:
        """Columns of a block."""
        return (4 if self.backward else 1) * self.hidden // self.cluster

    @property
    def blocks(self) -> int:
        """Whole clusters: the last one's last blocks may own no unit."""
        together = UNITS * self.cluster
        return -(-self.hidden // together) * self.cluster

    @property
    def threads(self) -> int:
        return 128 * (self.warpgroups + 2)

    def shared(self, tiles: int, groups: int) -> int:
        """Bytes: words of two groups, sums of two steps, what is kept, and the next inputs."""
        words = 2 * self.share * 8 * tiles * 2
        sums = self.warpgroups * 128 * tiles * 16
        kept = 128 * tiles * (20 if self.backward else 4)
        inputs = 0 if self.backward else 128 * tiles * 16
        return words + groups * (2 * sums + kept) + inputs


class Layout(NamedTuple):
    forward: Shape
    backward: Shape

    @property
    def hidden(self) -> int:
        return self.forward.hidden


def layout(hidden: int, clusters: int) -> Layout | None:
    """Shapes for a hidden size where this many clusters of eight blocks run at once, or None."""
    step = UNITS if hidden <= COLUMNS else 2 * UNITS
    padded = -(-hidden // step) * step
    made = Layout(Shape(padded, backward=False), Shape(padded, backward=True))
    fits = all(s.share <= COLUMNS and s.blocks <= CLUSTER * clusters for s in made)
    return made if fits else None


class Cut(NamedTuple):
    """How batch rows are worked on: in groups of ``size``, the last with what is left."""

    batch: int
    size: int

    @property
    def groups(self) -> int:
        return -(-self.batch // self.size)

    @property
    def tiles(self) -> int:
        """Tiles of eight rows in a group."""
        return -(-self.size // 8)

    def flags(self, shape: Shape, steps: int) -> int:
        """Number of flags by which blocks signal that a group's words of a step are written."""
        return self.groups * steps * shape.blocks


def cut(batch: int) -> Cut:
    """Groups as even as can be."""
    groups = -(-batch // LARGEST_GROUP)
    return Cut(batch, -(-batch // groups))

"""The host's memory for blocks that were swapped out: how many it holds, and what a copy takes."""

from kvsim.errors import require


class SwapSpace:
    """CPU blocks of one replica, told apart by who owns them.

    Each GPU of the replica copies its part of a block over a link of its own, all at once, so a
    block of the replica is one block here.
    """

    __slots__ = ("_copy_ns", "_owned", "capacity_blocks", "free_blocks")

    def __init__(self, capacity_blocks: int, copy_ns_per_block: float) -> None:
        """Start empty."""
        self.capacity_blocks = self.free_blocks = capacity_blocks
        self._copy_ns = copy_ns_per_block
        self._owned: dict[int, int] = {}

    def put(self, owner: int, blocks: int) -> bool:
        """Take in the blocks of an owner; False, and no change, if there is no room for them.

        Raises:
            ValueError: The owner has blocks here already.
        """
        if owner in self._owned:
            raise ValueError(f"{owner} is swapped out already")
        if blocks > self.free_blocks:
            return False
        self._owned[owner] = blocks
        self.free_blocks -= blocks
        return True

    def take(self, owner: int) -> int:
        """Give back the blocks of an owner and return how many; KeyError if it has none."""
        blocks = self._owned.pop(owner)
        self.free_blocks += blocks
        return blocks

    def copy_ns(self, blocks: int) -> int:
        """Return how long blocks are on the link, whichever way: one stream copies them in turn."""
        return round(blocks * self._copy_ns)

    def check(self) -> None:
        """Raise AssertionError if a block is lost, or owned twice."""
        owned = sum(self._owned.values())
        require(owned + self.free_blocks == self.capacity_blocks, "a CPU block is lost")
        require(self.free_blocks >= 0, "more CPU blocks are owned than there are")

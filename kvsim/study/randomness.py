"""Whether replications of a point differ at all."""

from kvsim.scenario.change import changed
from kvsim.scenario.load import ScenarioFile
from kvsim.scenario.requests import draw_requests
from kvsim.study.point import Point

_DRAWING = {"random", "power_of_two"}  # routers that draw


def is_random(file: ScenarioFile, point: Point) -> bool:
    """Tell whether another replication could give other figures: by its requests, or the router.

    Whether the point's engine would start doesn't matter.

    Raises:
        InputError: The point's changes can't be made, or its requests can't be drawn.
    """
    alone = changed(file, point.changes, point.variant)
    engines = alone.base.replicas * alone.base.engine.data_parallel_size
    first, second = (draw_requests(alone, {}, number).digest() for number in (0, 1))
    return first != second or (engines > 1 and alone.base.routing.kind in _DRAWING)

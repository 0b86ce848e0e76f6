"""Whether replications of a point differ at all."""

from dataclasses import replace

from kvsim.scenario.load import ScenarioFile
from kvsim.study.point import Point, make_ready

_DRAWING = {"random", "power_of_two"}  # routers that draw


def is_random(file: ScenarioFile, point: Point) -> bool:
    """Tell whether another replication could give other figures: by its requests, or the router.

    Raises:
        InputError: The point can't be simulated.
    """
    first, second = (make_ready(file, replace(point, replication=number)) for number in (0, 1))
    scenario = first.variant.scenario
    if scenario.routing.kind in _DRAWING and first.variant.num_engines > 1:
        return True
    return first.requests.digest() != second.requests.digest()

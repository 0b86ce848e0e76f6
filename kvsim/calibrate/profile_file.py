"""A profile as a file that a scenario names, with the intervals of its constants as comments."""

import json
from collections.abc import Iterator

import kvsim
from kvsim.calibrate.fit import Fitted
from kvsim.calibrate.run import Calibration
from kvsim.policy import Parameters


def profile_text(calibration: Calibration) -> str:
    """Return the YAML of the new profile; `kvsim.scenario.profiles.load_profile` reads it."""
    return "\n".join(_lines(calibration)) + "\n"


def _lines(calibration: Calibration) -> Iterator[str]:
    profile = calibration.profile
    found = {one.constant.path: one for one in calibration.fit.constants}
    yield f"# Written by kvsim calibrate {kvsim.__version__}; started from {calibration.start}."
    yield f"engine: {profile.engine}"
    yield f"versions: {_quoted(profile.versions)}"
    yield f"async_scheduling: {str(profile.async_scheduling).lower()}"
    for part in ("overhead", "front_end"):
        yield f"{part}:"
        yield from _part(part, getattr(profile, part), found)
    yield f"basis: {_quoted(profile.basis)}"
    yield "fitted_on:"
    for name in profile.fitted_on:
        yield f"  - {_quoted(name)}"


def _part(part: str, parameters: Parameters, found: dict[str, Fitted]) -> Iterator[str]:
    for name, value in parameters.model_dump(mode="json").items():
        one = found.get(f"{part}.{name}")
        comment = f"  # {_remark(one)}" if one else ""
        yield f"  {name}: {_value(value)}{comment}"


def _remark(one: Fitted) -> str:
    if one.kept:
        return f"kept: {one.kept}"
    if one.bound:
        return f"fitted, at its {one.bound} bound"
    if one.interval_s is None:
        return "fitted, interval unknown"
    low_s, high_s = one.interval_s
    return f"fitted; 95 % from {one.constant.shown(low_s)} to {one.constant.shown(high_s)}"


def _value(value: object) -> str:
    """Return a number with the point that YAML 1.2 needs to see in it, anything else as JSON."""
    if isinstance(value, float):
        digits = f"{value:.12f}".rstrip("0")
        return f"{digits}0" if digits.endswith(".") else digits
    return json.dumps(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)

"""A plan in words, tables and plain data."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from kvsim.metrics import finite_or_none
from kvsim.metrics.catalog import format_figure, percent
from kvsim.report.figure import Table
from kvsim.studies.plan.fleet import Fleet, Why
from kvsim.studies.plan.result import Plan, Skipped
from kvsim.studies.plan.trial import Trial

HOURS_A_MONTH = 730
_FORMS = {"physical", "extrapolated"}  # of prices that rest on no measurement of such kernels
_MARKED_FROM = 0.5  # share of the steps' time that is priced on forms

_WHY: Mapping[Why, str] = {
    "smallest": "meets the SLO",
    "dearer": "misses the SLO where it would be cheaper",
    "no use": "misses the SLO with any number of replicas",
    "most": "misses the SLO with as many replicas as can be simulated",
    "budget": "time was up",
}


def sentences(plan: Plan) -> list[str]:
    """Return the answer: what to rent, what it costs, how sure that is."""
    if plan.winner is None:
        return [_no_fleet(plan)]
    winner, options = plan.winner, plan.options
    trial, smallest = winner.chosen, winner.smallest or 0
    assert trial is not None, "the fleet that was chosen was simulated"
    said = [f"{_fleet(winner, smallest)} meets the SLO{_demand(plan)}."]
    if options.spare:
        more = _fleet(winner, smallest + options.spare)
        said.append(f"With {options.spare} spare: {more}.")
    said.append(f"{_tightest(trial)} {trial.limit}")
    if is_marked(trial):
        share = percent(form_share(trial))
        said.append(
            f"{share} of its steps' time rests on physical forms, not on kernels measured on this "
            "GPU: measure some before you buy (kvsim profile)."
        )
    if winner.least.candidate.is_of_other_precision:
        said.append(
            "It is less precise than the scenario: what that does to answers, no simulation tells. "
            + _at_own_precision(plan)
        )
    if plan.has_measured_kv_cache:
        said.append(
            "The KV cache size that the scenario gives is that of its own layout; those of other "
            "candidates are computed."
        )
    said.append(_sure(plan))
    return said


def _no_fleet(plan: Plan) -> str:
    late = "" if plan.proven else "; not all could be looked at"
    return f"No fleet of {len(plan.fleets) + len(plan.skipped)} candidates meets the SLO{late}."


def _at_own_precision(plan: Plan) -> str:
    """Name the cheapest fleet as precise as the scenario, of those that were found."""
    for fleet in plan.fleets:
        if fleet.smallest is not None and not fleet.least.candidate.is_of_other_precision:
            count = fleet.smallest + plan.options.spare
            return f"As precise as it, of those looked at: {_fleet(fleet, count)}."
    return "With --weights auto --kv-cache-dtype auto all fleets are as precise as it."


def _fleet(fleet: Fleet, replicas: int) -> str:
    usd = fleet.least.usd_per_hour(replicas)
    gpus = replicas * fleet.least.gpus
    return (
        f"{replicas} × {fleet.least.candidate.label} ({gpus} GPU{'s' if gpus != 1 else ''}, "
        f"${usd:,.2f}/h, ${usd * HOURS_A_MONTH:,.0f} a month)"
    )


def _demand(plan: Plan) -> str:
    options = plan.options
    growth = f" at {options.growth:g} times the demand" if options.growth != 1 else ""
    return growth + (f" with {percent(options.headroom)} of headroom" if options.headroom else "")


def _tightest(trial: Trial) -> str:
    target = trial.targets[0]
    if target.value is None:
        return ""
    value, most = (format_figure(figure_of(target.name), x) for x in (target.value, target.bound))
    return f"Its tightest target is {target.name}: {value} of {most}."


def _sure(plan: Plan) -> str:
    count = plan.options.replications
    if not plan.random:
        draws = "the traffic is the same in each replication, so each fleet was run once"
    elif count == 1:
        draws = "each fleet was judged on a single draw, and no interval tells its luck"
    else:
        draws = f"a fleet has to meet the SLO at the worse end of 95 % intervals over {count} draws"
    if not plan.proven:
        return f"Not all candidates could be looked at: a cheaper fleet may exist; {draws}."
    return f"No other candidate can be cheaper; {draws}."


def figure_of(target: str) -> str:
    """Return the metric that a target bounds; its class, if it has one, is left out."""
    return target.rpartition(": ")[2].removeprefix("max_")


def form_share(trial: Trial) -> float:
    """Return the share of the steps' time that rests on forms, of what isn't given."""
    shares = {basis: share for basis, share in trial.basis_share.items() if basis != "given"}
    total = sum(shares.values())
    return sum(shares.get(basis, 0.0) for basis in _FORMS) / total if total else 0.0


def is_marked(trial: Trial) -> bool:
    """Tell whether most of a fleet's price in time rests on forms."""
    return form_share(trial) >= _MARKED_FROM


# Tables


def candidate_table(plan: Plan) -> Table:
    """Return the candidates of which fleets were simulated, the cheapest first."""
    settings = [path.removeprefix("engine.") for path in plan.options.vary]
    header = [
        "GPU",
        "TP",
        "weights",
        "KV",
        *settings,
        "replicas",
        "$/h",
        "tightest target",
        "forms",
    ]
    return Table(header, [_row(plan, fleet) for fleet in plan.fleets])


def _row(plan: Plan, fleet: Fleet) -> list[str]:
    one, trial = fleet.least.candidate, fleet.shown
    what = [one.gpu, str(one.tensor_parallel_size), one.weights, one.kv_cache_dtype]
    what += [str(value) for _, value in one.settings]
    if trial is None:
        return [*what, "–", "–", _WHY[fleet.why], "–"]
    spare = f" + {plan.options.spare}" if plan.options.spare else ""
    usd, more = plan.usd_per_hour(fleet, trial.replicas), "" if trial.met else "> "
    target = trial.targets[0]
    value = format_figure(figure_of(target.name), target.value)
    return [
        *what,
        f"{more}{trial.replicas}{spare}",
        f"{more}{usd:,.2f}",
        f"{'' if trial.met else 'missed: '}{target.name.replace('max_', '')} {value}",
        forms(trial),
    ]


def forms(trial: Trial) -> str:
    """Show the share of the steps' time that rests on forms, with a mark if it is most."""
    return f"{form_share(trial):.0%}" + (" *" if is_marked(trial) else "")


def demand_table(plan: Plan) -> Table:
    """Return the winner's fleets for other demands."""
    rows = []
    for factor, fleet in plan.demands:
        if fleet.smallest is None:
            rows.append([f"{factor:g} times", "–", "–", _WHY[fleet.why]])
            continue
        count = fleet.smallest + plan.options.spare
        usd = fleet.least.usd_per_hour(count)
        rows.append([f"{factor:g} times", str(count), str(count * fleet.least.gpus), f"{usd:,.2f}"])
    return Table(["demand", "replicas", "GPUs", "$/h"], rows)


def skipped_groups(plan: Plan) -> list[tuple[str, list[str]]]:
    """Return why candidates were not simulated, each reason with those that it holds for."""
    groups: dict[str, list[str]] = {}
    for skipped in plan.skipped:
        reason, what = _group_of(skipped)
        groups.setdefault(reason, []).append(what)
    return list(groups.items())


def _group_of(skipped: Skipped) -> tuple[str, str]:
    label = skipped.candidate.label
    if skipped.usd_per_hour is None:
        return "Would not start", f"{label}: {skipped.message}"
    what = f"{label} (${skipped.usd_per_hour:,.2f}/h)"
    reasons = {
        "dearer": "Can't be cheaper: proven to cost at least",
        "budget": "Time was up; proven to cost at least",
        "refused": "Can't serve this traffic",
        "killed": "Could not be simulated",
    }
    message = f": {skipped.message}" if skipped.message else ""
    return reasons[skipped.why], what + message


# For machines


def as_dict(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain data, ready for JSON."""
    return {
        "scenario": plan.file.base.name,
        "options": asdict(plan.options),
        "random": plan.random,
        "proven": plan.proven,
        "sentences": sentences(plan),
        "winner": None if plan.winner is None else _fleet_facts(plan, plan.winner),
        "fleets": [_fleet_facts(plan, fleet) for fleet in plan.fleets],
        "skipped": [
            {
                "candidate": skipped.candidate.label,
                "why": skipped.why,
                "message": skipped.message,
                "usd_per_hour_at_least": skipped.usd_per_hour,
            }
            for skipped in plan.skipped
        ],
        "demands": [
            {"factor": factor, **_fleet_facts(plan, fleet)} for factor, fleet in plan.demands
        ],
    }


def _fleet_facts(plan: Plan, fleet: Fleet) -> dict[str, Any]:
    candidate, smallest = fleet.least.candidate, fleet.smallest
    return {
        "candidate": candidate.label,
        "changes": dict(candidate.changes),
        "usd_per_gpu_hour": candidate.usd_per_gpu_hour,
        "gpus_per_replica": fleet.least.gpus,
        "replicas_at_least": fleet.least.replicas,
        "replicas_for_load": smallest,
        "replicas": None if smallest is None else smallest + plan.options.spare,
        "usd_per_hour": None if smallest is None else plan.usd_per_hour(fleet, smallest),
        "why": fleet.why,
        "trials": [_trial_facts(trial) for trial in fleet.trials],
    }


def _trial_facts(trial: Trial) -> dict[str, Any]:
    facts = asdict(trial) | {"on_forms_share": form_share(trial)}
    for target in facts["targets"]:
        target |= {name: finite_or_none(target[name]) for name in ("excess", "worse")}
    return facts

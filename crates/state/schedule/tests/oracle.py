"""Prints the times of cron expressions in one year, computed by croniter and zoneinfo.

Reads JSON from stdin: {"year", "zones", "expressions"}. Writes JSON: for each zone and expression
"rule", the times by the project's rule for clock changes (seconds since 1970), and "own", the times
that croniter computes in the zone by its own rule.

croniter searches the calendar without a zone here, and zoneinfo maps each local time to the zone:
an expression that names hours runs once per local time (after the clock has moved if it skips that
time, the first time if it repeats it), and an expression for every hour follows elapsed time.
"""

import json
import sys
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

from croniter import croniter


def local_times(expression, start, end):
    """The matching local times in (start, end), without any zone."""
    times = croniter(expression, start, second_at_beginning=True, ret_type=datetime)
    while (found := times.get_next()) < end:
        yield found


def exists(local, zone):
    """Whether the zone's clock shows this local time at some moment."""
    seen = local.replace(tzinfo=zone).astimezone(timezone.utc).astimezone(zone)
    return seen.replace(tzinfo=None) == local


def seconds(local, zone, fold=0):
    return int(local.replace(tzinfo=zone, fold=fold).timestamp())


def end_of_gap(local, zone):
    """The first moment after the clock has skipped this local time."""
    while not exists(local, zone):
        local += timedelta(seconds=1)
    return seconds(local, zone)


def by_rule(all_local, zone, names_hours):
    times = set()
    offsets = {}
    for local in all_local:
        # zoneinfo is slow, and offsets change at most on a few days.
        day = local.date()
        if day not in offsets:
            noon = datetime(day.year, day.month, day.day, tzinfo=zone)
            ends = [(noon + timedelta(hours=hours)).utcoffset() for hours in range(-4, 29)]
            offsets[day] = ends[0] if len(set(ends)) == 1 else None
        if offsets[day] is not None:
            times.add(int((local - offsets[day]).replace(tzinfo=timezone.utc).timestamp()))
        elif exists(local, zone):
            times.add(seconds(local, zone))
            if not names_hours:
                times.add(seconds(local, zone, fold=1))
        elif names_hours:
            times.add(end_of_gap(local, zone))
    return times


def own(expression, zone, start, end):
    start, end = (moment.replace(tzinfo=zone) for moment in (start, end))
    times = croniter(expression, start, second_at_beginning=True, ret_type=datetime)
    found = set()
    while (time := times.get_next()).timestamp() < end.timestamp():
        found.add(int(time.timestamp()))
    return found


def main():
    asked = json.load(sys.stdin)
    start, end = datetime(asked["year"], 1, 1), datetime(asked["year"] + 1, 1, 1)
    result = []
    for expression in asked["expressions"]:
        fields = croniter.expand(expression, second_at_beginning=True)[0]
        names_hours = fields[1] != ["*"] and len(fields[1]) < 24
        all_local = list(local_times(expression, start, end))
        for name in asked["zones"]:
            zone = ZoneInfo(name)
            rule = by_rule(all_local, zone, names_hours)
            # Without a zone there is nothing to compare on most days, so only expressions with few
            # times are computed twice.
            both = own(expression, zone, start, end) if len(all_local) < 10_000 else None
            result.append(
                {
                    "expression": expression,
                    "zone": name,
                    "names_hours": names_hours,
                    "rule": sorted(rule),
                    "own": sorted(both) if both is not None else None,
                }
            )
    json.dump(result, sys.stdout)


main()

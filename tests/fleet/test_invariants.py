"""What holds for every trace and every policy: nothing is lost, limits are kept, and the bill is what was up."""

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scripts.fleet.arrivals import Arrival, Trace
from scripts.fleet.figures import Figures, Prices, figures, most_at_once, percentile
from scripts.fleet.fleet import Policy, Run, simulate
from scripts.fleet.service import Point, Service

SERVICE = Service((Point(1, 0.5, 0.05), Point(4, 1.0, 0.08), Point(8, 3.0, 0.1)), "assumed", None, 1)
TIMES = st.floats(0, 300, allow_nan=False, allow_infinity=False)
ARRIVALS = st.lists(st.builds(Arrival, TIMES, st.integers(1, 60)), max_size=40)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    limit = draw(st.integers(1, 8))
    most = draw(st.integers(1, 5))
    return Policy(
        start=draw(st.sampled_from([0.0, 0.25, 10.0, 60.0])),
        idle=draw(st.sampled_from([0.0, 1.0, 30.0, math.inf])),
        concurrency=draw(st.integers(1, limit)),
        limit=limit,
        max_replicas=most,
        min_replicas=draw(st.integers(0, most)),
    )


def trace_of(arrivals: list[Arrival]) -> Trace:
    return Trace("any", 300, tuple(sorted(arrivals, key=lambda arrival: arrival.time)))


def running_at_most(run: Run) -> int:
    return most_at_once([(request.dispatched, request.done) for request in run.requests])


@settings(deadline=None, max_examples=300)
@given(ARRIVALS, policies())
def test_every_request_is_answered_within_the_limits(arrivals: list[Arrival], policy: Policy) -> None:
    trace = trace_of(arrivals)
    run = simulate(trace, SERVICE, policy)
    assert [request.arrived for request in run.requests] == [arrival.time for arrival in trace.arrivals]
    for request in run.requests:
        assert request.arrived <= request.dispatched < request.first_token <= request.done <= run.seconds
        alone = SERVICE.at(1)
        assert request.done - request.dispatched >= alone.first + (request.output_tokens - 1) * alone.each - 1e-9
        crowded = SERVICE.at(policy.limit)
        assert request.done - request.dispatched <= crowded.first + (request.output_tokens - 1) * crowded.each + 1e-9
        if request.cold:
            assert request.dispatched - request.arrived <= policy.start + 1e-9 or len(run.requests) > policy.limit
    by_arrival = [request.dispatched for request in run.requests]
    assert by_arrival == sorted(by_arrival)  # first come, first served
    assert running_at_most(run) <= policy.limit * policy.max_replicas
    spans = [(replica.started, replica.stopped) for replica in run.replicas]
    assert policy.min_replicas <= max(most_at_once(spans), 0) <= policy.max_replicas
    for replica in run.replicas:
        assert replica.stopped is not None
        assert replica.running == 0
        assert replica.started <= replica.stopped <= run.seconds
        if replica.ready is not None and replica.stopped < run.seconds:
            assert replica.stopped >= max(replica.ready, replica.idle_since) + policy.idle - 1e-9
    if policy.min_replicas:
        assert not any(request.cold for request in run.requests)


@settings(deadline=None, max_examples=200)
@given(ARRIVALS, policies(), st.floats(0, 10), st.floats(0, 10))
def test_cost_is_replica_seconds_times_their_price(
    arrivals: list[Arrival], policy: Policy, on_demand: float, always_on: float
) -> None:
    run = simulate(trace_of(arrivals), SERVICE, policy)
    result = figures(run, Prices(on_demand, always_on), policy.min_replicas)
    up = sum((replica.stopped or 0) - replica.started for replica in run.replicas)
    assert math.isclose(result.replica_seconds, up, abs_tol=1e-6)
    kept = policy.min_replicas * run.seconds
    assert math.isclose(result.cost, (kept * always_on + (up - kept) * on_demand) / 3600, abs_tol=1e-6)
    assert min(result.starting_seconds, result.busy_seconds) >= 0
    assert result.idle_seconds >= -1e-6
    assert result.most_replicas <= policy.max_replicas
    assert busy_by_requests(run, policy) is None or math.isclose(
        result.busy_seconds, busy_by_requests(run, policy) or 0, abs_tol=1e-6
    )


def busy_by_requests(run: Run, policy: Policy) -> float | None:
    """Where a replica runs one request at a time its busy seconds are theirs."""
    if policy.limit > 1:
        return None
    return sum(request.done - request.dispatched for request in run.requests)


@settings(deadline=None, max_examples=100)
@given(ARRIVALS, policies())
def test_same_trace_same_run(arrivals: list[Arrival], policy: Policy) -> None:
    def once() -> Figures:
        return figures(simulate(trace_of(arrivals), SERVICE, policy), Prices(1, 1), policy.min_replicas)

    assert repr(once()) == repr(once())


@settings(deadline=None, max_examples=100)
@given(ARRIVALS, policies())
def test_replicas_that_are_always_there_wait_least(arrivals: list[Arrival], policy: Policy) -> None:
    """With one request for each replica: no fleet that starts replicas dispatches any request earlier."""
    single = replace(policy, concurrency=1, limit=1)
    trace = trace_of(arrivals)
    warm = simulate(trace, SERVICE, replace(single, min_replicas=single.max_replicas))
    for cold, best in zip(simulate(trace, SERVICE, single).requests, warm.requests, strict=True):
        assert cold.dispatched >= best.dispatched - 1e-9


def test_percentiles_are_values_that_were_there() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, percent) for percent in (50, 99, 100, 0)] == [50, 99, 100, 1]
    assert percentile([7.0], 99) == 7
    assert math.isnan(percentile([], 50))


def test_most_at_once_counts_no_handover_twice() -> None:
    assert most_at_once([(0, 1), (1, 2), (0.5, 1.5)]) == 2
    assert most_at_once([]) == 0

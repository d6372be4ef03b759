"""The fleet against queueing theory: what closed forms say of waits, sharing and cold starts, and cases by hand."""

import heapq
import math
import random
from collections.abc import Callable

import pytest

from scripts.fleet import theory
from scripts.fleet.arrivals import Arrival, Trace, draw
from scripts.fleet.fleet import Policy, Run, simulate
from scripts.fleet.service import Point, Service

TICK = 0.001  # seconds a token: fine enough for a continuous service time
NOTHING = 1e-9  # seconds of a prompt


def service(*points: tuple[int, float, float]) -> Service:
    return Service(tuple(Point(*point) for point in points), "assumed", None, 1)


def poisson(rate: float, count: int, seconds_of: Callable[[random.Random], float], seed: int) -> Trace:
    """Requests whose service takes `seconds_of` on a replica of their own."""
    rng = random.Random(seed)
    time, arrivals = 0.0, []
    for _ in range(count):
        time += rng.expovariate(rate)
        arrivals.append(Arrival(time, 1 + round(seconds_of(rng) / TICK)))
    return Trace("poisson", time, tuple(arrivals))


def always_on(replicas: int, limit: int = 1) -> Policy:
    return Policy(0, math.inf, limit, limit, replicas, replicas)


def mean_wait(run: Run) -> float:
    return sum(request.dispatched - request.arrived for request in run.requests) / len(run.requests)


def erlang_c(servers: int, load: float) -> float:
    """The share of requests that wait in an M/M/c queue."""
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(load**k / math.factorial(k) for k in range(servers)) + last)


ALONE = service((1, NOTHING, TICK))


def waits_by_recursion(trace: Trace, servers: int) -> list[float]:
    """Kiefer and Wolfowitz's recursion: each request takes the server that is free first."""
    free, waits = [0.0] * servers, []
    for arrival in trace.arrivals:
        begun = max(arrival.time, free[0])
        waits.append(begun - arrival.time)
        heapq.heapreplace(free, begun + NOTHING + (arrival.output_tokens - 1) * TICK)
    return waits


@pytest.mark.parametrize(("servers", "use"), [(1, 0.5), (1, 0.7), (3, 0.7), (8, 0.6)])
def test_waits_are_erlang_s(servers: int, use: float) -> None:
    """Request by request those of the recursion; on average, and in how many wait at all, those of M/M/c."""
    load = use * servers
    trace = poisson(load, 80_000, lambda rng: rng.expovariate(1), seed=servers)
    run = simulate(trace, ALONE, always_on(servers))
    waits = [request.dispatched - request.arrived for request in run.requests]
    assert waits == pytest.approx(waits_by_recursion(trace, servers), abs=1e-6)
    assert sum(wait > 1e-6 for wait in waits) / len(waits) == pytest.approx(erlang_c(servers, load), rel=0.05)
    assert mean_wait(run) == pytest.approx(erlang_c(servers, load) / (servers - load), rel=0.1)


@pytest.mark.parametrize(
    ("seconds_of", "second_moment"),
    [
        (lambda rng: 1.0, 1.0),
        (lambda rng: rng.uniform(0, 2), 4 / 3),
        # Nine in ten take 0.5, the tenth 5.5: a mean of 1.
        (lambda rng: 0.5 if rng.random() < 0.9 else 5.5, 0.9 * 0.25 + 0.1 * 5.5**2),
    ],
    ids=["constant", "uniform", "two kinds"],
)
def test_waits_are_pollaczek_and_khinchine_s(
    seconds_of: Callable[[random.Random], float], second_moment: float
) -> None:
    rate = 0.6
    run = simulate(poisson(rate, 80_000, seconds_of, seed=5), ALONE, always_on(1))
    assert mean_wait(run) == pytest.approx(rate * second_moment / (2 * (1 - rate)), rel=0.05)


@pytest.mark.parametrize(
    "seconds_of", [lambda rng: 1.0, lambda rng: rng.expovariate(1)], ids=["constant", "exponential"]
)
def test_a_replica_that_is_shared_is_a_processor_sharing_queue(seconds_of: Callable[[random.Random], float]) -> None:
    """M/G/1-PS: the mean sojourn is E[S] / (1 - load), whatever the distribution of S."""
    shared = service((1, NOTHING, TICK), (400, NOTHING, 400 * TICK))
    run = simulate(poisson(0.6, 40_000, seconds_of, seed=2), shared, always_on(1, limit=400))
    sojourn = sum(request.done - request.arrived for request in run.requests) / len(run.requests)
    assert sojourn == pytest.approx(1 / (1 - 0.6), rel=0.05)


def test_little_s_law() -> None:
    """Requests that run, as the replicas count their busy seconds, are the rate times the time each takes."""
    trace = poisson(3, 30_000, lambda rng: rng.expovariate(1), seed=9)
    run = simulate(trace, ALONE, always_on(5))
    running = sum(replica.busy_seconds for replica in run.replicas) / run.seconds
    taken = sum(request.done - request.dispatched for request in run.requests) / len(run.requests)
    assert running == pytest.approx(len(run.requests) / run.seconds * taken, rel=1e-9)
    assert running == pytest.approx(3, rel=0.03)


@pytest.mark.parametrize(
    ("rate", "start", "idle", "length"),
    [(0.01, 20, 60, 0.0), (0.01, 20, 0, 0.0), (0.02, 60, 30, 10.0), (1 / 3600, 10, 300, 2.0), (0.1, 0.3, 5, 3.0)],
)
def test_scale_to_zero_is_what_its_closed_form_says(rate: float, start: float, idle: float, length: float) -> None:
    many = service((1, NOTHING, TICK), (64, NOTHING, TICK))
    trace = poisson(rate, 20_000, lambda rng: length, seed=4)
    run = simulate(trace, many, Policy(start, idle, 64, 64, 1))
    on = sum((replica.stopped or 0) - replica.started for replica in run.replicas)
    cold = sum(request.cold for request in run.requests) / len(run.requests)
    assert 1 - on / run.seconds == pytest.approx(theory.off_share(rate, start, idle, length), rel=0.03)
    assert cold == pytest.approx(theory.cold_share(rate, start, idle, length), rel=0.03)
    waited = [request.dispatched - request.arrived for request in run.requests if request.cold]
    assert max(waited) <= start + 1e-6
    assert sum(waited) > 0


def test_without_start_and_service_a_request_is_warm_where_the_gap_is_short() -> None:
    """P(warm) = P(gap <= T) = 1 - exp(-rate T)."""
    assert 1 - theory.cold_share(0.01, 0, 60, 0) == pytest.approx(1 - math.exp(-0.6), rel=1e-12)


def test_idle_rule_pays_at_most_twice_the_best_that_is_possible() -> None:
    start, price, worth = 20.0, 3.6, 0.01  # 0.001 a second: a wait is worth 10 s
    idle = theory.idle_seconds(start, price, worth)
    assert idle == pytest.approx(30)
    for gap in (0.0, 5.0, 29.0, 30.0, 31.0, 1e3, 1e6):
        paid = gap if gap <= idle else idle + start + worth / price * 3600
        assert paid <= 2 * min(gap, start + worth / price * 3600) + 1e-9


# --- by hand --------------------------------------------------------------------------------------------------


def at(*times: float, tokens: int = 11, seconds: float = 100) -> Trace:
    return Trace("by hand", seconds, tuple(Arrival(time, tokens) for time in times))


def test_two_requests_share_a_replica() -> None:
    both = service((1, 2.0, 0.1), (2, 4.0, 0.2))
    run = simulate(at(0, 1), both, always_on(1, limit=2))
    first, second = run.requests
    # Half of the first prompt is done in a second, the rest takes two; the second's goes at 1/4 throughout.
    assert first.first_token == pytest.approx(3)
    # In 2 s 10 of the first's tokens are done, at 0.2 s each; the second's prompt is at 1/2 when both had run 2 s.
    assert first.done == pytest.approx(5)
    # From 1 to 5 the second has done 4/4 of its prompt.
    assert second.first_token == pytest.approx(5)
    assert second.done == pytest.approx(6)


def test_a_start_an_idle_time_and_a_stop() -> None:
    one = service((1, 1.0, 0.1))
    run = simulate(at(10, 40), one, Policy(start=5, idle=8, concurrency=1, limit=1, max_replicas=3))
    first, second = run.requests
    assert first.cold
    assert [first.dispatched, first.first_token, first.done] == pytest.approx([15, 16, 17])
    assert (second.cold, second.dispatched) == (True, 45)
    spans = [[replica.started, replica.ready, replica.stopped] for replica in run.replicas]
    assert spans[0] == pytest.approx([10, 15, 25])
    assert spans[1] == pytest.approx([40, 45, 55])


def test_a_warm_replica_is_used_and_one_more_started_above_the_target() -> None:
    one = service((1, 1.0, 0.1), (2, 1.0, 0.1))
    run = simulate(at(0, 8, 8.5), one, Policy(start=5, idle=60, concurrency=1, limit=2, max_replicas=2))
    assert [request.cold for request in run.requests] == [True, False, False]
    # The third goes to the one that is there, within its limit, although another is started for it.
    assert [request.dispatched for request in run.requests] == [5, 8, 8.5]
    assert [replica.started for replica in run.replicas] == [0, 8.5]
    full = simulate(at(0, 8, 8.5), one, Policy(start=0.25, idle=60, concurrency=1, limit=1, max_replicas=2))
    assert [request.dispatched for request in full.requests] == [0.25, 8, 8.75]


def test_at_the_most_replicas_requests_wait_in_order() -> None:
    one = service((1, 1.0, 0.1))
    run = simulate(at(0, 0.1, 0.2), one, Policy(start=0, idle=60, concurrency=1, limit=1, max_replicas=1))
    assert [request.done for request in run.requests] == [pytest.approx(2), pytest.approx(4), pytest.approx(6)]
    assert [request.cold for request in run.requests] == [True, False, False]


def test_fullest_replica_below_the_target_is_chosen_so_that_others_fall_idle() -> None:
    pair = service((1, 1.0, 1.0), (2, 1.0, 1.0))
    # Three at once need two replicas of two; the one left alone ends, and the next request goes to the other pair.
    trace = Trace("by hand", 100, (Arrival(0, 5), Arrival(0, 21), Arrival(0, 5), Arrival(10, 5)))
    run = simulate(trace, pair, Policy(start=0, idle=12, concurrency=2, limit=2, max_replicas=2))
    assert [round(replica.stopped or 0, 6) for replica in run.replicas] == [33, 17]


def test_arrivals_have_the_rate_asked_for() -> None:
    for process in ("poisson", "diurnal", "bursty", "regular"):
        trace = draw(process, 0.05, 20 * 86400, output_tokens=1, seed=3)
        assert len(trace.arrivals) / trace.seconds == pytest.approx(0.05, rel=0.05), process
        times = [arrival.time for arrival in trace.arrivals]
        assert times == sorted(times)
        assert times[0] >= 0
        assert times[-1] < trace.seconds
        assert trace == draw(process, 0.05, 20 * 86400, output_tokens=1, seed=3)
    night = [arrival for arrival in draw("diurnal", 1, 86400, output_tokens=1).arrivals if arrival.time < 3600]
    noon = [
        arrival for arrival in draw("diurnal", 1, 86400, output_tokens=1).arrivals if abs(arrival.time - 43200) < 1800
    ]
    assert len(night) / 3600 == pytest.approx(0.1, abs=0.04)
    assert len(noon) / 3600 == pytest.approx(1.9, rel=0.1)


def test_bursts_come_in_the_share_of_the_time_that_was_asked_for() -> None:
    """Seen from a request, those within a burst are at rate/share; the variance of counts tells them from Poisson."""
    trace = draw("bursty", 0.1, 40 * 86400, output_tokens=1, seed=1, burst=600, share=0.1)
    gaps = [b.time - a.time for a, b in zip(trace.arrivals, trace.arrivals[1:], strict=False)]
    short = sorted(gaps)[: len(gaps) // 2]
    # Within bursts gaps are exponential with mean 1 s: half of all are below ln 2 / 1.
    assert short[-1] == pytest.approx(math.log(2), rel=0.05)
    long = [gap for gap in gaps if gap > 100]
    assert sum(long) / len(long) == pytest.approx(5400 + 100, rel=0.15)

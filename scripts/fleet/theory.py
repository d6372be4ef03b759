"""What is known in closed form of one replica that scales to zero under Poisson arrivals.

One cycle: nothing runs until a request comes; a start of S seconds; then busy and idle until no request has come for
T seconds after the last answer, each answer taking B seconds beside the others. With a = lambda:

    off      = 1 / (a S + exp(a (B + T)))      share of the time that nothing is paid for
    cold     = (1 + a S) * off                 share of the requests that find no replica ready

B is constant and the replica takes all that come (an M/D/infinity busy period, started by those that waited).
"""

import math


def off_share(rate: float, start: float, idle: float, service: float) -> float:
    """`rate` in requests a second, the rest in seconds."""
    exponent = rate * (service + idle)
    return 1 / (rate * start + math.exp(exponent)) if exponent < 700 else 0.0


def cold_share(rate: float, start: float, idle: float, service: float) -> float:
    return (1 + rate * start) * off_share(rate, start, idle, service)


def idle_seconds(start: float, price: float, wait_worth: float) -> float:
    """How long to keep an idle replica: as long as a start costs, in its own seconds and in the one who waits.

    The rule of ski rental (Karlin et al., 1988): whatever the arrivals, no more than twice what the best choice would
    have cost that knows when the next request comes. `price` is of a replica's hour, `wait_worth` what one cold wait
    is worth to its provider.
    """
    return start + wait_worth / price * 3600

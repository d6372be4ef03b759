"""Histograms and numbers as Prometheus' text format defines them."""

import pytest

from pilotlight.front.metrics import Histogram, Metrics, _escape, _number


def test_a_histogram_counts_up_to_and_including_each_bound() -> None:
    histogram = Histogram((0.5, 1, 2))
    for value in (0.25, 0.5, 0.75, 2, 3):
        histogram.observe(value)
    assert list(histogram.lines("x", 'model_name="m"')) == [
        'x_bucket{model_name="m",le="0.5"} 2',
        'x_bucket{model_name="m",le="1"} 3',
        'x_bucket{model_name="m",le="2"} 4',
        'x_bucket{model_name="m",le="+Inf"} 5',
        'x_sum{model_name="m"} 6.5',
        'x_count{model_name="m"} 5',
    ]


def test_metrics_do_not_share_their_histograms() -> None:
    one, other = Metrics(), Metrics()
    one.request_latency.observe(1.0)
    one.finished["stop"] += 1
    assert list(other.request_latency.lines("x", ""))[-1] == "x_count{} 0"
    assert other.finished["stop"] == 0


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (3.0, "3"), (0.25, "0.25"), (1234567, "1234567"), (float("inf"), "+Inf")]
)
def test_numbers(value: float, text: str) -> None:
    assert _number(value) == text
    assert float(_number(123456.75)) == 123456.75


def test_a_label_is_escaped() -> None:
    assert _escape('a"b\\c\nd') == 'a\\"b\\\\c\\nd'

"""Charts: round ticks, values at the right place, and no value that breaks them."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltaenergy.report.charts import (
    LARGEST,
    Axis,
    Curve,
    HistogramRow,
    Point,
    Scale,
    curve_chart,
    histogram_chart,
    nice_ticks,
    padded,
    radar_chart,
    scatter_chart,
)
from tests.report.checks import Page

finite = st.floats(-1e6, 1e6, allow_nan=False)


@given(finite, st.floats(1e-6, 1e6), st.integers(2, 8))
def test_ticks_are_few_round_even_and_inside(low, span, count):
    high = low + max(span, 1e-6 * abs(low))  # finer than that, the numbers themselves are not round
    ticks = nice_ticks(low, high, count)
    assert len(ticks) <= count + 1
    tolerance = 1e-6 * span + 1e-9 * abs(low)
    assert all(low - tolerance <= tick <= high + tolerance for tick in ticks)
    if len(ticks) > 1:
        step = ticks[1] - ticks[0]
        np.testing.assert_allclose(np.diff(ticks), step, rtol=1e-3)
        leading = round(step / 10 ** math.floor(math.log10(step * 1.0001)), 3)
        assert leading in (1, 2, 5, 10)


def test_ticks_by_hand():
    assert nice_ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert nice_ticks(-0.03, 0.11, 3) == [0, 0.05, 0.1]
    assert nice_ticks(5, 5) == [5]


def test_axis_is_linear_and_holds_outliers_at_its_ends():
    axis = Axis(0, 10, start=100, end=0)
    assert [axis(v) for v in (0, 5, 10, 99, math.inf, -math.inf)] == [100, 50, 0, 0, 0, 100]


def numbers_of(document):
    return [float(n) for points in re.findall(r'points="([^"]*)"', document) for n in re.split("[ ,]", points)]


def test_curve_goes_through_its_points():
    chart = curve_chart([Curve("a", [0, 1], [0, 1])], Scale("x", (0, 1)), Scale("y", (0, 1)), title="t")
    assert numbers_of(chart) == [52, 258, 338, 10]


def test_histogram_bars_stand_for_counts():
    values = np.array([0.0, 0.0, 0.0, 1.0])
    chart = histogram_chart([HistogramRow("a", values, 0)], title="t", x_label="x", threshold=0.5)
    ys = numbers_of(chart)[1::2]
    heights = sorted({max(ys) - y for y in ys})
    assert heights == pytest.approx([0, heights[-1] / 3, heights[-1]], abs=0.11) and heights[-1] > 30
    assert "rejected" in chart and "kept" in chart


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=30), st.floats(-5, 5))
@example([5e-324], 0.0)
@example([0.0, -5e-324], 0.0)
@example([1.0, 1.0 + 2**-52], 1.0)
def test_no_bar_stands_across_the_threshold(values, threshold):
    chart = histogram_chart([HistogramRow("a", np.array(values), 0)], title="t", x_label="x", threshold=threshold)
    numbers = numbers_of(chart)
    outline = list(zip(numbers[::2], numbers[1::2]))
    line = float(re.search(r'<line x1="([\d.]+)"', chart)[1])
    base = max(y for _, y in outline)
    bars = [(x1, x2) for (x1, y1), (x2, y2) in itertools.pairwise(outline) if y1 == y2 < base]
    assert all(x2 <= line + 0.1 or x1 >= line - 0.1 for x1, x2 in bars)
    assert any(x2 <= line + 0.1 for _, x2 in bars) == any(value < threshold for value in values)


def test_a_side_too_narrow_for_its_word_goes_without():
    rows = [HistogramRow("a", np.linspace(0, 1, 50), 0)]
    chart = histogram_chart(rows, title="t", x_label="x", threshold=0.01)
    assert "kept →" in chart and "← rejected" not in chart


@pytest.mark.parametrize(
    "values", [[1.0], [2.0, 2.0], [math.inf, 1.0, 2.0], [-math.inf], [1e-12, 2e-12], [1e12, -1e12]]
)
def test_odd_values_are_drawn_inside_the_chart(values):
    rows = [HistogramRow("a", np.array(values), 0)]
    chart = histogram_chart(rows, title="t", x_label="x", threshold=None)
    Page(chart)
    assert all(0 <= n <= 360 for n in numbers_of(chart))
    assert "nan" not in chart and "inf" not in chart


# Every float64 there is: subnormal, huge, equal but for the last bit.
any_number = st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True)
any_numbers = st.lists(any_number, min_size=1, max_size=8)


@given(any_numbers, any_numbers, any_number)
@example([0.0, 5e-324], [0.0], 5e-324)
@example([1.7e308, -1.7e308], [1.7e308], -1.7e308)
def test_no_number_breaks_a_chart(x, y, threshold):
    y = [y[i % len(y)] for i in range(len(x))]
    rows = [HistogramRow("a", np.array(x), 0), HistogramRow("b", np.array(y), 1)]
    ends = (abs(number) for number in (x[0], y[0]))
    charts = [
        histogram_chart(rows, title="t", x_label="x", threshold=threshold),
        histogram_chart(rows, title="t", x_label="x"),
        curve_chart([Curve("c", x, y, low=y, high=x, markers=True)], Scale("x"), Scale("y"), title="t"),
        scatter_chart([Point("p", a, b) for a, b in zip(x, y)], Scale("x"), Scale("y"), title="t"),
    ]
    for chart in charts:
        assert not re.search(r'="[^"]*(nan|inf)', chart.lower())
        assert all(-1 <= n <= 2000 for n in numbers_of(chart))
    low, high = sorted(ends)
    for ticks in (nice_ticks(low, high), nice_ticks(-high, low)):
        assert len(ticks) < 2000 and all(math.isfinite(tick) for tick in ticks)


@given(any_number.filter(math.isfinite), any_number.filter(math.isfinite))
def test_room_around_values_makes_a_range_that_can_be_divided(one, other):
    low, high = padded(min(one, other), max(one, other))
    edges = np.linspace(low, high, 41)
    assert (np.diff(edges) > 0).all()
    clipped = np.clip([one, other], -LARGEST, LARGEST)
    assert low <= clipped.min() and clipped.max() <= high


def test_labels_are_escaped_and_charts_have_a_text_alternative():
    evil = "</svg><script>alert(1)</script>"
    charts = [
        curve_chart([Curve(evil, [0, 1], [1, 0])], Scale(evil), Scale(evil), title=evil),
        histogram_chart([HistogramRow(evil, np.arange(9.0), 1, evil)], title=evil, x_label=evil),
        scatter_chart([Point(evil, 1, 2)], Scale(evil), Scale(evil), title=evil),
        radar_chart([evil, "b", "c"], {evil: [0, 0.5, 1]}, title=evil),
    ]
    for chart in charts:
        page = Page(chart)
        assert not page.all("script") and page.all("svg")[0]["aria-label"].startswith(evil)


def test_bands_and_markers():
    curve = Curve("a", [0.01, 0.1, 1], [1, 2, 3], low=[0, 1, 2], high=[2, 3, 4], markers=True, index=2)
    chart = curve_chart([curve], Scale("x"), Scale("y"), title="t")
    page = Page(chart)
    assert "band" in chart and len(page.all("polygon")) == 1 + 3


def test_scatter_names_do_not_cover_each_other():
    points = [Point(f"method {i}", 0.5, 0.5, index=i) for i in range(4)] + [Point("far", 0.9, 0.1)]
    chart = scatter_chart(points, Scale("x"), Scale("y"), title="t")
    labels = re.findall(r'<text x="[\d.]+" y="([\d.]+)" class="row[^"]*">method', chart)
    heights = sorted(map(float, labels))
    assert len(heights) == 4 and min(np.diff(heights)) >= 11


def test_a_radars_corners_lie_on_its_axes():
    """Three axes from the middle (310, 200) of length 148: up, down to the right, down to the left."""
    chart = radar_chart(["a", "b", "c"], {"x": [1, 0.5, 0]}, title="t")
    line = next(polygon for polygon in Page(chart).all("polygon") if "curve" in polygon["class"])
    points = [tuple(map(float, pair.split(","))) for pair in line["points"].split()]
    expected = [(310, 200 - 148), (310 + 74 * math.sqrt(3) / 2, 200 + 37), (310, 200)]
    np.testing.assert_allclose(points, expected, atol=0.06)

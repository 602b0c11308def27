"""Charts as inline SVG: curves, histograms in rows, trade-off scatter.

Colours are CSS classes of the page (`c0` to `c7`, chosen to be told apart by colour-blind readers), so that one
drawing serves light, dark and print. Dashes and marker shapes repeat what the colours say.
"""

from deltaenergy.report.charts.curves import Curve, curve_chart
from deltaenergy.report.charts.histograms import HistogramRow, histogram_chart
from deltaenergy.report.charts.marks import colour, dash, legend_key, marker
from deltaenergy.report.charts.scatter import Point, scatter_chart

__all__ = [
    "Curve",
    "HistogramRow",
    "Point",
    "colour",
    "curve_chart",
    "dash",
    "histogram_chart",
    "legend_key",
    "marker",
    "scatter_chart",
]

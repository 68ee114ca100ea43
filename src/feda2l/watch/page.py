"""The live page: the report's own look and figures, fed by a stream of events."""

from feda2l.report.page import fill, part, plotly


def live_page() -> str:
    """The page's HTML; it holds everything but the data."""
    return fill(
        part("live.html"),
        style=part("page.css") + part("live.css"),
        panels=part("panels.html"),
        drawing=part("draw.js"),
        script=part("live.js"),
        plotly=plotly("watch", "watch"),
    )

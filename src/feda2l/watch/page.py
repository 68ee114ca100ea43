"""The live page: the layout and figures of the report page, updated by a stream of events."""

from feda2l.report.page import fill, part, plotly


def live_page() -> str:
    """Return the HTML of the page, without the data."""
    return fill(
        part("live.html"),
        style=part("page.css") + part("live.css"),
        panels=part("panels.html"),
        drawing=part("draw.js"),
        script=part("live.js"),
        plotly=plotly("watch", "watch"),
    )

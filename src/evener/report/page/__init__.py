"""Page of `evener report`: the record of one run, or of two side by side, as one HTML file.

    charts      numbers over time -> lines with axes    pure
    timeline    activities of a step -> bars            pure
    sections    RunRecord -> the parts of the page      pure
    render      parts -> HTML, by the templates

Importing it does not import TensorFlow.
"""

from evener.report.page.render import render_page

__all__ = ["render_page"]

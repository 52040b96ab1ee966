"""Two runs compared: read side by side, aligned by meaning, and judged state by state.

This package is responsible for ``logscope.diff``. It must not know how a report is shown. From the ground up: align
(what is kept of a run, and which passes are the same), compare (what of them differs), server (configuration, errors,
acceptance), report (the question, and its answer in words). It is not called ``diff``, since that is the function.
"""

# The codes of differences beside N201: name and usual severity. Their pages are docs/rules/CODE.md.
CODES = {
    "D101": ("configuration", "warning"),
    "D102": ("form", "error"),
    "D103": ("records", "warning"),
    "D104": ("acceptance", "warning"),
    "D105": ("error", "error"),
}

"""Questions, measurements and plots: one file per question, a harness that keeps what was found, and the demo.

    result -> requantization, ... -> study (harness, `fourbit study`) -> demo (`fourbit demo`)

`plots` is the one place that decides how figures look, `report` how pages look. Import the module you need.
"""

"""What the notebooks show: each module prepares one notebook's figures and widgets, so that its cells stay short.

Imports: every other folder of the project, and `ipywidgets` (extra `notebooks`) where something moves.
"""

"""``omni-async config``: what a deploy file means, or all that is wrong with it.

One file for each job: the command (`command`), the object for machines (`meaning`), the text for
people (`listing`), values and their origins (`origins`), the pipeline as boxes and arrows (`graph`),
their places (`layout` and what it uses), the drawing in a terminal (`terminal`) and as SVG (`svg`).
"""

from __future__ import annotations

from .command import HELP, NAME, configure, run

__all__ = ["HELP", "NAME", "configure", "run"]

"""Synthetic frontal chest radiographs with findings, boxes and three simulated readers.

Everything is a function of (seed, index): anatomy, findings, texture, grain and readers, so that
any process can make any picture again. The pictures carry radiographic signs, not medical truth;
they serve to exercise the pipeline and to teach the demo's model where to look.
"""

from cxrjax.simulation.phantoms.render import NORMAL_PROBABILITY, Phantom, render_phantom

__all__ = ["NORMAL_PROBABILITY", "Phantom", "render_phantom"]

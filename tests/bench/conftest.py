"""What tests of bench/ start from is what tests of the papers start from."""

from tests.papers.cxr_qba.conftest import built, phantoms
from tests.papers.gemex.conftest import sample
from tests.papers.vix_ray.test_vix_ray_scores import folder

__all__ = ["built", "folder", "phantoms", "sample"]

"""Rendered phantoms, and simulated lesions in real radiographs.

findings, signs.toml        classes and how often they occur; three simulated readers
signs, builder              a sign, an image with its ground truth; the data set of such images
anatomy, canvas, regions    a rendered patient, body coordinates, Chest ImaGenome's regions
phantom_signs, render       signs of a phantom, its frontal view; `lateral` the other
phantoms, vix_ray, studies  data sets of phantoms
chest, warps                anatomy measured in a radiograph; enlarged heart and aortic arch
lesion_signs, compose       signs inside that anatomy, and what they change in the image
lesions, lesion_reports     the data set of radiographs with simulated lesions, reports on them
samples                     pages to inspect, for `cxrjax simulation_samples`
"""

import dataclasses

from cxrjax.paper import Paper
from cxrjax.papers.vindr_cxr_vqa import VINDR_CXR_VQA
from cxrjax.papers.vix_ray import VIX_RAY

# Their records have VinDr's classes and the forms of its questions. No class is above another: what
# was simulated is known, an opacity is a sign of its own, and so is its absence.
_LIKE_VINDR = {
    field: getattr(VINDR_CXR_VQA, field) for field in ("classes", "check_record", "check_file")
}

GRAFTS = Paper(
    "grafts",
    title="synthetic lesion, real radiograph: grafts in Kermany's chest X-rays",
    made="synthetic lesion, real radiograph",
    licence="CC BY 4.0: images Kermany, Zhang, Goldbaum (doi 10.17632/rscbjbr9sj); masks V7 "
    "(v7labs/covid-19-xray-dataset); changed: lesions are simulated",
    terms="data/grafts/README.md",
    credentialed=False,
    help="simulated lesions in real radiographs",
    builder="cxrjax.simulation.lesions:LesionBuilder",
    **_LIKE_VINDR,
)

# Nothing is known of the terms of users' radiographs.
OWN_GRAFTS = dataclasses.replace(
    GRAFTS,
    name="own_grafts",
    title="synthetic lesion, real radiograph: grafts in own radiographs",
    licence="that of the radiographs, known to whoever holds them",
    credentialed=True,
    help="",
    builder="",
)

SYNTHETIC = Paper(
    "synthetic",
    title="phantoms",
    licence="this project's: drawn, of no patient",
    terms="data/phantom_studies/README.md",
    credentialed=False,
    **_LIKE_VINDR,
)

PHANTOM = Paper(
    "phantom",
    help="rendered radiographs with questions",
    builder="cxrjax.simulation.phantoms:PhantomBuilder",
)

PHANTOM_STUDIES = Paper(
    "phantom_studies",
    help="rendered studies in MIMIC-CXR-JPG's layout",
    builder="cxrjax.simulation.studies.build:StudiesBuilder",
)

VIX_RAY_SYNTHETIC = Paper(
    "vix_ray_synthetic",
    title="phantoms with ViX-Ray's reports",
    made="rendered radiographs, reports of a grammar",
    licence="this project's: drawn, of no patient",
    terms="data/vix_ray/README.md",
    credentialed=False,
    boxes_in_text=False,
    check_record=VIX_RAY.check_record,
    check_study=VIX_RAY.check_study,
    help="rendered radiographs in ViX-Ray's layout",
    builder="cxrjax.simulation.vix_ray:SyntheticVixRayBuilder",
)

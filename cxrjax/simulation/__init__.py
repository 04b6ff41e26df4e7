"""Rendered phantoms, and simulated lesions in real radiographs.

findings, signs.toml        classes and how often they occur; three simulated readers
signs, builder              a sign, an image with its ground truth; the data set of such images
anatomy, canvas, regions    a rendered patient, body coordinates, Chest ImaGenome's regions
phantom_signs, render       signs of a phantom, its frontal view; `lateral` the other
phantoms, vix_ray, studies  data sets of phantoms
chest, warps                anatomy measured in a radiograph; enlarged heart and aortic arch
lesion_signs, compose       signs inside that anatomy, and what they change in the image
lesions                     the data set of radiographs with simulated lesions
samples                     pages to inspect, for `cxrjax simulation_samples`
"""

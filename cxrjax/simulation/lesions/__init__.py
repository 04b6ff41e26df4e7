"""Simulated lesions in real normal radiographs: synthetic lesion, real radiograph.

A radiograph and the mask of its lungs give the anatomy (`anatomy`); signs of the VinDr-CXR classes
are shaped inside it (`signs`), heart and aortic arch are enlarged by local warps (`warps`), and all
of it is composed in attenuation, at an asked contrast-to-noise ratio, under the film's own noise
(`compose`). Everything is a function of the picture and a seed.
"""

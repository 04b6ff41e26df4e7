"""Image files as uint8 RGB, and where boxes go when an image is resized.

`geometry`, all that a training step needs, imports neither Pillow nor pydicom.
"""

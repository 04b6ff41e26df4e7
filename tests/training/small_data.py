"""Made-up records, images and experiment files of small runs."""

import numpy as np
from PIL import Image

from cxrjax.records import Answer, QARecord

_EXPERIMENT = '''
"""A test's experiment."""
from cxrjax.training.config import default_config

def get_config(variant=""):
    config = default_config()
    config.update_from_flattened_dict({keys!r})
    config.missing_data_help = "Put the table into data/vindr, or try :demo"
    return config
'''


def write_experiment_file(path, keys):
    """Writes a configuration file: the defaults but for `keys`, such as `training.steps`."""
    path.write_text(_EXPERIMENT.format(keys=keys))


def make_record(name, image, text=None, hw=(60, 80), box=None, **fields):
    """A record of one question; of a nodule in a box (xyxy, pixels) where there is one."""
    if box is not None:
        text = "The Nodule/Mass is located at <loc_{:.0f}_{:.0f}_{:.0f}_{:.0f}>.".format(*box)
    boxes = {} if box is None else {image: [list(map(float, box))]}
    fields = {
        "split": "train",
        "image_path": f"images/{image}.png",
        "question": "Where is the Nodule/Mass?",
        "question_type": "Where",
        "answers": [Answer(text=text, boxes_by_image=boxes)],
    } | fields
    return QARecord(dataset="custom", image_id=image, image_hw=hw, question_id=name, **fields)


def write_noise(path, rng, hw=(60, 80)):
    """Writes an image of random pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, hw, np.uint8)).save(path)

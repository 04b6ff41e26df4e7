"""Names of slices, and the table of chips."""

import pytest

from cxrjax.distributed.hardware import CHIPS, Topology, chip_of_device, parse_topology
from cxrjax.errors import UserError


@pytest.mark.parametrize(
    ("names", "chips", "shape"),
    [
        (("v5e:2x4", "v5e-8"), 8, (2, 4)),
        (("v5e:1x1", "v5e-1"), 1, (1, 1)),
        (("v5e:16x16", "v5e-256"), 256, (16, 16)),
        (("v5p:2x2x1", "v5p-8"), 4, (2, 2, 1)),
        (("v5p:4x4x4", "v5p-128"), 64, (4, 4, 4)),
        (("v5p:16x16x24", "v5p-12288"), 6144, (16, 16, 24)),
        (("v6e:4x4", "v6e-16"), 16, (4, 4)),
        (("h100-8", "h100:8"), 8, (8,)),
        (("a100-80-8", "a100-80:8"), 8, (8,)),
        (("a100-8", "a100:8"), 8, (8,)),
        (("h200", "h200-1"), 1, (1,)),
        (("a100", "a100-80"), 1, (1,)),
        (("b200-8", "b200:8"), 8, (8,)),
    ],
)
def test_both_names_of_a_slice(names, chips, shape):
    first, second = map(parse_topology, names)
    assert first == second and first.chips == chips and first.shape == shape


@pytest.mark.parametrize("chip", CHIPS)
def test_every_slice_has_two_names_of_its_own(chip):
    slices = [Topology(CHIPS[chip], shape) for shape in CHIPS[chip].shapes]
    assert all(parse_topology(s.name) == parse_topology(s.vendor_name) == s for s in slices)
    assert len({s.vendor_name for s in slices}) == len(slices)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("v9x:2x2", "known are v5e, v5p, v6e, a100-80, h100, h200, b200"),
        ("v5e", "v5e:2x4 (v5e-8)"),
        ("h200-3", "h200:4 (h200-4)"),
        ("v5e:3x3", "v5e:2x4 (v5e-8)"),
        ("v5e-7", "v5e:4x4 (v5e-16)"),
        ("v5p-4", "v5p:2x2x1 (v5p-8)"),
        ("", "unknown chip"),
    ],
)
def test_unknown_slices_are_told_the_known_ones(name, told):
    with pytest.raises(UserError) as error:
        parse_topology(name)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_devices_of_chips():
    assert chip_of_device("TPU v5 lite").name == "v5e"
    assert chip_of_device("TPU v5").name == "v5p"
    assert chip_of_device("cpu") is None

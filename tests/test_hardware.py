"""Names of slices, and the table of chips."""

import tomllib
from pathlib import Path

import pytest

from cxrjax.distributed.hardware import CHIPS, Topology, chip_of_device, parse_topology
from cxrjax.errors import UserError

SLICES = tomllib.loads(Path(__file__).with_name("slices.toml").read_text())


def test_slices_have_two_names_known_ones_are_told(subtests):
    for names, chips, shape in SLICES["both_names_of_a_slice"]:
        with subtests.test(names):
            first, second = map(parse_topology, names.split())
            assert first == second and first.chips == chips and [*first.shape] == shape
    assert chip_of_device("TPU v5 lite").name == "v5e"
    assert chip_of_device("TPU v5").name == "v5p"
    assert chip_of_device("cpu") is None
    for name, told in SLICES["unknown_slices_are_told_the_known_ones"]:
        with subtests.test(name), pytest.raises(UserError) as error:
            parse_topology(name)
        assert told in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("chip", CHIPS)
def test_every_slice_has_two_names_of_its_own(chip):
    slices = [Topology(CHIPS[chip], shape) for shape in CHIPS[chip].shapes]
    assert all(parse_topology(s.name) == parse_topology(s.vendor_name) == s for s in slices)
    assert len({s.vendor_name for s in slices}) == len(slices)

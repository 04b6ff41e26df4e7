"""--mesh of predict and evaluate: what it says, and what is refused."""

import pytest

from cxrjax.distributed.meshes import make_mesh
from cxrjax.errors import UserError
from cxrjax.evaluation.flags import mesh_config


def test_axes_left_out_are_as_by_default_and_all_devices_are_used():
    assert dict(make_mesh(mesh_config("")).shape)["data"] == 8
    shape = dict(make_mesh(mesh_config("fsdp=2, tensor=2")).shape)
    assert shape == {"replica": 1, "data": 2, "fsdp": 2, "tensor": 2}
    assert mesh_config("data=-1,replica=4").replica == 4
    with pytest.raises(UserError, match="tensor=3 does not fill the 8 devices there are"):
        make_mesh(mesh_config("tensor=3"))


@pytest.mark.parametrize("text", ["tensor", "tensor=", "tensor=0", "fsdp=-1", "model=2", "data=2;"])
def test_what_is_no_mesh_is_told_in_a_line(text):
    with pytest.raises(UserError, match=r"--mesh=.*: expected replica=N,data=N,fsdp=N,tensor=N or"):
        mesh_config(text)

"""What launches a server: manifests by Kubernetes' schema, flags that the command has."""

import configparser
import re

import kubernetes_validate
import pytest
import yaml

from cxrjax.commands.serve import parse_arguments
from tests.launch.conftest import LAUNCH

MANIFESTS = list(yaml.safe_load_all((LAUNCH / "serve.yaml").read_text()))
CONTAINER = MANIFESTS[0]["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest["kind"])
def test_manifests_are_by_the_schema(manifest):
    kubernetes_validate.validate(manifest, "1.31", strict=True)


def test_the_pod_is_served_as_the_command_takes_it():
    flags = parse_arguments(CONTAINER["args"])
    pod = MANIFESTS[0]["spec"]["template"]["spec"]
    # Connections are drained first, and what they had asked then.
    assert pod["terminationGracePeriodSeconds"] > 2 * flags.drain_seconds
    assert CONTAINER["ports"][0]["containerPort"] == flags.port
    assert MANIFESTS[2]["spec"]["ingress"][0]["ports"] == [{"port": flags.port}]
    mounted = {volume["name"]: volume for volume in CONTAINER["volumeMounts"]}
    assert str(flags.checkpoint) == mounted["model"]["mountPath"]
    assert flags.token_file.parent.as_posix() == mounted["tokens"]["mountPath"]
    assert {volume["name"] for volume in pod["volumes"]} == set(mounted)
    docker = (LAUNCH / "serve.Dockerfile").read_text()
    assert f"JAX_COMPILATION_CACHE_DIR={mounted['compiled']['mountPath']}" in docker
    assert f"USER {pod['securityContext']['runAsUser']}" in docker


def test_the_unit_starts_the_command_and_waits_for_its_end():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(LAUNCH / "serve.service")
    service = unit["Service"]
    command, *words = service["ExecStart"].split()
    assert words[:2] == ["-m", "cxrjax.serve"] and command.endswith("/python")
    flags = parse_arguments(words[2:])
    assert flags.host == "127.0.0.1" and flags.token_file.name == "tokens"
    assert int(service["TimeoutStopSec"]) > 2 * flags.drain_seconds


def test_files_that_the_image_is_made_of_exist():
    for line in (LAUNCH / "serve.Dockerfile").read_text().splitlines():
        if found := re.match(r"COPY (.*) \S+$", line):
            assert all((LAUNCH.parent / name).exists() for name in found[1].split())

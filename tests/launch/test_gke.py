"""Manifests that Kubernetes and JobSet take, and what launches a server."""

import configparser
import importlib.util
import json
import re
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from cxrjax.commands.serve import parse_arguments
from tests.launch.conftest import LAUNCH
from tests.papers.cases import data

_spec = importlib.util.spec_from_file_location("gke", LAUNCH / "gke.py")
gke = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(gke)

FLAGS = ["--name=vindr", "--image=r/cxrjax:1"]
CLAIM, BUCKET = "--claim=shared", "--bucket=gs://b-1/"
COMMAND = ["--", "python", "-m", "cxrjax.train", "--config=configs/vindr_lora.py"]
COMMAND += ["--workdir=gs://b-1/runs/vindr"]

# Of JobSet's v1alpha2 what the manifest uses; Kubernetes' own Job is checked apart.
JOBSET = json.loads(Path(__file__).with_name("jobset_schema.json").read_text())
# Topology, nodes, and chips of each.
TYPES = data(__file__)["types"]


def _validate(manifest):
    """Checks a manifest by both schemas and returns the job's specification."""
    jsonschema.validate(manifest, JOBSET)
    spec = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec}
    kubernetes_validate.validate(job, "1.31", strict=True)
    return spec


def _refusal(capsys, *flags, command=COMMAND):
    with pytest.raises(SystemExit) as stopped:
        gke.main([*FLAGS, "--type=v5e-16", *flags, *command])
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("tpu_type", TYPES)
def test_manifests_are_valid_and_have_a_pod_for_each_node(capsys, tpu_type):
    topology, nodes, chips = TYPES[tpu_type]
    specs = []
    for storage in (CLAIM, BUCKET):
        flags = [*FLAGS, storage, f"--type={tpu_type}", "--dry_run", "--spot"]
        assert gke.main([*flags, *COMMAND]) == 0
        specs.append(_validate(yaml.safe_load(capsys.readouterr().out)))
    assert "volumes" in specs.pop(0)["template"]["spec"]
    (spec,) = specs
    assert "shared" not in str(spec)
    assert spec["parallelism"] == spec["completions"] == nodes
    pod = spec["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == topology
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": str(chips)}
    assert pod["containers"][0]["command"] == COMMAND[1:]


def test_manifests_are_checked_and_xpk_told_the_same(capsys):
    assert gke.main([*FLAGS, CLAIM, "--type=v5e-16", "--xpk=big", *COMMAND]) == 0
    line = capsys.readouterr().out
    assert "--tpu-type=v5litepod-16" in line
    assert "--restart-on-exit-codes=75" in line
    assert "cxrjax.train --config=configs/vindr_lora.py" in line
    manifest = gke.manifest("a", "v5e-16", "i", "c", ["true"])
    spec = _validate(manifest)
    spec["completionsMode"] = "Indexed"
    with pytest.raises(kubernetes_validate.ValidationError):
        _validate(manifest)
    manifest["spec"]["failurePolicy"]["rules"][0]["action"] = "GiveUp"
    with pytest.raises(jsonschema.ValidationError):
        _validate(manifest)


def test_what_a_cluster_would_refuse_or_xpk_would_drop(capsys):
    for flag, told in {
        "--name=Bad_Name": "--name=Bad_Name: expected lower-case letters",
        "--name=": "--name=: expected lower-case letters",
        "--claim=a b": "--claim=a b: expected lower-case letters",
        "--xpk=big": "--spot: xpk takes it where the cluster is made",
        "--service_account=A": "--service_account=A: expected lower-case letters",
        "--bucket=gs://b/x": "expected gs://NAME",
        "--bucket=gs://other": "the command names no path in gs://other",
        BUCKET: "the command names /mnt/shared, where --bucket mounts nothing",
    }.items():
        storage = () if "claim" in flag or "bucket" in flag else (CLAIM,)
        command = [*COMMAND, "--config.data.train=/mnt/shared/t"] if flag == BUCKET else COMMAND
        assert told in _refusal(capsys, "--dry_run", "--spot", *storage, flag, command=command)


MANIFESTS = list(yaml.safe_load_all((LAUNCH / "serve.yaml").read_text()))
CONTAINER = MANIFESTS[0]["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest["kind"])
def test_manifests_are_by_the_schema(manifest):
    kubernetes_validate.validate(manifest, "1.31", strict=True)


def test_clusters_pods_and_units_take_the_command(capsys, monkeypatch, tmp_path):
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
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(LAUNCH / "serve.service")
    service = unit["Service"]
    command, *words = service["ExecStart"].split()
    assert words[:2] == ["-m", "cxrjax.serve"] and command.endswith("/python")
    flags = parse_arguments(words[2:])
    assert flags.host == "127.0.0.1" and flags.token_file.name == "tokens"
    assert int(service["TimeoutStopSec"]) > 2 * flags.drain_seconds
    for line in (LAUNCH / "serve.Dockerfile").read_text().splitlines():
        if found := re.match(r"COPY (.*) \S+$", line):
            assert all((LAUNCH.parent / name).exists() for name in found[1].split())
    for tpu_type in ("v5e-3", "v5p-7", "h100-8", "v5e", "v5e-²"):
        assert "expected" in _refusal(capsys, BUCKET, f"--type={tpu_type}")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "kubectl is not installed" in _refusal(capsys, BUCKET)

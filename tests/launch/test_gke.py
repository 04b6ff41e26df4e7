"""launch/gke.py: manifests that Kubernetes and JobSet take."""

import importlib.util
import json
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.launch.conftest import LAUNCH

_spec = importlib.util.spec_from_file_location("gke", LAUNCH / "gke.py")
gke = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(gke)

FLAGS = ["--name=vindr", "--image=r/cxrjax:1", "--claim=shared"]
COMMAND = ["--", "python", "-m", "cxrjax.train", "--config=configs/vindr_lora.py"]


# Of JobSet's v1alpha2 what the manifest uses; Kubernetes' own Job is checked apart.
JOBSET = json.loads(Path(__file__).with_name("jobset_schema.json").read_text())
# Topology, nodes, and chips of each.
TYPES = {
    "v5e-1": ("1x1", 1, 1),
    "v5e-8": ("2x4", 1, 8),
    "v5e-16": ("4x4", 4, 4),
    "v5e-256": ("16x16", 64, 4),
    "v5p-8": ("2x2x1", 1, 4),
    "v5p-16": ("2x2x2", 2, 4),
    "v6e-256": ("16x16", 64, 4),
}


def _validate(manifest):
    """Checks a manifest by both schemas and returns the job's specification."""
    jsonschema.validate(manifest, JOBSET)
    spec = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec}
    kubernetes_validate.validate(job, "1.31", strict=True)
    return spec


def _refusal(capsys, *flags):
    with pytest.raises(SystemExit) as stopped:
        gke.main([*FLAGS, "--type=v5e-16", *flags, *COMMAND])
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("tpu_type", TYPES)
def test_manifests_are_valid_and_have_a_pod_for_each_node(capsys, tpu_type):
    topology, nodes, chips = TYPES[tpu_type]
    assert gke.main([*FLAGS, f"--type={tpu_type}", "--dry_run", "--spot", *COMMAND]) == 0
    spec = _validate(yaml.safe_load(capsys.readouterr().out))
    assert spec["parallelism"] == spec["completions"] == nodes
    pod = spec["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == topology
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": str(chips)}
    assert pod["containers"][0]["command"] == COMMAND[1:]


def test_the_checks_of_manifests_find_what_is_wrong():
    manifest = gke.manifest("a", "v5e-16", "i", "c", ["true"])
    spec = _validate(manifest)
    spec["completionsMode"] = "Indexed"
    with pytest.raises(kubernetes_validate.ValidationError):
        _validate(manifest)
    manifest["spec"]["failurePolicy"]["rules"][0]["action"] = "GiveUp"
    with pytest.raises(jsonschema.ValidationError):
        _validate(manifest)


def test_xpk_is_told_the_same(capsys):
    assert gke.main([*FLAGS, "--type=v5e-16", "--xpk=big", *COMMAND]) == 0
    line = capsys.readouterr().out
    assert "--tpu-type=v5litepod-16" in line
    assert "--restart-on-exit-codes=75" in line
    assert "cxrjax.train --config=configs/vindr_lora.py" in line


def test_without_kubectl(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "kubectl is not installed" in _refusal(capsys)


def test_what_a_cluster_would_refuse_or_xpk_would_drop(capsys):
    for flag, told in {
        "--name=Bad_Name": "--name=Bad_Name: expected lower-case letters",
        "--name=": "--name=: expected lower-case letters",
        "--claim=a b": "--claim=a b: expected lower-case letters",
        "--xpk=big": "--spot: xpk takes it where the cluster is made",
    }.items():
        assert told in _refusal(capsys, "--dry_run", "--spot", flag)


def test_unknown_types_name_the_known_ones(capsys):
    for tpu_type in ("v5e-3", "v5p-7", "h100-8", "v5e", "v5e-²"):
        assert "expected" in _refusal(capsys, f"--type={tpu_type}")

"""A run on a GKE cluster with TPU nodes, as a JobSet.

    python launch/gke.py --name=vindr --type=v5e-16 --image=REGISTRY/cxrjax:1 --bucket=gs://B \\
        -- python -m cxrjax.train --distributed=auto ...     # the whole of it: docs/pods.md
    python launch/gke.py --name=vindr --type=v5e-16 ... --dry_run      # prints the manifest
    python launch/gke.py --name=vindr --type=v5e-16 ... --xpk=CLUSTER  # prints the same for xpk
    kubectl logs -f -l jobset.sigs.k8s.io/jobset-name=vindr --max-log-requests=64
    kubectl delete jobset vindr                                        # saves, then frees the nodes

The cluster needs the JobSet controller, a node pool of that TPU type, and a Kubernetes service
account that may write the bucket (--service_account); or, by --claim=NAME in place of --bucket, a
volume claim that many nodes can write (Filestore; with xpk, attached by `xpk storage attach`):
docs/pods.md. A pod that is told to go saves and ends with code 75
("resume me"), and the whole set starts again; code 2 (unusable input) ends it for good.
"""

import argparse
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import yaml

SHARED = "/mnt/shared"
RESTARTS = 100
# (accelerator label, chips of a node, cores of a chip that the type's number counts). A slice on
# one v5e or v6e node may have 1, 4 or 8 chips; one of several nodes has 4 on each.
GENERATIONS = {
    "v5e": ("tpu-v5-lite-podslice", 4, 1),
    "v5p": ("tpu-v5p-slice", 4, 2),
    "v6e": ("tpu-v6e-slice", 4, 1),
}
TOPOLOGIES = {
    2: {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"},
    3: {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8"},
}
_XPK_TYPES = {"v5e": "v5litepod", "v5p": "v5p", "v6e": "v6e"}


def parse_type(tpu_type: str) -> tuple[str, str, int, int]:
    """(accelerator label, topology, nodes, chips of a node) of a type such as v5e-16.

    Raises:
        ValueError: no such type.
    """
    generation, _, size = tpu_type.partition("-")
    if generation not in GENERATIONS or not size.isdecimal():
        raise ValueError(f"--type={tpu_type}: expected v5e-N, v5p-N or v6e-N, such as v5e-16")
    label, of_node, cores = GENERATIONS[generation]
    chips, rest = divmod(int(size), cores)
    shapes = TOPOLOGIES[3 if generation == "v5p" else 2]
    if rest or chips not in shapes:
        sizes = ", ".join(f"{generation}-{n * cores}" for n in shapes)
        raise ValueError(f"--type={tpu_type}: expected one of {sizes}")
    if cores == 1 and chips <= 8:
        return label, shapes[chips], 1, chips
    return label, shapes[chips], math.ceil(chips / of_node), of_node


def manifest(
    name: str,
    tpu_type: str,
    image: str,
    claim: str | None,
    command: Sequence[str],
    spot: bool = False,
    service_account: str = "default",
) -> dict[str, Any]:
    """The JobSet: one job with a pod for each node of the slice.

    Args:
        claim: volume claim mounted at SHARED; None: data and workdir are in a bucket.

    Raises:
        ValueError: a name or type that a cluster would refuse.
    """
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        raise ValueError(f"--name={name}: expected lower-case letters, digits, dashes")
    for flag, value in (("claim", claim), ("service_account", service_account)):
        if value is not None and not re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", value):
            raise ValueError(f"--{flag}={value}: expected lower-case letters, digits, dashes, dots")
    if claim is None and any(SHARED in word for word in command):
        raise ValueError(f"the command names {SHARED}, where --bucket mounts nothing; use gs://")
    label, topology, nodes, chips = parse_type(tpu_type)
    selector = {
        "cloud.google.com/gke-tpu-accelerator": label,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    if spot:
        selector["cloud.google.com/gke-spot"] = "true"
    container: dict[str, Any] = {
        "name": "train",
        "image": image,
        "command": list(command),
        "ports": [{"containerPort": 8471}, {"containerPort": 8080}],
        "resources": {
            "requests": {"google.com/tpu": str(chips)},
            "limits": {"google.com/tpu": str(chips)},
        },
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "nodeSelector": selector,
        # Long enough to finish a step and save.
        "terminationGracePeriodSeconds": 300,
        "serviceAccountName": service_account,
        "containers": [container],
    }
    if claim is not None:
        container["volumeMounts"] = [{"name": "shared", "mountPath": SHARED}]
        pod["volumes"] = [{"name": "shared", "persistentVolumeClaim": {"claimName": claim}}]
    unusable = {
        "action": "FailJob",
        "onExitCodes": {"containerName": "train", "operator": "In", "values": [2]},
    }
    job = {
        "parallelism": nodes,
        "completions": nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [unusable]},
        "template": {"spec": pod},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "annotations": {
                "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"
            },
        },
        "spec": {
            "failurePolicy": {
                "maxRestarts": RESTARTS,
                "rules": [
                    {
                        "name": "unusable-input",
                        "action": "FailJobSet",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    }
                ],
            },
            "replicatedJobs": [{"name": "slice", "replicas": 1, "template": {"spec": job}}],
        },
    }


def _bucket(text: str) -> str:
    if not re.fullmatch(r"gs://[a-z0-9][-._a-z0-9]{1,61}[a-z0-9]/?", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected gs://NAME")
    return text.rstrip("/")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python launch/gke.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--name", required=True, help="of the JobSet; lower-case letters, digits, dashes")
    add("--type", required=True, help="v5e-16, v5p-8, v6e-256, ...")
    add("--image", required=True, help="made by launch/Dockerfile")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--bucket", type=_bucket, help="gs://NAME, with data and workdir")
    where.add_argument("--claim", help=f"volume claim that every node mounts at {SHARED}")
    add("--service_account", default="default", help="Kubernetes' own, that may write the bucket")
    add("--spot", action="store_true", help="nodes that may be taken away, at a lower price")
    add("--dry_run", action="store_true", help="print the manifest, apply nothing")
    add("--xpk", metavar="CLUSTER", help="print the xpk command for the same, apply nothing")
    add("command", nargs="+", help="what every node runs, after --")
    flags = parser.parse_args(argv)
    try:
        content = manifest(
            flags.name,
            flags.type,
            flags.image,
            flags.claim,
            flags.command,
            flags.spot,
            flags.service_account,
        )
        if flags.bucket and not any(f"{flags.bucket}/" in word for word in flags.command):
            raise ValueError(f"the command names no path in {flags.bucket}; set --workdir to one")
    except ValueError as error:
        parser.error(str(error))
    if flags.xpk:
        if flags.spot:
            parser.error("--spot: xpk takes it where the cluster is made (xpk cluster create)")
        generation, _, size = flags.type.partition("-")
        words = ["xpk", "workload", "create", f"--cluster={flags.xpk}", f"--workload={flags.name}"]
        words += [f"--tpu-type={_XPK_TYPES[generation]}-{size}", f"--docker-image={flags.image}"]
        words += [f"--max-restarts={RESTARTS}", "--restart-on-exit-codes=75"]
        words.append(f"--command={shlex.join(flags.command)}")
        print(shlex.join(words))
        return 0
    text = yaml.safe_dump(content, sort_keys=False)
    if flags.dry_run:
        print(text, end="")
        return 0
    if shutil.which("kubectl") is None:
        parser.error("kubectl is not installed; --dry_run prints the manifest without it")
    # Applying what is there already changes nothing.
    return subprocess.run(["kubectl", "apply", "-f", "-"], input=text, text=True).returncode


if __name__ == "__main__":
    sys.exit(main())

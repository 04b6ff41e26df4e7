"""launch/tpu_vm.sh against a gcloud that notes its calls and runs a worker's commands here."""

import shlex
import time

import pytest

from tests.launch.conftest import LAUNCH

TYPE = "--type=v5e-16"


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def ready(pod):
    """A worker with the code installed."""
    (pod.worker / "cxrjax").mkdir()
    return pod


def log_of(pod):
    file = pod.worker / "cxrjax" / "runs" / "r.log"
    return file.read_text() if file.exists() else ""


def test_a_pod_is_made_once_and_deleted_once(pod):
    assert pod("create", TYPE, "--spot").returncode == 0
    assert "there already" in pod("create", TYPE, "--spot").stdout
    (call,) = pod.calls("queued-resources create")
    assert "--accelerator-type=v5litepod-16" in call
    assert "--runtime-version=v2-alpha-tpuv5-lite" in call
    assert "--spot" in call and "--zone=z" in call
    assert pod("delete").returncode == 0
    assert "gone already" in pod("delete").stdout
    assert len(pod.calls("queued-resources delete")) == 1


def test_a_dry_run_asks_for_nothing(pod):
    for verb, *flags in (
        ("create", TYPE),
        ("create", TYPE, "--bucket=gs://b-1"),
        ("install", "--share=10.0.0.2:/cxr"),
        ("install", "--bucket=gs://b-1/"),
        ("run", "--run=r", "--", "python", "-m", "cxrjax.train", "--config=a b.py"),
        ("logs", "--run=r"),
        ("stop", "--run=r"),
        ("delete",),
    ):
        done = pod(verb, "--dry_run", *flags)
        assert done.returncode == 0, done.stderr
        assert "gcloud compute tpus" in done.stdout and "asked for" not in done.stdout
        with_bucket = "gs://b-1" in done.stdout and "mount" not in done.stdout
        assert with_bucket == ("--bucket" in "".join(flags))
    assert not pod.calls("")


def test_the_page_leads_to_a_resumed_run_in_eight_commands(pod):
    page = (LAUNCH.parent / "docs/pods.md").read_text().partition("## 1.")[2].partition("\n## ")[0]
    blocks = "".join(line[4:] + "\n" for line in page.splitlines() if line.startswith("    "))
    commands = blocks.replace("\\\n", "").splitlines()
    assert len(commands) <= 8 and sum(" run " in one for one in commands) == 2
    for words in map(shlex.split, commands):
        if words[0] == "launch/tpu_vm.sh":
            done = pod(words[1], "--dry_run", *words[2:])
            assert done.returncode == 0, done.stderr


def test_a_run_goes_on_when_its_code_says_resume_me(ready):
    script = 'echo "try $1"; [ -e second ] && exit 3; touch second; exit 75'
    assert ready("run", "--run=r", "--", "bash", "-c", script, "bash", "it's one").returncode == 0
    wait_for(lambda: "ended with code" in log_of(ready))
    assert log_of(ready) == "try it's one\ntry it's one\nended with code 3\n"


def test_a_run_is_started_once_and_saves_when_it_is_stopped(ready):
    program = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); "
        "print('up', flush=True); time.sleep(60)"
    )
    command = ("--run=r", "--", "python3", "-c", program)
    assert ready("run", *command).returncode == 0
    wait_for(lambda: "up" in log_of(ready))
    assert "running already" in ready("run", *command).stdout
    assert ready("stop", "--run=r").returncode == 0
    wait_for(lambda: "ended with code 75" in log_of(ready))
    assert log_of(ready).count("up") == 1
    assert "not running" in ready("stop", "--run=r").stdout


def test_unusable_flags_end_in_one_line(pod, subtests):
    unknown = ("create --type=v9-16", "create --type=v5e-", "create --type=v5e-16x")
    refused = dict.fromkeys(unknown, "expected v5e-N, v5p-N or v6e-N")
    refused |= {"fly": "expected create, install, run", "create": "needs --type"}
    refused |= {"create --typo=1": "unknown flag '--typo=1'", "install": "needs --bucket"}
    refused |= {"install --share=10.0.0.2:/a;reboot": "expected SERVER:/FOLDER"}
    refused |= {"create --bucket=s3://a": "expected gs://NAME"}
    refused |= {"run --run=a/b -- true": "needs --run=NAME", "run --run=r": "needs a command"}
    for words, told in refused.items():
        with subtests.test(words):
            done = pod(*words.split())
            assert done.returncode == 2
            assert told in done.stderr and done.stderr.count("\n") == 1
            assert not pod.calls("create")

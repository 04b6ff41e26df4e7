"""The command, the estimate and the searches; real TPU compilations are slow and apart."""

import dataclasses
import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from cxrjax.apps.planner import choice, estimate, gpu, plans, program, search
from cxrjax.apps.planner.estimate import StepEstimate, collective_seconds, roofline
from cxrjax.apps.planner.hlo import Collective, Program, Work
from cxrjax.apps.planner.plans import Measured, Plan, make_plan
from cxrjax.apps.planner.program import (
    DoesNotFitError,
    Memory,
    batch_shape,
    compile_program,
    step_inputs,
)
from cxrjax.commands import plan as plan_command
from cxrjax.distributed import meshes
from cxrjax.distributed.hardware import GIB, parse_topology
from cxrjax.errors import UserError
from cxrjax.models import presets
from cxrjax.models.flops import Flops
from cxrjax.models.layers import REMAT
from cxrjax.training.config_file import load_config
from cxrjax.training.workdir import write_json
from tests.papers.cases import cases, data

_PER_CHIP = "hbm_bytes_per_chip hbm_limit_bytes collective_bytes_per_chip"
KEYS = {
    *_PER_CHIP.split(),
    *["fits", "chips", "flops_per_step", "step_seconds_estimate", "mfu_estimate"],
}
VINDR = "configs/vindr_lora.py"
PHANTOM = ("--config=configs/vindr_lora.py:phantom", "--config.model.attention=dense")
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu, the TPU's compiler, is not installed (pip install cxrjax[plan])",
)


def _json(capsys, *arguments):
    plan_command.main([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def test_gpus_by_formula_and_full_fine_tuning_on_several(capsys):
    said = _json(capsys, f"--config={VINDR}", "--topology=a100-80-1", "--formula")
    assert said.keys() >= KEYS
    assert said["source"] == "formula" and said["compiler"]["memory"] is None
    assert said["chips"] == 1 and said["fits"] is True
    # 4.3 billion parameters in bfloat16.
    assert 8 * GIB < said["hbm_bytes_per_chip"] < 20 * GIB
    assert said["collective_bytes_per_chip"] == 0
    assert 0.3 < said["mfu_estimate"] <= 1
    plan_command.main([f"--config={VINDR}", "--topology=a100-80-1", "--formula"])
    assert "by formula only; nothing was compiled" in capsys.readouterr().out
    one = ("--config=configs/gemex_sft.py", "--config.training.accumulation_steps=8")
    one += ("--topology=h100-1",)
    assert _json(capsys, *one)["fits"] is False  # 16 bytes for each of 3.9 billion, and the rest
    eight = ("--config=configs/gemex_sft.py", "--topology=h100-8")
    said = _json(capsys, *eight)
    assert said["fits"] is True and said["collective_bytes_per_chip"] > 1e9


@pytest.mark.parametrize(("topology", "told"), [("h100-8", False), ("h100-16", True)])
def test_links_between_machines_of_gpus_are_said_to_be_no_nvlink(capsys, topology, told):
    one = "--config.training.accumulation_steps=1"
    plan_command.main([f"--config={VINDR}", f"--topology={topology}", one])
    assert ("as if NVLink joined all GPUs" in capsys.readouterr().out) == told


_UNUSABLE = Path(__file__).with_name("unusable_arguments.txt").read_text().splitlines()


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=pytest.mark.slow) if "h100-16" in line else line
        for line in _UNUSABLE
        if line[0] != "#"
    ],
)
def test_unusable_arguments(line, capsys):
    flags, _, told = line.replace("CONFIG", f"--config={VINDR}").partition("=> ")
    if "compiler for GPUs" in told and gpu.is_installed():
        pytest.skip("XLA's compiler for GPUs is installed")
    with pytest.raises((UserError, SystemExit)) as error:
        plan_command.main(flags.split())
    last = str(error.value)
    if isinstance(error.value, SystemExit):  # by the parser
        assert error.value.code == 2
        last = capsys.readouterr().err.splitlines()[-1]
    assert told in last and "\n" not in last


def test_micro_batches_follow_the_mesh_and_a_batch_that_is_too_small_is_told(capsys):
    flagship = (f"--config={VINDR}", "--formula")
    for topology in ("h200-8", "v5e-8"):
        said = _json(capsys, *flagship, f"--topology={topology}")
        assert (said["batch_images"], said["accumulation_steps"]) == (16, 2)
    with pytest.raises(UserError, match="16 images does not divide over 32") as error:
        plan_command.main([*flagship, "--topology=h100-32"])
    (way,) = re.findall(r"--config\.training\.\w+=\d+", str(error.value))
    assert _json(capsys, *flagship, "--topology=h100-32", way)["fits"] is True


def test_without_libtpu_or_the_compiler_plans_are_by_formula_and_say_so(capsys, monkeypatch):
    monkeypatch.setattr(plans.importlib.util, "find_spec", lambda name: None)
    flags = ("--topology=v5e-8", "--kept_only", "--config.training.batch_questions=128")
    plan_command.main([f"--config={VINDR}", *flags, "--json"])
    said = capsys.readouterr()
    assert json.loads(said.out)["source"] == "formula"
    assert "libtpu says, and it is not installed" in said.err
    monkeypatch.setattr(gpu, "is_installed", lambda: False)
    plan_command.main([f"--config={VINDR}", "--topology=h100-8", "--json"])
    said = capsys.readouterr()
    assert json.loads(said.out)["source"] == "formula" and "cxrjax[plan-gpu]" in said.err


def test_batches_are_the_largest_that_configurations_meet_and_chips_hold():
    config = load_config("configs/vindr_lora.py:phantom")
    shape = batch_shape(config)
    assert (shape.images, shape.questions, shape.prefix, shape.answer) == (8, 12, 16, 48)
    batch = step_inputs(config).batch
    assert batch.images.shape == (8, 128, 128, 3)
    assert batch.digits is None and batch.box_mask.shape == (8, 12, config.data.max_boxes)
    digits = step_inputs(load_config(VINDR)).batch.digits  # the paper's pixels in digits
    assert digits is not None and digits.positions.shape[:2] == (16, 1)
    for name in ("h100", "h200", "a100-80", "l40s"):
        topology = parse_topology(f"{name}-8")
        text, chip = gpu.target_config(topology), topology.chip
        numbers = dict(re.findall(r"(\w+): (\d+)", text))
        assert abs(int(numbers["device_memory_size"]) / chip.hbm_bytes - 1) < 0.07
        assert abs(int(numbers["memory_bandwidth"]) / chip.hbm_bandwidth - 1) < 0.01
        assert chip.device_kinds[0] in text and gpu.can_compile(topology)
    assert not gpu.can_compile(parse_topology("b200-8"))


def test_arguments_by_formula_are_those_of_the_shardings():
    config = load_config(VINDR, ["--config.mesh.fsdp=4", "--config.training.batch_questions=32"])
    topology = parse_topology("v5e-8")
    inputs = step_inputs(config)
    mesh = estimate.abstract_mesh(config, topology)
    assert mesh.shape["data"] == 2 and mesh.shape["fsdp"] == 4
    whole = estimate._bytes(None, inputs.frozen)
    cut = estimate._bytes(mesh, inputs.frozen)
    assert whole / 4 <= cut < whole / 4 * 1.01  # what stays whole is small
    assert estimate._bytes(mesh, inputs.frozen, over=("tensor",)) == whole
    assert set(mesh.shape) == set(meshes.AXES)


def test_roofline_takes_the_slower_of_work_and_memory_and_adds_what_is_awaited():
    topology = parse_topology("v5e-8")
    chip = topology.chip
    work = (
        Work("product", 10, chip.flops * 0.01, 0),  # 0.1 s of products
        Work("copy", 2, 0, chip.hbm_bandwidth * 0.1),  # 0.2 s of memory
    )
    alone = roofline(Program(work, (), 0), topology)
    assert alone.step == pytest.approx(0.3) and alone.limit == "hbm"
    sent = chip.link_bandwidth / 2 * 0.5
    for overlapped, begun, awaited, step in data(__file__)["awaited"]:
        collective = Collective("all-reduce", 1, 0, 8, sent, overlapped, begun, awaited)
        found = roofline(Program(work, (collective,), 0), topology)
        assert found.step == pytest.approx(step, abs=1e-4) and found.limit == "links"
    two = tuple(Collective("all-gather", 1, 0, 8, sent, True, begun, 2) for begun in (0, 1))
    assert roofline(Program(work, two, 0), topology).step == pytest.approx(1.0, abs=1e-4)


def test_times_of_kernels_and_of_small_messages():
    topology = parse_topology("v5e-8")
    work = (Work("product", 1, topology.chip.flops * 0.3, 0),)
    for kernels, step in ((0, 0.3), (4, 0.5)):
        found = roofline(Program(work, (), 0, kernels), topology, topology.chip.flops * 0.5)
        assert found.step == pytest.approx(step)
    near, far = parse_topology("v5e-16"), parse_topology("v5e-256")
    assert collective_seconds(0, 256, far) == pytest.approx(5 * collective_seconds(0, 16, near))
    assert collective_seconds(0, 1, parse_topology("v5e-1")) == 0


def _fake(slope, base=4 * GIB, limit=16 * GIB):
    """Plans whose memory is a line; counts them."""
    made = []

    def plan(config, **_):
        made.append(config.batch_images)
        peak = int(base + slope * made[-1])
        memory = Memory(base, 0, 0, peak - base, peak)
        guess = estimate.Guess(memory, {}, StepEstimate(1.0, 1.0, 0.0, 0.0))
        return Plan(config, parse_topology("v5e-8"), {"all": Flops(1.0)}, None, guess)

    return plan, made


_THIRTY_TWO = ("--config.training.batch_questions=32", "--config.training.accumulation_steps=4")


@pytest.mark.parametrize("slope_mib", [7, 40, 90, 383])
def test_find_batch_finds_the_largest(slope_mib):
    config = load_config(VINDR, _THIRTY_TWO)
    plan, made = _fake(slope_mib * 2**20)
    found, too_large = search.find_batch(config, parse_topology("v5e-8"), plan, 12)
    expected = int(12 * 1024 / slope_mib) // 32 * 32
    assert found.config.batch_images == expected
    assert too_large.config.batch_images == expected + 32
    assert len(made) == len(set(made)) <= 8


def test_find_batch_where_nothing_fits_and_other_failures_stay_what_they_are():
    config = load_config(VINDR, _THIRTY_TWO)
    topology = parse_topology("v5e-8")
    plan, _ = _fake(GIB)
    assert search.find_batch(config, topology, plan)[0] is None
    plan, made = _fake(1)
    found, too_large = search.find_batch(config, topology, plan, 3)
    assert len(made) == 3 and too_large is None and found.config.batch_images == max(made)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        compile_program(Lowered("INTERNAL: something else"))


@pytest.mark.slow
def test_sweep_prefers_what_fits_and_is_fast(capsys):
    arguments = [f"--config={VINDR}", "--topology=h100-8", "--sweep"]
    plan_command.main([*arguments, "--config.training.batch_questions=128"])
    out = capsys.readouterr().out
    assert "best: " in out and "formula" in out
    lines = [line for line in out.splitlines() if " yes " in line or " no " in line]
    seconds = [float(line.split()[-3]) for line in lines if " yes " in line]
    assert len(lines) >= 8 and seconds == sorted(seconds)


def _compiled(topology, config, collective_bytes):
    """A plan as if its program had been compiled."""
    work = (Work("product", 1, topology.chip.flops, 0),)
    ring = Collective("all-reduce", 1, collective_bytes, topology.chips, 0.0, False)
    measured = Measured(Memory(0, 0, 0, GIB, GIB), None, None, Program(work, (ring,), 0), 1.0)
    return Plan(config, topology, {"all": Flops(1.0)}, measured, None)


@pytest.mark.parametrize("of_compiler", [{"v5e-8", "v5e-16"}, {"v5e-16", "v5e-256"}])
def test_table_says_who_says_what_and_compares_no_formula_with_a_compiler(monkeypatch, of_compiler):
    def plan(config, topology, compiled=True):
        if compiled and topology.vendor_name in of_compiler:
            return _compiled(topology, config, 10**6 * topology.chips)
        return make_plan(config, topology, compiled=False)

    printed = importlib.import_module("docs.planning_tables")
    monkeypatch.setattr(printed, "RECIPES", printed.RECIPES[:1])
    told = []
    tabled = printed.tables(plan, told.append)
    rows, scaling = (part.splitlines()[2:] for part in tabled.split("\n\n"))
    assert len(told) == len(rows) == 6
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[-1] == ("compiler" if cells[1] in of_compiler else "formula")
    cells = [cell.strip() for cell in scaling[0].strip("|").split("|")]
    if "v5e-256" in of_compiler:  # 16 MB and 256 MB
        assert cells[1:4] == ["16.0", "256.0", "1500.0%"] and cells[-1] == "compiler"
    else:
        assert cells[3] == "0.0%" and cells[-1] == "formula"


def test_flags_of_compilers_tell_kept_figures_apart(monkeypatch, tmp_path):
    pytest.importorskip("libtpu")  # its version is told apart as well
    lowered = SimpleNamespace(as_text=lambda: "the program")
    topology = parse_topology("v5e-8")
    files = set()
    for value in ("", "--xla_tpu_some_flag=true"):
        monkeypatch.setenv("LIBTPU_INIT_ARGS", value)
        files.add(plans.file_of(lowered, topology, tmp_path))
    assert len(files) == 2 and plans.file_of(lowered, topology, None) is None


@pytest.mark.parametrize(
    ("content", "told"), [(None, "--kept="), ('{"memory": nul', "not JSON"), ("[]", "JSON object")]
)
def test_unusable_kept_figures_are_told_before_anything_is_compiled(
    monkeypatch, tmp_path, content, told
):
    monkeypatch.setattr(program, "compile_program", lambda lowered: pytest.fail("compiled"))
    file = tmp_path / "kept" / "a.json"
    if content is None:
        (tmp_path / "kept").touch()  # a file where a folder is wanted
    else:
        file.parent.mkdir()
        file.write_text(content)
    with pytest.raises(UserError, match=told):
        plans.measure(None, parse_topology("v5e-8"), "the step", file, lambda line: None)


@needs_libtpu
@pytest.mark.slow
def test_kept_only_compiles_no_decode_loop_either(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "compile_program", lambda lowered: pytest.fail("compiled"))
    config = load_config("configs/vindr_lora.py:phantom", ["--config.model.attention=dense"])
    topology = parse_topology("v5e-1")
    measured = _compiled(topology, config, 0).measured
    lowered = program.lower_step(config, program.devices_of(topology))
    write_json(plans.file_of(lowered, topology, tmp_path), measured.to_json())
    told = []
    options = {"kept_only": True, "decode": True, "kept": tmp_path, "log_line": told.append}
    plan = make_plan(config, topology, **options)
    assert plan.measured == measured and plan.decode is None
    assert told == ["v5e:1x1: no figures of the decode loop are kept"]


@needs_libtpu
@pytest.mark.heavy
def test_compiled_for_a_slice_that_is_not_there(capsys, tmp_path):
    """The tiny model's step for eight v5e chips; a second look compiles nothing."""
    arguments = [*PHANTOM, "--topology=v5e-8", f"--kept={tmp_path}", "--config.model.unroll=False"]
    arguments += ["--config.mesh.fsdp=2", "--config.training.batch_images=64"]
    said = _json(capsys, *arguments)
    assert said.keys() >= KEYS and said["fits"] and said["source"] == "compiler"
    memory = said["compiler"]["memory"]
    assert 0 < memory["arguments"] < memory["peak"] < GIB
    assert said["collective_bytes_per_chip"] > 0 and said["compiler"]["unknown_loops"] == 0
    computed = 8 * said["compiler"]["flops_per_chip"]
    needed = said["flops_per_step"] + said["model"]["flops_recomputed"]
    # 0.950 was found: some of the smallest products become sums of elementwise ones.
    assert 0.85 * needed < computed < 1.1 * needed
    for look in ([], ["--kept_only"]):
        assert _json(capsys, *arguments, *look)["source"] == "compiler"
        assert "compiling" not in capsys.readouterr().err


@needs_libtpu
@pytest.mark.heavy
def test_compiled_for_two_slices_that_are_not_there(capsys, tmp_path):
    arguments = [*PHANTOM, "--topology=v5e-4x2", f"--kept={tmp_path}"]
    arguments += ["--config.model.unroll=False", "--config.training.batch_images=64"]
    said = _json(capsys, *arguments, "--config.mesh.slices=2")
    assert said["source"] == "compiler" and said["across_slices"]["collectives"] > 1
    # Gradients of LoRA in float32, 3.7 MB; what a slice keeps to itself is in the hundreds.
    assert 1e6 < said["across_slices"]["bytes_per_chip"] < 1e7


@needs_libtpu
@pytest.mark.heavy
def test_what_does_not_fit_is_told_with_sizes(capsys, tmp_path):
    arguments = [*PHANTOM, "--topology=v5e-1", f"--kept={tmp_path}", "--config.model.unroll=False"]
    arguments += ["--config.training.batch_images=8192", "--config.training.logit_chunk=1000000"]
    said = _json(capsys, *arguments)
    assert said["fits"] is False and said["hbm_bytes_per_chip"] > said["hbm_limit_bytes"] > 15 * GIB


class Lowered:
    def __init__(self, message):
        self.message = message

    def compile(self):
        raise jax.errors.JaxRuntimeError(self.message)


@cases("message, sizes")
def test_sizes_are_read(message, sizes):
    with pytest.raises(DoesNotFitError) as raised:
        compile_program(Lowered(f"RESOURCE_EXHAUSTED: {message}"))
    found = raised.value.needed, raised.value.limit
    assert found == tuple(int(size * GIB) for size in sizes)


def test_what_a_search_has_found_is_taken_where_remat_is_auto(tmp_path, capsys):
    auto = ["--config.model.remat=auto", "--config.training.batch_questions=128"]
    config, topology = load_config(VINDR, auto), parse_topology("v5e-8")
    told = []
    by_formula = choice.resolved_for(config, topology, tmp_path, told.append)
    assert by_formula.model.remat in REMAT and "(by formula)" in told[-1]
    again = make_plan(by_formula, topology, compiled=False)
    assert again.memory.peak < 0.8 * topology.chip.hbm_bytes
    mesh = {"replica": 1, "data": 8, "fsdp": 1, "tensor": 1}
    compiled = _compiled(topology, config, 0)
    for remat, count, plan in (
        ("none", 1, None),
        ("products", 16, compiled),
        ("full", 4, compiled),
    ):
        found = search.Choice(mesh, remat, count, compiled, plan)
        choice.store([found], config, topology, tmp_path)
    stored = choice.resolved_for(config, topology, tmp_path, told.append)
    assert (stored.model.remat, stored.training.accumulation_steps) == ("full", 4)
    assert "full with 4 micro-batches (by plan --sweep)" in told[-1]
    # Another program, another slice, or a damaged file: by formula.
    other = load_config(VINDR, [*auto, "--config.lora.rank=8"])
    for case in ((other, topology), (config, parse_topology("v5e-16"))):
        choice.resolved_for(*case, tmp_path, told.append)
        assert "(by formula)" in told[-1]
    (file,) = tmp_path.glob("choice-*.json")
    file.write_text(file.read_text().replace('"full"', '"fool"'))
    choice.resolved_for(config, topology, tmp_path, told.append)
    assert "(by formula)" in told[-1]
    cpu = choice.resolved(config, jax.devices(), tmp_path, told.append)
    assert cpu.model.remat == "none" and "no figures of cpu" in told[-1]


def test_a_search_takes_the_fewest_micro_batches_that_fit():
    config = load_config(VINDR, ["--config.training.batch_questions=128"])
    topology = parse_topology("v5e-8")

    def plan(config, compiled=True):
        share = 16 // config.training.accumulation_steps
        peak = 2 * GIB * share + (3 * GIB if compiled else 0)
        memory = Memory(0, 0, 0, peak, peak)
        measured = Measured(memory, None, None, Program((Work("p", 1, 1e12, 0),), (), 0), 1.0)
        guess = estimate.Guess(memory, {}, StepEstimate(1.0, 1.0, 0.0, 0.0))
        flops = {"all": Flops(1.0)}
        return Plan(config, topology, flops, *((measured, None) if compiled else (None, guess)))

    found = search.sweep(config, topology, plan, 2)
    best = found[0]
    # Eight images a device by formula, which then do not fit; four do.
    assert best.compiled is not None and best.plan.fits and best.micro_batches == 4
    assert f"--config.training.accumulation_steps={4}" in search.sweep_table(found)


needs_gpu_compiler = pytest.mark.skipif(
    not gpu.is_installed(),
    reason="XLA's compiler for GPUs is not installed (pip install cxrjax[plan-gpu])",
)
# Two layers each of decoder and tower, as wide as MedGemma 4B's decoder is for its head size.
_TWO_LAYERS = {"width": 512, "mlp_dim": 1024, "depth": 2, "vocab_size": 4096}


@needs_gpu_compiler
@pytest.mark.slow
def test_a_gpu_step_copies_no_weights_and_keeps_little_in_float32(monkeypatch, tmp_path):
    """Counts of a compiled step, so that a regression shows without a GPU."""
    whole = presets.PRESETS["medgemma_4b"]
    vision = dataclasses.replace(whole.vision, depth=2, image_size=224)
    decoder = dataclasses.replace(whole.decoder, **_TWO_LAYERS)
    sizes = dataclasses.replace(whole, vision=vision, decoder=decoder)
    monkeypatch.setitem(presets.PRESETS, "medgemma_4b", sizes)
    keys = ["data.feature_cache=None", "training.accumulation_steps=1", "model.remat=none"]
    keys += ["training.batch_questions=4", "data.answer_buckets=(64,)"]
    config = load_config(VINDR, [f"--config.{key}" for key in keys])
    made = {}
    for unroll in (None, False):
        model = dataclasses.replace(config.model, unroll=unroll)
        found = make_plan(dataclasses.replace(config, model=model), parse_topology("h100"))
        made[unroll] = found.measured.program
        assert found.fits and found.measured.program.kernels > 0
    assert made[None].launches < 0.8 * made[False].launches
    for name, most in (("dynamic_slice_fusion", 3), ("dynamic_update_slice_fusion", 3)):
        out, stacked = (sum(w.times for w in made[u].work if name in w.name) for u in made)
        assert out <= most < stacked

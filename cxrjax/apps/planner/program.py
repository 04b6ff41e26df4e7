"""The very step of `train` and its decode loop as programs, made of shapes alone."""

import contextlib
import dataclasses
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cxrjax.apps.planner import gpu
from cxrjax.codecs import get_codec
from cxrjax.decoding.generate import generate
from cxrjax.decoding.grammar import FREE_TEXT, compile_grammar
from cxrjax.decoding.strategy import read_strategy
from cxrjax.distributed import meshes
from cxrjax.distributed.hardware import Topology
from cxrjax.errors import UserError
from cxrjax.input_pipeline.batch import Batch, empty_batch
from cxrjax.models import VLM, partition
from cxrjax.models.flops import BatchShape
from cxrjax.models.splash import resolve_attention
from cxrjax.training import checkpoint, step
from cxrjax.training.base_model import model_sizes, unrolls
from cxrjax.training.config import ExperimentConfig
from cxrjax.training.data import example_config
from cxrjax.training.optimizer import make_optimizer
from cxrjax.training.policy_config import PolicyConfig
from cxrjax.training.rl.policy_loss import Experience

# Steps of the whole run, of which the program has the schedule's numbers and nothing else.
_ANY_STEPS = 1000
# What libtpu wants to know where there is no TPU, and that two of it may run at a time.
_LIBTPU_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


class DoesNotFitError(Exception):
    """The compiler needs more bytes of a chip than its limit; None where it does not say."""

    def __init__(self, needed: int | None, limit: int | None) -> None:
        super().__init__(f"needs {needed} of {limit} bytes")
        self.needed, self.limit = needed, limit


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of HBM on each chip, by the compiler; `aliased` outputs replace arguments."""

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    peak: int


class StepInputs(NamedTuple):
    """Arguments that a step is compiled for; shapes, no arrays."""

    graphdef: Any
    state: step.TrainState
    frozen: Any
    batch: Any


def can_compile(topology: Topology) -> bool:
    """Returns whether steps for a slice are compiled here; without libtpu that is an error."""
    return topology.chip.kind == "tpu" or (gpu.can_compile(topology) and gpu.is_installed())


def devices_of(topology: Topology) -> list[Any]:
    """The devices of a slice that is not there, for compiling alone.

    Raises:
        UserError: the compiler is not installed, or does not know the slice.
    """
    from jax.experimental import topologies

    if topology.chip.kind == "gpu":
        what, extra, how = "GPUs", "plan-gpu", gpu.description(topology)
    else:
        what, extra, how = "TPUs", "plan", _tpu_description(topology)
    try:
        return list(topologies.get_topology_desc(**how).devices)
    except Exception as error:
        text = (str(error).strip().splitlines() or [repr(error)])[0]
        raise UserError(
            f"{topology.name}: cannot compile for {what} here ({text}); install the compiler (pip "
            f"install 'cxrjax[{extra}]'), or take --formula, which needs none"
        ) from None


def _tpu_description(topology: Topology) -> dict[str, Any]:
    for name, value in _LIBTPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # A process has 4 chips of a cube and of a square; the smallest slice is a part of a host.
    more: dict[str, Any] = {"chips_per_host_bounds": (1, 1, 1)} if topology.chips == 1 else {}
    if topology.slices > 1:
        more["num_slices"] = topology.slices
    return {"platform": "tpu", "topology_name": topology.slice_name, **more}


def batch_shape(config: ExperimentConfig) -> BatchShape:
    """The largest batch that the configuration can meet; of reinforcement learning, of answers.

    Raises:
        UserError: training would refuse its lengths.
    """
    examples = example_config(config)
    sources = [config.of_source(name).data for name in config.mixture.sources]
    sources = sources or [config.data]
    learns_policy = config.rl.kind != "none"
    return BatchShape(
        images=config.batch_images,
        questions=max(data.questions_per_image for data in sources)
        * (config.rl.group_size if learns_policy else 1),
        prefix=examples.prefix_buckets[-1],
        answer=config.decoding.max_answer_tokens if learns_policy else examples.answer_buckets[-1],
        boxes=examples.max_boxes,
        from_features=config.data.feature_cache is not None,
        two_images=config.data.earlier_images,
    )


def step_inputs(config: ExperimentConfig) -> StepInputs:
    """State, frozen parameters and largest batch of a configuration."""
    model = checkpoint.abstract_model(config)
    vision = model.config.vision
    if vision is None:
        raise UserError(f"model.preset={config.model.preset!r} takes no images: nothing to plan")
    graphdef, trainable, frozen = partition(model, config.trainable)
    frozen = jax.eval_shape(lambda f: step.cast_params(f, config.model.frozen_dtype), frozen)
    optimizer = make_optimizer(config.optimizer, _ANY_STEPS)
    state = jax.eval_shape(lambda t: step.init_state(t, optimizer), trainable)
    shape = batch_shape(config)
    several = (2,) if shape.two_images else ()
    image = np.zeros((*several, *vision.image_hw, 3), np.uint8)
    if shape.from_features:
        image = np.zeros((vision.num_tokens, vision.feature_width), jnp.dtype(config.model.dtype))
    digits = 0
    if config.box_route == "digits":
        digits = get_codec(config.data.codec).max_digits
    empty = empty_batch(
        1,
        image,
        shape.questions,
        shape.prefix,
        shape.answer,
        shape.boxes,
        None,
        digits,
        # Which ids they are is the tokenizer's business; the program is the same.
        tuple(range(10)) if digits else (),
    )
    batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((shape.images, *x.shape[1:]), x.dtype), empty
    )
    if config.rl.kind == "none":
        return StepInputs(graphdef, state, frozen, batch)
    by_answer: Any = jax.ShapeDtypeStruct((shape.images, shape.questions), jnp.float32)
    by_token: Any = jax.ShapeDtypeStruct(batch.answer_tokens.shape, jnp.float32)
    old = by_token if config.rl.updates > 1 else None
    experience = Experience(batch, by_answer, by_answer, by_token, old, {"reward": by_answer})
    return StepInputs(graphdef, state, frozen, experience)


def lower_step(config: ExperimentConfig, devices: Sequence[Any]) -> Any:
    """The step of `train`, lowered for devices that need not be there.

    Raises:
        UserError: the mesh does not fit the devices, or the batch the mesh.
    """
    mesh = meshes.make_mesh(config.mesh, devices)
    meshes.check_batch_divides(mesh, config.batch_images, config.training.batch_questions)
    config = _with_kernels_of(config, devices)
    inputs = step_inputs(config)
    function = step.make_train_step(inputs.graphdef, config, _ANY_STEPS, mesh)
    compiled = step.compile_train_step(function, mesh, inputs.state, inputs.frozen)
    with _lowering(devices):
        return compiled.lower(inputs.state, inputs.frozen, inputs.batch)  # type: ignore[attr-defined]


def lower_rollouts(config: ExperimentConfig, devices: Sequence[Any]) -> Any:
    """The drawing of a step's answers in reinforcement learning, on the mesh of the step.

    Raises:
        UserError: as `lower_step`.
    """
    from cxrjax.training.rl.rollouts import rollout_strategy  # it brings the reader of answers

    mesh = meshes.make_mesh(config.mesh, devices)
    config = _with_kernels_of(config, devices)
    supervised = dataclasses.replace(config, rl=PolicyConfig())
    inputs = step_inputs(supervised)
    strategy = rollout_strategy(config, read_strategy(config.decoding).stop_ids)
    batch = inputs.batch
    asked = (batch.images, batch.prefix_tokens, batch.prefix_mask, batch.question_index)

    def draw(trainable: Any, frozen: Any, asked: Any) -> Any:
        with meshes.mesh_of_kernels(mesh):
            model: VLM = nnx.merge(inputs.graphdef, trainable, frozen)
            seed = jnp.zeros((), jnp.uint32)
            images, tokens, mask, index = asked
            answers = generate(model, images, tokens, mask, index, strategy, seed=seed, mesh=mesh)
            return answers.tokens

    trained = inputs.state.trainable
    rows = meshes.batch_sharding(mesh)
    shardings = (*(meshes.tree_shardings(mesh, x) for x in (trained, inputs.frozen)), rows)
    compiled = jax.jit(draw, in_shardings=shardings, out_shardings=rows)
    with _lowering(devices):
        return compiled.lower(trained, inputs.frozen, asked)


def lower_decode(config: ExperimentConfig, devices: Sequence[Any]) -> Any:
    """Prefill and the decode loop for one batch of questions, rows over all devices.

    Parameters are replicated and no grammar is applied where none is needed: what the model
    itself takes.

    Raises:
        UserError: the batch does not divide.
    """
    mesh = Mesh(np.asarray(devices), ("data",))
    inputs = step_inputs(_with_kernels_of(config, devices))
    images = config.batch_images
    if images % len(devices):
        raise UserError(f"a batch of {images} images does not divide over {len(devices)} devices")
    strategy = read_strategy(config.decoding)
    grammar = compile_grammar(FREE_TEXT) if strategy.boxes == "expected_iou" else None
    rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    trained = jax.eval_shape(
        lambda t: step.cast_params(t, config.model.frozen_dtype), inputs.state.trainable
    )

    def answer(trainable: Any, frozen: Any, batch: Batch) -> Any:
        model: VLM = nnx.merge(inputs.graphdef, trainable, frozen)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # splash.py splits rows by it
            return generate(
                model,
                jnp.asarray(batch.images),
                jnp.asarray(batch.prefix_tokens),
                jnp.asarray(batch.prefix_mask),
                jnp.asarray(batch.question_index),
                strategy,
                grammar,
            )

    compiled = jax.jit(answer, in_shardings=(whole, whole, rows), out_shardings=rows)
    with _lowering(devices):
        return compiled.lower(trained, inputs.frozen, inputs.batch)


def _with_kernels_of(config: ExperimentConfig, devices: Sequence[Any]) -> ExperimentConfig:
    """The configuration with the attention and loops over layers that these devices have."""
    model = config.model
    attention = resolve_attention(model.attention, devices[0], model.dtype, model_sizes(config))
    unroll = unrolls(model.unroll, devices[0])
    model = dataclasses.replace(model, attention=attention, unroll=unroll)
    return dataclasses.replace(config, model=model)


def compile_program(lowered: Any) -> Any:
    """Compiles what was lowered.

    Raises:
        DoesNotFitError: the compiler ran out of memory of the chip.
    """
    try:
        with _quiet():
            return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        text = str(error)
        if "RESOURCE_EXHAUSTED" not in text and "CompileTimeHbmOom" not in text:
            raise
        raise DoesNotFitError(*_sizes_in(text)) from None


def memory_of(compiled: Any) -> Memory:
    """The compiler's account of one device's memory."""
    found = compiled.memory_analysis()
    arguments, outputs = found.argument_size_in_bytes, found.output_size_in_bytes
    aliased, temporaries = found.alias_size_in_bytes, found.temp_size_in_bytes
    peak = getattr(found, "peak_memory_in_bytes", 0)
    return Memory(
        arguments,
        outputs,
        aliased,
        temporaries,
        peak or arguments + outputs - aliased + temporaries,
    )


def _sizes_in(message: str) -> tuple[int | None, int | None]:
    """Bytes needed and there, of `Used 18.51G of 15.75G hbm` or, of temporaries that alone are too
    many, `required for HLO temporaries (481.87G) exceeds available HBM (15.75G)`."""
    size = r"([\d.]+)([KMG])"
    found = re.search(rf"Used {size} of {size} hbm", message) or re.search(
        rf"temporaries \({size}\) exceeds available HBM \({size}\)", message
    )
    if found is None:
        return None, None
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}
    return int(float(found[1]) * scale[found[2]]), int(float(found[3]) * scale[found[4]])


@contextlib.contextmanager
def _lowering(devices: Sequence[Any]) -> Iterator[None]:
    """Answers for devices that are not there what lowering asks of them."""
    with contextlib.ExitStack() as stack:
        if devices[0].platform == "gpu":
            stack.enter_context(gpu.cudnn_of(devices))
        stack.enter_context(_quiet())
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the warning that the compiler cannot use a donated array of another shape."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        yield

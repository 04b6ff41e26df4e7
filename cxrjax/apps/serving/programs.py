"""Compiled programs that the server runs on the device: three, of fixed shapes.

    context  processes an image, as far as that is independent of the question: once an image
    admit    prefills a question behind it, into a slot of the cache; a program for each length
    step     generates a token in each of the first n slots; a program for each n

A slot is a row of the key-value cache with one question. Where the image's tokens do not attend to
the question (`share="image"`, or causal attention) a context is their keys and values in every
layer; else it is the tower's features, and the decoder processes them again with each question.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import Array, Bool, Float, Int, UInt

from cxrjax.apps.serving.mixed_lora import choose_adapters
from cxrjax.decoding.box_readings import BoxReading
from cxrjax.decoding.grammar import Grammar, TokenVocabulary
from cxrjax.decoding.strategy import sample_tokens, top_p_threshold
from cxrjax.decoding.token_writer import TokenWriter, Writing
from cxrjax.distributed.meshes import TENSOR_RULES, mesh_of_kernels, tree_shardings
from cxrjax.models import VLM
from cxrjax.models.gemma import Block, LayerCache
from cxrjax.models.layers import take_apart
from cxrjax.models.vlm import context_of_two

# OpenAI's most of `top_logprobs`.
MOST_TOP = 20
# Besides those of training: what several adapters have together.
_RULES = ((r"/(lora/scale|loc_rows)$", None), *TENSOR_RULES)


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Static shapes that the programs are compiled for."""

    slots: int  # number of questions answered at a time
    buckets: tuple[int, ...]  # lengths that questions are padded to, ascending
    max_answer: int  # tokens of the longest answer, the end token included
    images: int = 1  # number of images a question has, 1 or 2
    # (height, width) of the images, if there are several sizes.
    grids: tuple[tuple[int, int], ...] = ()

    @property
    def widths(self) -> tuple[int, ...]:
        """Numbers of slots that a step is compiled for."""
        powers = (1, *(2**power for power in range(2, 20)))
        return (*(width for width in powers if width < self.slots), self.slots)


class SlotRequest(NamedTuple):
    """Question of a slot, and its decoding settings."""

    tokens: Int[np.ndarray, " p"]  # the prompt, not padded
    start: int = 0  # the grammar's start state
    free: bool = False  # its answer is not restricted to a grammar
    limit: int = 1  # tokens of the answer, the end token included
    temperature: float = 0.0
    top_p: float = 1.0  # mass of the tokens that are sampled from, where `temperature` is above 0
    seed: int = 0
    sample: int = 0
    adapter: int = 0  # number of the adapter; 0: none
    wants_top: bool = False  # return the likeliest tokens of each step


class SlotState(NamedTuple):
    """All slots on the devices, S rows."""

    writing: Writing
    step: Int[Array, " S"]
    limit: Int[Array, " S"]
    keys: UInt[Array, "S 2"]
    temperature: Float[Array, " S"]
    top_p: Float[Array, " S"]
    free: Bool[Array, " S"]
    adapter: Int[Array, " S"]


class StepTokens(NamedTuple):
    """Parts of `Generation` for n slots, and likeliest tokens before the grammar."""

    tokens: Int[Any, " n"]
    logprobs: Float[Any, " n"]
    words: Float[Any, "n W"]
    quantiles: Int[Any, "n M"]
    top_tokens: Int[Any, "n T"]
    top_logprobs: Float[Any, "n T"]


class ReadImages(NamedTuple):
    """A context on the devices."""

    # Keys and values of each layer; empty where the decoder reads it with the question.
    layers: list[tuple[Array, Array]]
    features: Array | None  # the tower's; None where there are layers
    mask: Array | None  # which tokens are there, where two images have room
    image_hw: tuple[int, int] | None = None  # (height, width) that was read; None within a program


class Programs:
    """The programs of one model.

    Args:
        model: in evaluation, with `MixedLoRA` where adapters are to be chosen; its layers are taken
            apart, so that nobody else should keep it.
        grammar: of all answers (`join_grammars`).
        watched: as in `generate`.
        mesh: devices that parameters are split over, and heads of the cache; slots are not. None:
            one device.
        shapes_alone: the model has shapes in the place of parameters, and nothing is to run.
    """

    def __init__(
        self,
        model: VLM,
        shapes: Shapes,
        grammar: Grammar,
        stop_ids: Sequence[int],
        reading: BoxReading,
        watched: Int[np.ndarray, "W n"],
        *,
        mesh: Mesh | None = None,
        shapes_alone: bool = False,
    ) -> None:
        config = model.config
        self.shapes = shapes
        self.config = config
        causal = config.decoder.prefix_attention in ("causal", "local")
        self.keeps_layers = model.share == "image" or causal
        self._mesh = mesh
        # All where it is known to be: what was put elsewhere is compiled for anew.
        self._whole: Any = SingleDeviceSharding(jax.local_devices()[0])
        if mesh is not None:
            self._whole = NamedSharding(mesh, PartitionSpec())
        self._grammar, self._watched = jax.device_put(
            (grammar, np.asarray(watched, np.int32)), self._whole
        )
        self._reading = reading
        self._vocabulary = TokenVocabulary(
            config.decoder.vocab_size, config.loc_token_start, tuple(stop_ids)
        )
        self._rest, self._blocks, params = _take_apart(model, shapes_alone)
        self._params = params if shapes_alone else self._put_params(params)
        if shapes_alone:
            return
        slots, context = self._empty_slots(), self._empty_context()
        self._slots_at = self._places(slots)
        self._context = jax.jit(self._context_impl, out_shardings=self._places(context))
        self._admit = jax.jit(
            self._admit_impl, static_argnums=0, donate_argnums=2, out_shardings=self._slots_at
        )
        self._step = jax.jit(
            self._step_impl, donate_argnums=1, out_shardings=(self._slots_at, self._whole)
        )

    def _put_params(self, params: Any) -> Any:
        if self._mesh is None:
            return jax.device_put(params, self._whole)
        of_rest, of_blocks = params
        named = {"rest": of_rest, "decoder": {"layers": of_blocks}}
        placed = jax.device_put(named, tree_shardings(self._mesh, named, _RULES))
        return placed["rest"], placed["decoder"]["layers"]

    def _places(self, tree: Any) -> Any:
        """Returns the sharding of each leaf: keys and values [_, K, ...] are split by heads."""
        heads = self._whole
        if self._mesh is not None and self.config.decoder.num_kv_heads % self._mesh.size == 0:
            heads = NamedSharding(self._mesh, PartitionSpec(None, ("fsdp", "tensor")))
        return jax.tree.map(lambda leaf: heads if leaf.ndim >= 4 else self._whole, tree)

    def _model(self, params: Any, adapter: Int[Array, " B"]) -> tuple[VLM, list[Block]]:
        """The model in these parameters, with an adapter for each row."""
        of_rest, of_blocks = params
        model = nnx.merge(self._rest, of_rest)
        blocks = [nnx.merge(*each) for each in zip(self._blocks, of_blocks, strict=True)]
        choose_adapters([model, *blocks], adapter)
        return model, blocks

    def new_slots(self) -> SlotState:
        """Slots in which nothing is written."""
        return jax.device_put(self._empty_slots(), self._slots_at)

    def lower_step(self, sharding: Any) -> Any:
        """The step of all slots, lowered for a device that need not be there."""
        arguments = (
            self._params,
            self._empty_slots(),
            self._grammar,
            self._watched,
            np.zeros(self.shapes.slots, bool),
            np.bool_(False),
        )
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
        step = jax.jit(self._step_impl, donate_argnums=1, in_shardings=sharding)
        return step.lower(*shapes)

    def _empty_slots(self) -> SlotState:
        slots = self.shapes.slots
        context = self._empty_context()
        asked = self._arguments(SlotRequest(np.zeros(1, np.int32)))
        assert self.config.vision is not None
        read = functools.partial(self._read_impl, self.config.vision.image_hw)
        state = jax.eval_shape(read, self._params, context, *asked[:2], asked[-1])

        def room(of_one: Any, length: int | None = None) -> Any:
            shape = of_one.shape
            if length is not None:  # of a question's slots
                shape = (1, shape[1], 1, length, shape[-1])
            return np.zeros((slots, *shape[1:]), of_one.dtype)

        layers = [
            LayerCache(
                *map(room, (layer.context_k, layer.context_v)),
                *(room(y, self.shapes.buckets[-1]) for y in (layer.prefix_k, layer.prefix_v)),
                *map(room, (layer.answer_k, layer.answer_v)),
            )
            for layer in state.decode.layers
        ]
        decode = state.decode._replace(
            layers=layers,
            prefix_mask=np.zeros((slots, 1, self.shapes.buckets[-1]), bool),
            next_position=room(state.decode.next_position),
            context_mask=None
            if state.decode.context_mask is None and not self.shapes.grids
            else np.zeros((slots, layers[0].context_k.shape[2]), bool),
        )
        writing = jax.tree.map(room, _without_cache(state))._replace(decode=decode)

        def zeros(dtype: Any, *more: int) -> Any:
            return np.zeros((slots, *more), dtype)

        return SlotState(
            writing,
            zeros(np.int32),
            zeros(np.int32),
            zeros(np.uint32, 2),
            zeros(np.float32),
            zeros(np.float32),
            zeros(bool),
            zeros(np.int32),
        )

    def read_images(
        self, images: np.ndarray, has_second: bool = False, adapter: int = 0
    ) -> ReadImages:
        """The context of one image, or of two.

        Args:
            images: uint8 [H, W, 3]; [2, H, W, 3] where `shapes.images` is 2.
        """
        second, which = np.array([has_second]), np.array([adapter], np.int32)
        with mesh_of_kernels(self._mesh):
            read = self._context(self._params, images[None], second, which)
        height, width = images.shape[-3:-1]
        return read._replace(image_hw=(height, width))

    def admit(
        self, state: SlotState, slot: int, context: ReadImages, asked: SlotRequest
    ) -> SlotState:
        """The slots with a question in one of them; the old ones must not be used any more.

        Raises:
            ValueError: the prompt is longer than any bucket.
        """
        arguments = self._arguments(asked)
        image_hw, context = context.image_hw, context._replace(image_hw=None)
        with mesh_of_kernels(self._mesh):
            return self._admit(image_hw, self._params, state, context, np.int32(slot), *arguments)

    def step(
        self, state: SlotState, alive: Bool[np.ndarray, " n"], wants_top: bool
    ) -> tuple[SlotState, StepTokens]:
        """A token of each of the first slots that are alive; the old slots must not be used again.

        Args:
            alive: n is one of `shapes.widths`.
        """
        with mesh_of_kernels(self._mesh):
            state, tokens = self._step(
                self._params, state, self._grammar, self._watched, alive, np.bool_(wants_top)
            )
        return state, StepTokens(*map(np.asarray, tokens))

    def warm_up(self) -> SlotState:
        """Compiles everything; slots to begin with."""
        state = self.new_slots()
        largest = self._empty_images()[0][0]
        for height, width in self.shapes.grids or (largest.shape[-3:-1],):
            context = self.read_images(np.zeros((*largest.shape[:-3], height, width, 3), np.uint8))
            for length in self.shapes.buckets:
                state = self.admit(state, 0, context, SlotRequest(np.zeros(length, np.int32)))
        for width in self.shapes.widths:
            state, _ = self.step(state, np.zeros(width, bool), False)
        return state

    def _empty_context(self) -> ReadImages:
        """Returns the shapes of a context."""
        adapter = np.zeros(1, np.int32)
        return jax.eval_shape(self._context_impl, self._params, *self._empty_images(), adapter)

    def _empty_images(self) -> tuple[np.ndarray, np.ndarray]:
        vision = self.config.vision
        assert vision is not None
        several = (self.shapes.images,) if self.shapes.images > 1 else ()
        return np.zeros((1, *several, *vision.image_hw, 3), np.uint8), np.zeros(1, bool)

    def _arguments(self, asked: SlotRequest) -> tuple[np.ndarray, ...]:
        length = len(asked.tokens)
        fitting = [bucket for bucket in self.shapes.buckets if bucket >= length]
        if not fitting:
            raise ValueError(f"a prompt of {length} tokens, at most {self.shapes.buckets[-1]}")
        tokens = np.zeros((1, 1, fitting[0]), np.int32)
        mask = np.zeros((1, 1, fitting[0]), bool)
        tokens[..., fitting[0] - length :], mask[..., fitting[0] - length :] = asked.tokens, True
        return (
            tokens,
            mask,
            np.array([[asked.start]], np.int32),
            np.array([asked.limit], np.int32),
            np.array([asked.seed, asked.sample], np.uint32),
            np.array([asked.temperature], np.float32),
            np.array([asked.top_p], np.float32),
            np.array([asked.free]),
            np.array([asked.adapter], np.int32),
        )

    def _contexts_of(self, model: VLM, has_second: Array) -> tuple[Any, Any]:
        if self.shapes.images == 1:
            return None, None
        return context_of_two(model.config, has_second)

    def _context_impl(
        self, params: Any, images: Array, has_second: Array, adapter: Array
    ) -> ReadImages:
        model, blocks = self._model(params, adapter)
        model = model.of_batch(images)
        tokens, mask = self._contexts_of(model, has_second)
        if not self.keeps_layers:
            several = images.reshape(-1, *images.shape[-3:])
            features = model.image_features(several)
            return ReadImages([], features.reshape(1, -1, features.shape[-1]), mask)
        nothing = jnp.zeros((1, 1, 1), jnp.int32)
        _, state = model.prefill(images, nothing, nothing > 0, 1, tokens, mask, blocks)
        layers = [(layer.context_k, layer.context_v) for layer in state.layers]
        return ReadImages(layers, None, mask)

    def _read_impl(
        self,
        image_hw: tuple[int, int],
        params: Any,
        context: ReadImages,
        tokens: Array,
        mask: Array,
        adapter: Array,
    ) -> Writing:
        """A question behind its context, as a row that is about to be written."""
        model, blocks = self._model(params, adapter)
        model = model.of_batch(jax.ShapeDtypeStruct((1, *image_hw, 3), jnp.uint8))
        room = self.shapes.max_answer
        if self.keeps_layers:
            of_two = self._contexts_of(model, jnp.ones(1, bool))[0]
            hidden, decode = model.read_questions(
                blocks, context.layers, tokens, mask, room, context.mask, of_two
            )
        else:
            of_two = self._contexts_of(model, jnp.ones(1, bool))[0]
            hidden, decode = model.prefill(
                context.features, tokens, mask, room, of_two, context.mask, blocks
            )
        writer = TokenWriter(model, blocks, self._vocabulary, self._watched)
        return writer.start(hidden, decode, jnp.zeros((1, 1), bool))

    def _admit_impl(
        self,
        image_hw: tuple[int, int],
        params: Any,
        state: SlotState,
        context: ReadImages,
        slot: Array,
        tokens: Array,
        mask: Array,
        start: Array,
        limit: Array,
        seeds: Array,
        temperature: Array,
        top_p: Array,
        free: Array,
        adapter: Array,
    ) -> SlotState:
        read = self._read_impl(image_hw, params, context, tokens, mask, adapter)
        longest = self.shapes.buckets[-1]
        missing = longest - tokens.shape[-1]

        def put(whole: Array, part: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(whole, part, slot, axis=0)

        def put_layer(whole: LayerCache, part: LayerCache) -> LayerCache:
            # Prompts end where answers begin. What stands in the room for answers is not seen.
            padding = [(0, 0), (0, 0), (0, 0), (missing, 0), (0, 0)]
            return LayerCache(
                put(whole.context_k, part.context_k),
                put(whole.context_v, part.context_v),
                put(whole.prefix_k, jnp.pad(part.prefix_k, padding)),
                put(whole.prefix_v, jnp.pad(part.prefix_v, padding)),
                whole.answer_k,
                whole.answer_v,
            )

        old, new = state.writing.decode, read.decode
        present = new.context_mask
        if old.context_mask is not None:
            # A context on a smaller grid ends before its room does.
            length = new.layers[0].context_k.shape[2]
            present = jnp.ones((1, length), bool) if present is None else present
            present = jnp.pad(present, [(0, 0), (0, old.context_mask.shape[1] - length)])
        decode = old._replace(
            layers=[put_layer(*each) for each in zip(old.layers, new.layers, strict=True)],
            prefix_mask=put(old.prefix_mask, jnp.pad(mask, [(0, 0), (0, 0), (missing, 0)])),
            next_position=put(old.next_position, new.next_position),
            context_mask=jax.tree.map(put, old.context_mask, present),
        )
        read = read._replace(grammar=read.grammar._replace(node=start))
        writing = jax.tree.map(put, _without_cache(state.writing), _without_cache(read))
        # As `sample_keys` for the question with index 0.
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seeds[0]), 0), seeds[1])
        return SlotState(
            writing._replace(decode=decode),
            put(state.step, jnp.zeros(1, jnp.int32)),
            put(state.limit, limit),
            put(state.keys, jax.random.key_data(key)[None]),
            put(state.temperature, temperature),
            put(state.top_p, top_p),
            put(state.free, free),
            put(state.adapter, adapter),
        )

    def _step_impl(
        self,
        params: Any,
        state: SlotState,
        grammar: Grammar,
        watched: Array,
        alive: Array,
        wants_top: Array,
    ) -> tuple[SlotState, StepTokens]:
        count = alive.shape[0]
        part = jax.tree.map(lambda whole: whole[:count], state)
        model, blocks = self._model(params, part.adapter)
        writer = TokenWriter(model, blocks, self._vocabulary, watched, self._reading, grammar)
        writing = part.writing._replace(done=~alive[:, None])

        def draw(choices: Array) -> tuple[Array, Array]:
            is_drawn = (part.temperature > 0)[:, None]
            likeliest = jnp.argmax(choices, axis=-1).astype(jnp.int32)
            drawn = jax.lax.cond(
                jnp.any(is_drawn & alive[:, None]),
                lambda: _drawn(choices, part),
                lambda: likeliest,
            )
            return jnp.where(is_drawn, drawn, likeliest), is_drawn

        written, logits, writing = writer(
            writing, part.step, part.limit[:, None], draw, part.free[:, None]
        )
        top = min(MOST_TOP, logits.shape[-1])
        likeliest = jax.lax.cond(
            wants_top,
            lambda: tuple(jax.lax.top_k(jax.nn.log_softmax(logits[:, 0], axis=-1), top)),
            lambda: (jnp.zeros((count, top)), jnp.zeros((count, top), jnp.int32)),
        )
        step = part.step + alive
        new = part._replace(writing=writing, step=step)
        if count < self.shapes.slots:
            new = _put_first(state, new)
        tokens = StepTokens(
            written.tokens[:, 0],
            written.logprobs[:, 0],
            written.words[:, 0],
            written.quantiles[:, 0],
            top_tokens=likeliest[1],
            top_logprobs=likeliest[0],
        )
        return new, tokens


def _take_apart(model: VLM, shapes_alone: bool) -> tuple[Any, list[Any], Any]:
    """The model without its decoder's layers, these one by one, and the parameters of both."""
    graphdef, state = nnx.split(model)
    graphs: list[Any] = []

    def apart(state: Any) -> Any:
        own = nnx.merge(graphdef, state)
        split = [nnx.split(block) for block in own.decoder.blocks()]
        for name in own.config.decoder.stacks():
            setattr(own.decoder, name, None)
        if own.vision is not None and own.vision.layers is not None:
            own.vision.layers = nnx.List(take_apart(own.vision.layers))
        rest, of_rest = nnx.split(own)
        graphs[:] = [rest, *(graph for graph, _ in split)]
        return of_rest, [of_block for _, of_block in split]

    params = jax.eval_shape(apart, state) if shapes_alone else apart(state)
    return graphs[0], graphs[1:], params


def _drawn(choices: Float[Array, "n 1 V"], part: SlotState) -> Int[Array, "n 1"]:
    """A token for each slot, by its own temperature, seed and step."""
    keys = jax.random.wrap_key_data(part.keys)[:, None]
    logits = choices / jnp.where(part.temperature > 0, part.temperature, 1.0)[:, None, None]

    def likely() -> Array:
        likeliest, _ = jax.lax.top_k(logits, logits.shape[-1])
        least = top_p_threshold(likeliest, part.top_p[:, None])
        return jnp.where(logits < least[..., None], -jnp.inf, logits)

    logits = jax.lax.cond(jnp.any(part.top_p < 1), likely, lambda: logits)
    draw = jax.vmap(lambda key, row, step: sample_tokens(key[None], step, row[None])[0])
    return draw(keys, logits, part.step)


def _put_first(state: SlotState, part: SlotState) -> SlotState:
    """The slots with those of `part` in front; contexts and prompts are as they were."""

    def put(whole: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(whole, new, 0, axis=0)

    old, new = state.writing.decode, part.writing.decode
    layers = [
        whole._replace(
            answer_k=put(whole.answer_k, written.answer_k),
            answer_v=put(whole.answer_v, written.answer_v),
        )
        for whole, written in zip(old.layers, new.layers, strict=True)
    ]
    decode = old._replace(layers=layers, next_position=put(old.next_position, new.next_position))
    without, theirs = (
        each._replace(writing=_without_cache(each.writing)) for each in (state, part)
    )
    put_in = jax.tree.map(put, without, theirs)
    return put_in._replace(writing=put_in.writing._replace(decode=decode))


def _without_cache(writing: Writing) -> Any:
    """All of it but keys and values."""
    of_all: Any = writing
    return of_all._replace(decode=None)

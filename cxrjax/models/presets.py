"""The sizes of every model we build, by name."""

import dataclasses
import math
import typing
from collections.abc import Sequence
from typing import Any, Literal

from cxrjax.errors import UserError
from cxrjax.family_tables import family_tables
from cxrjax.untrusted.names import shown_value

NUM_LOC_TOKENS = 1024

_DEEPEST, _LARGEST, _LONGEST_CONTEXT = 1_000, 2**40, 10_000

# Stands in `VLMConfig.context` for one image: as many tokens as an image has.
IMAGE = -1
_CONTEXTS = ("context", "second_image")

# Of CLIP, red, green and blue.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
# Of ImageNet.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# Of the rotary positions of towers whose heads are normed (`post_norms`): there are no others.
AXIAL_ROPE_BASE = 100.0


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """A vision tower: images of `image_size` pixels cut into `patch_size` patches.

    A tower without layers takes pixels from 0 to 1, norms and maps a patch, and adds its place.
    """

    image_size: int
    patch_size: int
    width: int
    depth: int
    num_heads: int
    mlp_dim: int
    # Squares of so many patches a side become one token, averaged before the projector.
    pool: int = 1
    side_by_side: bool = False  # they are put side by side for it instead (pixel shuffle)
    # `norm`, `norm_eps`: of the layers; RMS norms scale by their weight.
    norm: Literal["layer", "rms"] = "layer"
    norm_eps: float = 1e-6
    # Of the layers; "quick_gelu" is the sigmoid's approximation.
    activation: Literal["gelu_tanh", "gelu", "quick_gelu", "silu"] = "gelu_tanh"
    gated: bool = False  # units of the layers are gated
    # What the tower was trained on: "half", values in [-1, 1], or channels scaled by CLIP's or
    # ImageNet's mean and deviation.
    colours: Literal["half", "clip", "imagenet"] = "half"
    patch_bias: bool = True  # patches are mapped with a bias
    class_token: bool = False  # one goes in front of the patches
    # `pre_norm`, `final_norm`: a norm before the first and behind the last layer.
    pre_norm: bool = False
    final_norm: bool = True
    layer_scale: bool = False  # a scale on what each half of a layer adds
    # Norms also behind attention and units, and on each head's queries, keys and values; heads turn
    # by row and column; layers have no biases, and features are scaled.
    post_norms: bool = False
    # Layers go over patches in the order of windows, with one map for queries, keys and values,
    # which turn by row and column; a patch is two equal frames.
    merges: bool = False
    skip_last: int = 0  # so many last layers are there and not asked
    # Where it merges, patches a side of the squares that see only themselves.
    window: int | None = None
    # Of so many layers the last one sees the whole image, the others their square.
    full_every: int = 1
    # Where it merges, rows and columns of the table of positions, which is stretched over the
    # patches; None: it has no table.
    position_side: int | None = None
    # Where it merges, the layers, from 0, whose patches are merged too, and added to the image's
    # tokens behind the decoder's first layers, one each.
    deepstack: tuple[int, ...] = ()
    # Of images that are not square, whose height `image_size` is then; only of towers without a
    # table that says how many patches there are, and of tiles.
    image_width: int | None = None
    most_positions: int = 0  # rows of a table of positions for each direction; 0: one row a patch
    standardized: bool = False  # pooled features are shifted and scaled by the checkpoint's own
    # What goes into a linear map and comes out of it is kept within bounds of the checkpoint's.
    clipped: bool = False
    most_tokens: int = 0  # it takes images of any size, up to so many tokens each; 0: of one size
    most_tiles: int = 0  # an image may be cut into so many tiles of the one size
    # Pixels a side of the tiles that an image is cut into; the whole image is one more behind them.
    # None: the image is the only one.
    tile_size: int | None = None

    def __post_init__(self) -> None:
        # A list, where it comes from a file.
        object.__setattr__(self, "deepstack", tuple(self.deepstack))
        if any(layer >= self.depth for layer in self.deepstack):
            raise ValueError(f"deepstack {self.deepstack} of {self.depth} layers")

    def is_local(self, layer: int) -> bool:
        """Returns whether attention of layer number `layer`, from 0, is restricted to windows."""
        return self.window is not None and (layer + 1) % self.full_every != 0

    @property
    def any_size(self) -> bool:
        """Returns whether the weights work for images of any size."""
        return self.most_tokens > 0

    @property
    def image_hw(self) -> tuple[int, int]:
        """(height, width) of an image, in pixels."""
        return self.image_size, self.image_size if self.image_width is None else self.image_width

    @property
    def num_tiles(self) -> int:
        """Images that the tower is shown of an image: itself, or its tiles and then itself."""
        if self.tile_size is None:
            return 1
        return math.prod(side // self.tile_size for side in self.image_hw) + 1

    @property
    def patch_grid(self) -> tuple[int, int]:
        """(rows, columns) of the patches of an image, or of a tile."""
        height, width = self.image_hw if self.tile_size is None else (self.tile_size,) * 2
        return height // self.patch_size, width // self.patch_size

    @property
    def token_grid(self) -> tuple[int, int]:
        """(rows, columns) of an image's or a tile's tokens in the decoder."""
        rows, columns = self.patch_grid
        return rows // self.pool, columns // self.pool

    @property
    def feature_width(self) -> int:
        """Numbers that the tower gives of a token: of the last layer, then of `deepstack`."""
        return self.merged_width * (1 + len(self.deepstack))

    @property
    def merged_width(self) -> int:
        """Numbers of a token that one layer gives, and the projector is given."""
        is_joined = self.merges or self.side_by_side
        return self.width * (self.pool**2 if is_joined else 1)

    @property
    def num_patches(self) -> int:
        return math.prod(self.patch_grid)

    @property
    def num_positions(self) -> int:
        """Places in the tower's sequence: the patches, and a class token."""
        return self.num_patches + self.class_token

    @property
    def num_tokens(self) -> int:
        """Tokens of one image in the decoder."""
        return self.num_tiles * math.prod(self.token_grid)


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """A decoder; the defaults are Gemma 1's, what follows `mlp_dim` are the others' changes."""

    vocab_size: int
    width: int
    depth: int
    num_heads: int
    num_kv_heads: int  # divides `num_heads`; 1 is multi-query attention
    head_dim: int
    mlp_dim: int
    # Queries are divided by the square root of it; None: of `head_dim`.
    query_scale: float | None = None
    # `rope_base`, `rope_scale`: of the global layers; positions are divided by `rope_scale`.
    rope_base: float = 10_000.0
    rope_scale: float = 1.0
    local_rope_base: float | None = None  # of the layers with a sliding window; None: `rope_base`
    # Tokens that a local layer sees, itself included; None: no layer is local.
    window: int | None = None
    global_every: int = 1  # of so many layers the last one is global, the others local
    # `attn_softcap`, `final_softcap`: c * tanh(x / c) on attention scores and on logits.
    attn_softcap: float | None = None
    final_softcap: float | None = None
    post_norms: bool = False  # norms also behind attention and MLP, before the residual is added
    qk_norm: bool = False  # norms on the queries and keys of each head
    # "full": image and prompt see all of each other ; "causal": every token sees the past alone,
    # but images also see all of themselves; "local": they do so in local layers alone; "past":
    # every token sees the past alone.
    prefix_attention: Literal["full", "causal", "local", "past"] = "full"
    norm_eps: float = 1e-6  # what is added to the mean square in norms
    plain_norms: bool = False  # norms scale by their weight, not by 1 + weight (Llama, Mistral)
    # Of the gated unit; "gelu" is the tanh approximation.
    activation: Literal["gelu", "silu"] = "gelu"
    scale_embeddings: bool = True  # by the square root of the width
    tied: bool = True  # the embedding is the output layer too
    qkv_bias: bool = False  # queries, keys and values have biases
    # How many pairs of a head's entries turn by a token's time, row and column in this order; none:
    # all by its place in the sequence.
    rope_sections: tuple[int, ...] = ()
    rope_interleaved: bool = False  # the three take turns instead, and what is left is time's
    # Of global layers, where they are of other sizes than the local ones and their parameters are
    # kept apart; None: all layers are alike. What follows is of such decoders alone.
    global_head_dim: int | None = None
    global_kv_heads: int | None = None  # of global layers; None: `num_kv_heads`
    global_rope_share: float = 1.0  # the part of a head's pairs that turns in global layers
    # Global layers have no map for values and take what that for keys gives.
    keys_are_values: bool = False
    value_norm: bool = False  # norms without a scale on each head's values
    # A number of the checkpoint's that what comes out of a layer is multiplied by.
    layer_scale: bool = False
    # So many last layers have no keys and values, and read those of the last layer of their kind
    # before them; whole periods.
    shared_layers: int = 0
    shared_mlp_dim: int | None = None  # of these layers; None: `mlp_dim`
    # Numbers that every layer is given of a token besides the residual stream, from a second table
    # (per-layer embeddings, of the same two); 0: none.
    per_layer_width: int = 0

    def __post_init__(self) -> None:
        # Lists, where they come from a file.
        object.__setattr__(self, "rope_sections", tuple(self.rope_sections))
        if self.rope_sections and sum(self.rope_sections) != self.head_dim // 2:
            raise ValueError(f"rope_sections {self.rope_sections} of heads of {self.head_dim}")
        if self.rope_interleaved:
            three = len(self.rope_sections) == 3
            streams = self.rope_streams() if three else []
            if not three or [streams.count(n) for n in range(3)] != list(self.rope_sections):
                raise ValueError(f"rope_sections {self.rope_sections} cannot take turns")
        if self.prefix_attention == "local" and self.global_head_dim is None:
            raise ValueError("prefix_attention 'local' without global_head_dim")
        if self.global_head_dim is not None and (
            self.window is None or self.global_every < 2 or self.depth % self.global_every
        ):
            raise ValueError(
                f"{self.depth} layers of two kinds, and every {self.global_every}th is global"
            )
        if self.shared_layers and self.global_head_dim is None:
            if self.shared_layers != self.depth:  # as `of_layer` has them
                raise ValueError("shared_layers without global_head_dim")
        elif self.shared_layers % self.global_every or self.shared_layers >= self.depth:
            raise ValueError(
                f"{self.shared_layers} of {self.depth} layers share keys: expected whole periods "
                f"of {self.global_every}, and fewer than all"
            )

    def rope_streams(self) -> list[int]:
        """Time, row or column (0, 1, 2) of each pair of a head's entries."""
        if not self.rope_interleaved:
            return [n for n, count in enumerate(self.rope_sections) for _ in range(count)]
        streams = [0] * (self.head_dim // 2)
        for n in (1, 2):
            for place in range(n, min(3 * self.rope_sections[n], len(streams)), 3):
                streams[place] = n
        return streams

    def is_local(self, layer: int) -> bool:
        """Returns whether layer number `layer`, from 0, attends only to a sliding window."""
        return self.window is not None and (layer + 1) % self.global_every != 0

    def keys_of(self, layer: int) -> int:
        """The number of the layer whose keys and values layer number `layer` reads: mostly its own.

        The last layer before those that share is global, the one before it local.
        """
        own = self.depth - self.shared_layers
        return layer if layer < own else own - 1 - self.is_local(layer)

    def stacks(self) -> dict[str, list[int]]:
        """The numbers of the layers by the name of the stack that holds their parameters."""
        if self.global_head_dim is None:
            return {"layers": list(range(self.depth))}
        found: dict[str, list[int]] = {}
        for layer in range(self.depth):
            shared = "shared_" if self.keys_of(layer) != layer else ""
            kind = "local" if self.is_local(layer) else "global"
            found.setdefault(f"{shared}{kind}_layers", []).append(layer)
        return found

    def of_layer(self, layer: int) -> "DecoderConfig":
        """The sizes of layer number `layer`, as if all were so."""
        if self.global_head_dim is None:
            return self
        own: dict[str, Any] = {}
        if self.is_local(layer):
            own |= {"global_rope_share": 1.0, "keys_are_values": False}
        else:
            own["head_dim"] = self.global_head_dim
            own["num_kv_heads"] = self.global_kv_heads or self.num_kv_heads
        is_shared = self.keys_of(layer) != layer
        if is_shared:
            own["mlp_dim"] = self.shared_mlp_dim or self.mlp_dim
        own["shared_layers"] = self.depth if is_shared else 0
        return dataclasses.replace(self, **own, **_OF_ONE_KIND)


_OF_ONE_KIND: dict[str, Any] = {
    "prefix_attention": "causal",
    "global_head_dim": None,
    "global_kv_heads": None,
    "shared_mlp_dim": None,
}


@dataclasses.dataclass(frozen=True)
class VLMConfig:
    """Tower, projector and decoder, and what the tokenizer's ids mean to them."""

    vision: VisionConfig | None  # None for a model of text alone
    decoder: DecoderConfig
    # Id of `<loc0000>`; the 1,024 location tokens follow one another. -1: the vocabulary has none.
    loc_token_start: int
    # What stands before the question: token ids, and `IMAGE` for each image.
    context: tuple[int, ...] = (IMAGE,)
    # What is put in behind the first `IMAGE` where there is a second image.
    second_image: tuple[int, ...] = (IMAGE,)
    # "linear"; "plain": without a bias; "normed": an RMS norm and a map without bias; "unscaled":
    # the same, the norm without a scale; "mlp": two maps with a GELU between them; "normed_mlp": a
    # norm before these; or "merger": each patch normed, those of a token side by side, and two such
    # maps.
    projector: Literal["linear", "plain", "normed", "unscaled", "mlp", "normed_mlp", "merger"] = (
        "linear"
    )
    # Numbers of a frame of sound, which the checkpoint has a map for and nothing asks here; 0:
    # none.
    audio_width: int = 0
    # The `model_type` whose names its tensors have in a checkpoint (`cxrjax/models/families/`).
    family: str = "paligemma"

    @property
    def num_context(self) -> int:
        """Length of the context in tokens."""
        return self.num_tokens(self.context)

    def num_tokens(self, context: Sequence[int]) -> int:
        """Length of a context in tokens, `IMAGE` counted as often as an image has tokens."""
        image = 0 if self.vision is None else self.vision.num_tokens
        return sum(image if token == IMAGE else 1 for token in context)

    def at_resolution_of(self, other: "VLMConfig") -> "VLMConfig":
        """Returns a copy for images of the other model's size."""
        if self.vision is None or other.vision is None:
            return self
        names = ("image_size", "image_width", "tile_size")
        theirs = {name: getattr(other.vision, name) for name in names}
        return dataclasses.replace(self, vision=dataclasses.replace(self.vision, **theirs))

    def for_images(self, height: int, width: int) -> "VLMConfig":
        """Returns a copy for images of another size, square or not.

        Raises:
            ValueError: it does not take images of any size, or not of this one.
        """
        vision = self.vision
        if vision is not None and vision.most_tiles:
            return dataclasses.replace(self, vision=_in_tiles(vision, height, width))
        if vision is None or not vision.any_size:
            raise ValueError("this model takes images of one size; use a preset without '@'")
        unit = vision.patch_size * vision.pool
        most = vision.most_positions * vision.patch_size
        if most and max(height, width) > most:
            raise ValueError(f"its table of positions ends at {most}")
        if height < unit or width < unit or height % unit or width % unit:
            raise ValueError(f"{height} and {width} are not multiples of {unit}, a token's side")
        across = None if width == height else width
        vision = dataclasses.replace(vision, image_size=height, image_width=across)
        most = vision.most_tokens
        if vision.num_tokens > most:
            raise ValueError(f"{vision.num_tokens:,} tokens an image, and it is made for {most:,}")
        return dataclasses.replace(self, vision=vision)

    def of_batch(self, images: Any) -> "VLMConfig":
        """Returns a copy for images of this batch's size.

        Args:
            images: [..., H, W, 3]; features [B, N, V], and None, are of its own size.

        Raises:
            ValueError: as `for_images`.
        """
        if self.vision is None or images is None or images.ndim == 3:
            return self
        size = tuple(images.shape[-3:-1])
        return self if size == self.vision.image_hw else self.for_images(*size)


def _in_tiles(vision: VisionConfig, height: int, width: int) -> VisionConfig:
    """The tower for images of whole tiles; of one alone, as it is published."""
    tile = vision.tile_size or vision.image_size
    down, across = height // tile, width // tile
    if height % tile or width % tile or not 1 <= down * across <= vision.most_tiles:
        raise ValueError(f"expected 1 to {vision.most_tiles} whole tiles of {tile}")
    is_one = down * across == 1
    return dataclasses.replace(
        vision,
        image_size=height,
        image_width=None if height == width else width,
        tile_size=None if is_one else tile,
    )


def _read_presets() -> dict[str, VLMConfig]:
    towers, decoders = family_tables("vision"), family_tables("decoder")
    presets = {}
    for name, entry in family_tables("model").items():
        vision = entry.get("vision")
        parts: dict[str, Any] = {
            "vision": None if vision is None else VisionConfig(**towers[vision]),
            "decoder": DecoderConfig(**decoders[entry["decoder"]]),
        }
        parts |= {each: tuple(entry.get(each, (IMAGE,))) for each in _CONTEXTS}
        presets[name] = VLMConfig(**entry | parts)
    return presets


PRESETS = _read_presets()


def check_sizes(sizes: VLMConfig) -> None:
    """Checks that sizes from a file are of their types, and none beyond any model there is.

    Raises:
        ValueError: names the first that is not.
    """
    parts = [part for part in (sizes.vision, sizes.decoder, sizes) if part is not None]
    for part in parts:
        for field in dataclasses.fields(part):
            value, kind = getattr(part, field.name), field.type
            if dataclasses.is_dataclass(value) or field.name in (*_CONTEXTS, "vision"):
                continue
            if typing.get_origin(kind) is tuple:
                fits = len(value) <= _DEEPEST and all(type(n) is int and n >= 0 for n in value)
            elif typing.get_origin(kind) is Literal:
                fits = value in typing.get_args(kind)
            elif kind in (bool, str) or value is None:
                fits = isinstance(value, typing.cast(type, kind))
            else:
                whole = kind in (int, int | None)
                fits = type(value) is int or (type(value) is float and not whole)
                least = -1 if field.name == "loc_token_start" else 0
                fits = fits and least <= value <= (_DEEPEST if field.name == "depth" else _LARGEST)
            if not fits:
                raise ValueError(f"{field.name} is {shown_value(value)}")
    for name in _CONTEXTS:
        tokens = getattr(sizes, name)
        if len(tokens) > _LONGEST_CONTEXT or any(type(i) is not int for i in tokens):
            raise ValueError(f"{name} is {shown_value(tokens)}")


def check_heads_divide(tensor: int, sizes: VLMConfig) -> None:
    """Each of `tensor` devices must get the same number of whole attention heads.

    Raises:
        UserError: it would not.
    """
    heads = {"decoder": sizes.decoder.num_heads}
    if sizes.vision is not None and sizes.vision.depth:
        heads["vision tower"] = sizes.vision.num_heads
    for part, count in heads.items():
        if count % tensor:
            raise UserError(
                f"mesh.tensor={tensor} does not divide the {count} attention heads of the {part}"
            )

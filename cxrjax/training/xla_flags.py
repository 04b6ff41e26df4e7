"""What libtpu is told before a run on several chips: do collectives while the chip computes.

libtpu reads them from the environment when it is loaded, so whoever starts the process sets

    LIBTPU_INIT_ARGS="$(python -m cxrjax.training.xla_flags)"

Source: "XLA flag guidance" (openxla.org/xla/flags_guidance), the TPU's flags for overlap. libtpu
refuses a flag that it does not know, so a version that has dropped one says so at once. With
libtpu 0.0.42.1 they change no program of ours (docs/log.md): what they ask for is its default.
"""

OVERLAP_FLAGS = (
    # Gradients' sums over `data` while the backward pass goes on.
    "--xla_tpu_enable_data_parallel_all_reduce_opt=true",
    "--xla_tpu_data_parallel_opt_different_sized_ops=true",
    # Parameters' gathers over `fsdp` during the layer before.
    "--xla_tpu_enable_async_collective_fusion=true",
    "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
    "--xla_tpu_enable_async_collective_fusion_multiple_steps=true",
    "--xla_tpu_overlap_compute_collective_tc=true",
    "--xla_enable_async_all_gather=true",
)

if __name__ == "__main__":
    print(" ".join(OVERLAP_FLAGS))

"""Trains a model as a configuration says, or goes on where a run in the workdir stopped.

    python -m cxrjax.train --config=FILE[:VARIANT] --workdir=DIR [--config.key=value ...]

The workdir receives config.json, run.json, quality.json (records rejected, by reason),
metrics.jsonl, event files for TensorBoard, the tokenizer, checkpoints/ and at the end the run's
card (card.html, and README.md in the form of Hugging Face's model cards). Every key of a
configuration is in docs/configs.md; configs/ holds the experiments.

SIGTERM (a preemption, a time limit) or Ctrl-C: saves after the step in work, also out of an
evaluation, and leaves with exit code 75, which means: start the same command again, it goes on
where it stopped. A second signal leaves at once. What else may happen to a run is in docs/runs.md.
"""

from collections.abc import Sequence

from cxrjax.cli import command_parser
from cxrjax.distributed import hosts
from cxrjax.flags import add_options
from cxrjax.paths import out_path
from cxrjax.training.tracking import TRACKERS


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_parser("train", __doc__)
    parser.add_argument("--config", required=True, metavar="FILE[:VARIANT]")
    parser.add_argument("--workdir", required=True, type=out_path, metavar="DIR")
    parser.add_argument(
        "--track", choices=TRACKERS, help="send the figures there too, by its own library"
    )
    add_options(parser, hosts.HostFlags)
    flags, overrides = parser.parse_known_args(arguments)
    # After the flags, here and below: --help stays quick.
    from cxrjax.api.training import train
    from cxrjax.training.config_file import load_config

    config = load_config(flags.config, overrides)
    hosts.initialize(flags)
    train(config, flags.workdir, track=flags.track, recipe=flags.config)

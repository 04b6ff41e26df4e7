"""Records in, batches out: prompts, tokenizer, examples and the Grain loaders.

from cxrjax.input_pipeline.examples import ExampleConfig
from cxrjax.input_pipeline.loader import eval_loader, single_source, train_loader
from cxrjax.input_pipeline.sources import RecordSource
from cxrjax.input_pipeline.tokenizer import load_tokenizer
"""

"""TRL's side of the benchmark of reinforcement learning, and the model of both.

    rl_theirs.py make CHECKPOINT
    rl_theirs.py train CHECKPOINT {kept,recomputed} IMAGES QUESTIONS

Speaks JSON lines (process.py): after the first reply, a step of `GRPOTrainer` for each line that it
reads. Images go as TRL's page on vision-language models has it: a column `image`, and prompts of
messages, which the processor's chat template joins. `kept` keeps activations for the backward pass,
as ours does; `recomputed` is TRL's default (gradient checkpointing).
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Features, Image, List, Value
from peft import LoraConfig
from PIL import Image as Picture
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForImageTextToText,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
    PreTrainedTokenizerFast,
    SiglipImageProcessor,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

from bench import rl_cases as cases
from bench.process import reply

# PaliGemma's processor adds <bos> and the newline.
CHAT = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}"
)


def make_checkpoint(directory: Path) -> int:
    """Saves a model with random weights; returns its number of parameters."""
    torch.manual_seed(0)
    config = PaliGemmaConfig(
        text_config=dict(cases.SHAPE["text"]),
        vision_config=dict(cases.SHAPE["vision"]),
        projection_dim=cases.SHAPE["vision"]["projection_dim"],
        image_token_index=cases.IMAGE_ID,
    )
    model = PaliGemmaForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * cases.WEIGHT_SCALE)
        model.get_input_embeddings().weight *= cases.TABLE_SCALE / cases.WEIGHT_SCALE
    model.save_pretrained(directory)
    return sum(parameter.numel() for parameter in model.parameters())


def make_processor() -> PaliGemmaProcessor:
    """A processor whose words are the benchmark's tokens."""
    named = {"<pad>": cases.PAD_ID, "<eos>": cases.EOS_ID, "<bos>": cases.BOS_ID}
    named |= {"<unk>": cases.UNKNOWN_ID, "\n": cases.NEWLINE_ID, "<image>": cases.IMAGE_ID}
    named |= {f"<seg{i:03d}>": cases.SEG_START + i for i in range(128)}
    ids = set(named.values())
    words = {cases.token_text(i): i for i in range(cases.SEG_START) if i not in ids}
    tokenizer = Tokenizer(models.WordLevel(words | named, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_tokens([AddedToken("\n", normalized=False)])
    special = {f"{name}_token": f"<{name}>" for name in ("pad", "eos", "bos", "unk")}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **special)
    pictures = SiglipImageProcessor(
        size={"height": cases.IMAGE_SIDE, "width": cases.IMAGE_SIDE},
        do_resize=False,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    pictures.image_seq_length = cases.IMAGE_TOKENS
    return PaliGemmaProcessor(pictures, fast, chat_template=CHAT)


def make_dataset(questions: cases.Questions) -> Dataset:
    """A row a question, each with its image: the trainer knows no image that questions share."""
    pictures = [Picture.fromarray(image) for image in questions.images]
    rows = list(np.ndindex(*questions.words.shape[:2]))
    prompts = [" ".join(map(cases.token_text, questions.words[place])) for place in rows]
    columns: dict[str, list[Any]] = {
        "prompt": [[{"role": "user", "content": text}] for text in prompts],
        "image": [pictures[image] for image, _ in rows],
        "bins": [questions.bins[place].tolist() for place in rows],
    }
    features = Features(
        {
            "prompt": List({"role": Value("string"), "content": Value("string")}),
            "image": Image(),
            "bins": List(Value("int64")),
        }
    )
    return Dataset.from_dict(columns, features=features)


def best_iou(completion_ids: list[list[int]], bins: list[list[int]], **_: Any) -> list[float]:
    """The reward as `GRPOTrainer` calls it."""
    return [cases.reward(ids, box) for ids, box in zip(completion_ids, bins, strict=True)]


class TimedTrainer(GRPOTrainer):
    """The trainer, with the seconds of its last drawing and scoring of answers.

    Two things keep it from PaliGemma, and neither costs time to mend. It hands on the `labels` that
    PaliGemma's processor makes, to a method that takes none. And it marks drawn tokens as the
    prompt's, which PaliGemma reads in both directions: each would see those that follow it.
    """

    draw = experience = np.zeros(2)

    def _generate(self, prompts: list[Any], *more: Any) -> Any:
        start = cases.clock()
        found = super()._generate(prompts, *more)
        self.draw = cases.clock() - start
        return found

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        start = cases.clock()
        found = super()._generate_and_score_completions(inputs)
        self.experience = cases.clock() - start
        return found

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, **more: Any
    ) -> Any:
        kinds = more["token_type_ids"].clone()
        kinds[:, -logits_to_keep:] = 1
        more["token_type_ids"] = kinds
        more.pop("labels", None)
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, **more
        )


class StepByStep(TrainerCallback):
    """Begins each step when a line is read, and answers with its figures."""

    def __init__(self, trainer: TimedTrainer) -> None:
        self._trainer, self._start = trainer, cases.clock()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not sys.stdin.readline():
            sys.exit()
        cases.reset_peak()
        self._start = cases.clock()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        trainer = self._trainer
        step = cases.clock() - self._start
        reply(
            {
                "draw": trainer.draw.tolist(),
                "experience": trainer.experience.tolist(),
                "update": (step - trainer.experience).tolist(),
                "step": step.tolist(),
                "reward": trainer._metrics["train"]["reward"][-1],
                "tokens": trainer._metrics["train"]["completions/mean_length"][-1],
                "peak_gb": cases.peak_gb(),
            }
        )


def make_trainer(
    directory: str, folder: str, recompute: bool, questions: cases.Questions
) -> TimedTrainer:
    low, high = cases.EPSILONS
    rows = questions.words.shape[0] * questions.words.shape[1] * cases.GROUP
    settings = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=1,
        num_generations=cases.GROUP,
        max_completion_length=cases.ANSWER_TOKENS,
        generation_kwargs={"min_new_tokens": cases.ANSWER_TOKENS},
        gradient_checkpointing=recompute,
        shuffle_dataset=False,
        beta=cases.KL_WEIGHT,
        epsilon=low,
        epsilon_high=high,
        loss_type="dapo",
        learning_rate=cases.LEARNING_RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_steps=1000,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    parts = "|".join(cases.LORA_PARTS)
    lora = LoraConfig(
        r=cases.LORA_RANK,
        lora_alpha=int(cases.LORA_ALPHA),
        target_modules=rf".*language_model.*\.({parts})",
    )
    trainer = TimedTrainer(
        model=AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32),
        reward_funcs=best_iou,
        args=settings,
        train_dataset=make_dataset(questions),
        processing_class=make_processor(),
        peft_config=lora,
    )
    trainer.add_callback(StepByStep(trainer))
    return trainer


def checks(trainer: TimedTrainer, questions: cases.Questions) -> dict[str, Any]:
    """Returns values that both sides must agree on: log-probabilities, and rewards of answers."""
    texts, pictures = [], []
    for place in np.ndindex(*questions.words.shape[:2]):
        texts.append("<image>" + " ".join(map(cases.token_text, questions.words[place])))
        pictures.append([Picture.fromarray(questions.images[place[0]])])
    inputs = trainer.processing_class(
        text=texts, images=pictures, padding=True, return_tensors="pt"
    )
    answers = torch.from_numpy(questions.answers.reshape(-1, cases.ANSWER_TOKENS))
    ids = torch.cat([inputs["input_ids"], answers], dim=1)
    width = cases.IMAGE_TOKENS + cases.PROMPT_TOKENS + cases.ANSWER_TOKENS
    assert ids.shape[1] == width, f"{ids.shape[1]} tokens a row, not {width}"
    with torch.no_grad():
        found, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            ids,
            torch.ones_like(ids),
            cases.ANSWER_TOKENS,
            pixel_values=inputs["pixel_values"],
            num_images=[1] * len(texts),
            token_type_ids=torch.zeros_like(ids),
        )
    rewards = [cases.reward(ids, bins) for ids, bins in cases.example_answers()]
    return {"logprobs": found.reshape(-1).tolist(), "rewards": rewards}


def main() -> None:
    if sys.argv[1] == "make":
        print(make_checkpoint(Path(sys.argv[2])))
        return
    directory, variant = sys.argv[2:4]
    questions = cases.make_questions(int(sys.argv[4]), int(sys.argv[5]))
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(directory, folder, variant == "recomputed", questions)
        loaded = cases.peak_gb()
        reply({"loaded_gb": loaded, **checks(trainer, questions)})
        trainer.train()


if __name__ == "__main__":
    main()

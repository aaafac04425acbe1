"""A LoRA adapter on a tiny language model with random weights: Hugging Face's Trainer; only the adapter is sent."""

import os

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainingArguments

WORDS, LENGTH = 32, 16


def make_model():
    """The same frozen model on every rank, with an adapter."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, **sizes))
    return get_peft_model(model, LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj", "lm_head"]))


def adapter(model):
    return get_peft_model_state_dict(model, save_embedding_layers=False)


class Site:
    """A client whose text counts in steps of 1, 2 or 3: its rows have s = 40."""

    def __init__(self, k, model):
        self.model, self.samples = model, 40
        first = torch.arange(self.samples)[:, None]
        self.text = (first + (1 + k % 3) * torch.arange(LENGTH)) % WORDS

    def fit(self, x, contact):
        set_peft_model_state_dict(self.model, x)
        rows = [{"input_ids": row, "labels": row} for row in self.text]
        arguments = TrainingArguments(
            output_dir="unused", max_steps=contact.steps, learning_rate=contact.step_size, seed=contact.seed,
            per_device_train_batch_size=8, use_cpu=True, save_strategy="no", logging_strategy="no", report_to=[],
            disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(self.model, arguments, train_dataset=rows)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return adapter(self.model), contact.steps

    def evaluate(self, x):
        set_peft_model_state_dict(self.model, x)
        self.model.eval()
        with torch.no_grad():
            return {"train_loss": float(self.model(input_ids=self.text, labels=self.text).loss)}


def clients(number=6):
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):  # else Trainer takes mpirun's ranks for its own
        os.environ.pop(name, None)
    model = make_model()
    return adapter(model), [Site(k, model) for k in range(number)]

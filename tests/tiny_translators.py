"""Encoder-decoders of a few thousand parameters, and the pairs that they read."""

import random

import torch
from common import randomize
from datasets import Dataset
from families import small
from transformers import AutoModelForSeq2SeqLM

from sublayers import MacaronSeq2SeqConfig, SandwichSeq2SeqConfig
from sublayers.hub.tokenizers import save_tokenizers
from sublayers.training.data.pairs import train_pair_tokenizers

WORDS = {"eins": "one", "zwei": "two", "drei": "three", "vier": "four", "sechs": "six"}
CONVOLUTIONS = {"encoder_sublayer_order": "(dwf)2", "decoder_sublayer_order": "ldcfwcf"}
CONVOLUTIONS |= {"kernel_sizes": [3], "attention_window": 2, "position_embedding_type": "rotary"}
FAMILIES = {
    "pre-norm": (MacaronSeq2SeqConfig, {"encoder_sublayer_order": "(fsf)2", "decoder_sublayer_order": "fscfscf"}),
    "convolutions": (SandwichSeq2SeqConfig, CONVOLUTIONS),
    "post-norm": (SandwichSeq2SeqConfig, {"encoder_sublayer_order": "(sf)2", "decoder_sublayer_order": "(scf)2"}),
}


def draw_pairs(number, seed=0):
    draw = random.Random(seed)
    chosen = [draw.choices([*WORDS], k=draw.randint(1, 6)) for _ in range(number)]
    return [(" ".join(words), " ".join(WORDS[word] for word in words)) for words in chosen]


def save_pairs(folder, number=40):
    """Write pairs, one a line with a tab between, and an empty line."""
    lines = "".join(f"{source}\t{target}\n" for source, target in draw_pairs(number))
    (folder / "pairs.txt").write_text(lines + "\n")
    return str(folder / "pairs.txt")


def save_translator(folder, family="post-norm", joint=True, **options):
    """Save a model of random weights with one tokenizer or two."""
    config_class, orders = FAMILIES[family]
    pairs = Dataset.from_list([{"source": source, "target": target} for source, target in draw_pairs(30)])
    trained = train_pair_tokenizers(pairs, [300] if joint else [300, 300])
    source, target = trained[0], trained[-1]
    sizes = {"vocab_size": len(target), "label_smoothing": 0.3, "final_norm": True}
    if not joint:
        sizes |= {"encoder_vocab_size": len(source), "share_encoder_decoder_embeddings": False}
    ids = {name: getattr(target, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    model = randomize(AutoModelForSeq2SeqLM.from_config(small(config_class, **orders | sizes | ids | options)))
    model.generation_config.update(num_beams=2, max_length=12)
    save_tokenizers(trained, str(folder), model.config)
    model.save_pretrained(folder)
    return model.eval(), source, target


@torch.no_grad()
def loss_of(model, rows):
    """The mean loss of all target tokens, each pair by itself."""
    nats, tokens = 0.0, 0
    for row in rows:
        labels = torch.tensor(row["labels"])
        targets = torch.tensor([model.config.decoder_start_token_id, *labels[:-1]])[None]
        logits = model(torch.tensor([row["input_ids"]]), decoder_input_ids=targets, use_cache=False).logits[0]
        nats -= logits.log_softmax(-1).gather(1, labels[:, None]).sum().item()
        tokens += len(labels)
    return nats / tokens

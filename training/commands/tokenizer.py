"""`sublayers tokenizer`: train a tokenizer of one of five kinds on any corpus."""

from dataclasses import MISSING, dataclass

from sublayers.training.data.corpus import CorpusArguments, load_corpus
from sublayers.training.data.tokenizers import TokenizerModel, sample, train_tokenizer
from sublayers.training.flags import flag, parse_flags
from sublayers.training.folders import refuse_to_overwrite


@dataclass
class TokenizerArguments:
    """Flags of `sublayers tokenizer`."""

    output_dir: str = flag("new folder for the tokenizer", MISSING)
    model: TokenizerModel = flag("byte-level BPE, BERT's WordPiece, single bytes, single characters, or words", "bpe")
    vocab_size: int = flag("largest size, special tokens included; not for byte", 8192)


def main(argv: list[str]) -> None:
    """Train a tokenizer on the training split of a corpus and save it.

    Raises:
        FileExistsError: the output folder is not empty.
        ValueError: bad flags or a corpus that cannot be read.
    """
    args, corpus_args = parse_flags(
        argv,
        [TokenizerArguments, CorpusArguments],
        "sublayers tokenizer --output_dir DIR [--name value ...]",
    )
    refuse_to_overwrite(args.output_dir)
    corpus = load_corpus(corpus_args)
    texts = sample(corpus.get("train", corpus["validation"]), args.model)
    tokenizer = train_tokenizer(texts, args.model, args.vocab_size)
    tokenizer.save_pretrained(args.output_dir)
    print(f"{len(tokenizer)} tokens in {args.output_dir}")

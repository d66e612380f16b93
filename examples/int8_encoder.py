"""What 8 bits change of a sentence encoder: `python examples/int8_encoder.py MODEL pairs.jsonl questions.jsonl`.

The pairs have sentence1, sentence2 and label, as STS-B; the questions have question and context, as SQuAD.
"""

import sys

from datasets import load_dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    InformationRetrievalEvaluator,
)

import sublayers

model, *files = sys.argv[1:]
pairs, questions = (load_dataset("json", data_files=file, split="train") for file in files)
passages = {text: str(number) for number, text in enumerate(dict.fromkeys(questions["context"]))}
asked = {str(number): question for number, question in enumerate(questions["question"][:2000])}
answers = {str(number): {passages[text]} for number, text in enumerate(questions["context"][:2000])}
corpus = {number: text for text, number in passages.items()}
similarity = EmbeddingSimilarityEvaluator(pairs["sentence1"], pairs["sentence2"], pairs["label"])
retrieval = InformationRetrievalEvaluator(asked, corpus, answers, accuracy_at_k=[10])
encoder, texts = SentenceTransformer(model, device="cpu"), [*pairs["sentence1"][:100], *list(passages)[:60]]
for runtime, int8 in (("openvino", False), ("openvino", True), ("onnx", True)):
    faster = sublayers.optimize(encoder, verify=texts, runtime=runtime, int8=int8)
    scores = similarity(faster)["spearman_cosine"], retrieval(faster)["cosine_accuracy@10"]
    print(runtime, "int8" if int8 else "fp32", "Spearman {:.4f}, hits at 10 {:.4f}".format(*scores))

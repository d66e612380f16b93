"""The rules of the Hub for metadata, by which our cards are checked, find what is wrong with a card."""

import pytest
from hub_metadata import metadata_errors

CARD = """---
license: apache-2.0
language: [en, de]
library_name: transformers
pipeline_tag: translation
tags: [sublayers]
datasets: [ann/sentences, multi30k]
metrics: [bleu]
model-index:
- name: model
  results:
  - task: {type: translation}
    dataset: {name: Multi30k, type: multi30k, split: test}
    metrics: [{type: bleu, value: 41.5}]
---
# Model
"""


@pytest.mark.parametrize(
    ("right", "wrong", "name"),
    [
        ("apache-2.0", "apache-2", "license"),
        ("apache-2.0", "other", "license_name"),
        # yaml reads the code of Norwegian as a boolean
        ("[en, de]", "[en, no]", "language"),
        ("transformers", "transformer", "library_name"),
        ("pipeline_tag: translation", "pipeline_tag: translate", "pipeline_tag"),
        ("[sublayers]", "[1]", "tags"),
        ("ann/sentences", "/sentences", "datasets"),
        ("[bleu]", "[sacre bleu]", "metrics"),
        ("- name: model", "- title: model", "model-index[0].name"),
        ("task: {type", "task: {name", "model-index[0].results[0].task.type"),
        ("split: test", "split: 3", "split"),
        ("{name: Multi30k, ", "{", "model-index[0].results[0].dataset.name"),
        ("value: 41.5", "value: .nan", "model-index[0].results[0].metrics[0].value"),
        ("license: apache-2.0", "license: [", "YAML"),
    ],
)
def test_metadata_is_checked(right, wrong, name):
    assert metadata_errors(CARD) == ([], [])
    card = CARD.replace(right, wrong, 1)
    assert card != CARD
    errors, _ = metadata_errors(card)
    assert name in errors[0]

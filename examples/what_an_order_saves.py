"""Time BERT base beside four orders and a shallower BERT, to classify a text: `python examples/what_an_order_saves.py`.

All have BERT's sizes and random weights: the order alone decides how much of the network runs.
"""

from functools import partial
from statistics import median

import torch
from transformers import BertConfig, BertForSequenceClassification

from sublayers import PARBertConfig, PARBertForSequenceClassification
from sublayers.training.metrics.timing import ratio, time_in_turn

models = {"BERT": BertForSequenceClassification(BertConfig())}
for order in ("(sf)12", "par(24,5)", "s12f12", "s5f19", "(sf)3"):
    models[order] = PARBertForSequenceClassification(PARBertConfig(sublayer_order=order))
text = torch.randint(1000, 20000, (1, 128))
calls = {name: partial(model.eval(), text) for name, model in models.items()}
with torch.inference_mode():
    times = time_in_turn("rounds", calls, repeats=5, device=torch.device("cpu"))
for name, measured in times.items():
    share = ratio(measured, times["BERT"])
    print(f"{name:>10} {median(measured):7.1f} ms, {share:.2f} of BERT {'█' * round(40 * share)}")

from argparse import Namespace
from collections import Counter

import torch

from sublayers.training.lab.bench import iot

SIZES = {"layers": 1, "hidden_size": 16, "heads": 2, "vocab_size": 50, "new_tokens": 3}


def test_spreads_the_sentences_evenly_over_all_orders():
    args = Namespace(**SIZES, orders=["sf,fs:scf,csf,fcs"], device="cpu", dtype="float32", shapes=["6x4"])
    fixed, chooser = iot.build(args).values()
    batch = {"input_ids": torch.ones(6, 4, dtype=torch.long)}
    forced = {name: Counter(order.tolist()) for name, order in iot.spread_orders(chooser, batch).items()}
    assert iot.spread_orders(fixed, batch) == {}
    assert forced == {"forced_encoder_order": {0: 3, 1: 3}, "forced_decoder_order": {0: 2, 1: 2, 2: 2}}

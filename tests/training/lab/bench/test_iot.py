from collections import Counter

import torch

from sublayers.training.lab.bench import iot


def test_spreads_the_sentences_evenly_over_all_orders(tiny):
    fixed, chooser = iot.build(tiny(layers=1, orders=["sf,fs:scf,csf,fcs"], shapes=["6x4"])).values()
    # as in the paper
    assert fixed.config.intermediate_size == chooser.config.intermediate_size == 2 * 16
    batch = {"input_ids": torch.ones(6, 4, dtype=torch.long)}
    forced = {name: Counter(order.tolist()) for name, order in iot.spread_orders(chooser, batch).items()}
    assert iot.spread_orders(fixed, batch) == {}
    assert forced == {"forced_encoder_order": {0: 3, 1: 3}, "forced_decoder_order": {0: 2, 1: 2, 2: 2}}

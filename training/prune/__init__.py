"""What a trained model answers without some of its sublayers, and which of them are worth their price."""

"""The letters of the order language: a file for each, without torch, says what the project knows of it."""

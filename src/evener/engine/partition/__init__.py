"""The step on several devices, made of functions that are called on every part."""

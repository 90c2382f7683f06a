"""Contenders measured in turns, each in a process of its own, under one driver."""

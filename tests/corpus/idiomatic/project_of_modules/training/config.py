from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    width: int = 32
    per_replica_batch: int = 32
    learning_rate: float = 0.05
    epochs: int = 2

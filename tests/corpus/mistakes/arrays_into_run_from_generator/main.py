# machine: 2 GPUs
"""A generator of NumPy batches feeds the replicas."""

from batches import batches
from trainer import ReplicaTrainer


def main(epochs=2):
    trainer = ReplicaTrainer()
    for epoch in range(epochs):
        for x, y in batches(size=trainer.global_batch, seed=epoch):
            trainer.train_batch(x, y)  # may: ENG-060
        trainer.report(epoch)


if __name__ == "__main__":
    main()

class Meter:
    def __init__(self):
        self.total = 0.0
        self.steps = 0

    def update(self, loss):
        self.total += float(loss)  # finding: DOC-402
        self.steps += 1

    def __str__(self):
        return f"loss {self.total / max(self.steps, 1):.4f}"

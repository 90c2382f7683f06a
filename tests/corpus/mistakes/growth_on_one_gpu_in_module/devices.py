from tensorflow import config, distribute as d


def setup_gpu():
    gpus = config.list_physical_devices("GPU")
    if gpus:
        first = gpus[0]
        config.experimental.set_memory_growth(first, True)  # finding: DOC-106


def make_strategy():
    return d.MirroredStrategy()

from keras import Input, Sequential, layers

model = Sequential(  # finding: DOC-215
    [
        Input((20,), dtype="int32"),
        layers.Embedding(500, 8),
        layers.Bidirectional(layers.GRU(8)),
        layers.Dense(1, activation="sigmoid"),
    ]
)

"""Tells TensorFlow who works with whom."""

import json
import os


def export(hosts, index):
    task = {"type": "worker", "index": index}
    os.environ["TF_CONFIG"] = json.dumps(  # may: DOC-208
        {"cluster": {"worker": hosts}, "task": task}
    )

"""Runs the failing programs of a file, and writes what each one ends with: type, text and lines.

    python cases.py steps.py results.json

Each function of the file with a name in ``fails_...`` is a program; it has to raise.
"""

import importlib.util
import json
import pathlib
import re
import sys
import traceback

LINE = r'File "(.*?)", line (\d+), in (.*)'
path, results = pathlib.Path(sys.argv[1]), {}
spec = importlib.util.spec_from_file_location(path.stem, path)
programs = importlib.util.module_from_spec(spec)
sys.modules[path.stem] = programs
spec.loader.exec_module(programs)
for name, program in list(vars(programs).items()):
    if not name.startswith("fails_"):
        continue
    try:
        program()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        text = str(error)
        results[name] = {
            "type": type(error).__name__,
            "text": text,
            "raised": [f.lineno for f in frames if f.filename == str(path)],
            "defined": re.findall(LINE, text),
        }
    else:
        results[name] = {"type": "", "text": "", "raised": [], "defined": []}
pathlib.Path(sys.argv[2]).write_text(json.dumps(results, indent=1), encoding="utf-8")

"""Long runs: step a configuration for minutes or days, watch what it takes of the machine, and say what grows.

    clock -> Driver (steps, kills) -> Sampler -> samples.jsonl -> fit -> judge -> report.json, soak.png

``slope``, ``judge`` and ``series`` are pure: numbers in, a verdict out. Nothing here keeps samples in memory, because a
watch that grows would find itself.
"""

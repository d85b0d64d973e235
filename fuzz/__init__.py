"""Coverage-guided fuzzers for what reads foreign bytes: `python -m fuzz.ir`, `fuzz.problem` and `fuzz.npy`.

Each takes libFuzzer's options (`-max_total_time=60`, `-runs=100000`) and starts from its folder of fuzz/corpus.
"""

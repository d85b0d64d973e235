"""LLVM engine, code cache, thread pool, buffers, launch: the only place with ctypes and threads."""

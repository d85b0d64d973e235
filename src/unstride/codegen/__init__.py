"""Plan -> LLVM IR. Never touches arrays."""

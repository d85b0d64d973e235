"""The AArch64 kernels, run for real under qemu."""

"""The version, where the build, the package and the code cache's key can all read it."""

__version__ = "0.1.0"

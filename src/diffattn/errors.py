"""Every error that diffattn raises on purpose."""


class DiffAttnError(Exception):
    """Base of all errors raised on purpose: catch this one to catch them all."""


class ShapeError(DiffAttnError, ValueError):
    """A tensor does not have the documented shape, dtype or device."""


class ConfigError(DiffAttnError, ValueError):
    """A setting is impossible, unknown, or contradicts another one."""


class CheckpointError(DiffAttnError):
    """Files on disk are missing, foreign, damaged, or of another run."""


class BackendError(DiffAttnError):
    """The named backend cannot run these inputs on this machine."""

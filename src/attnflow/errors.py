"""What a user's mistake raises: one type, so that the command line can tell it from a fault of ours."""


class InputError(ValueError):
    """An argument that cannot be used. The message says what was given, what was expected and what to do."""


class AttentionWarning(UserWarning):
    """Input that can be used, but that is probably not what was meant."""

"""What goes wrong in the lab, in words for whoever started it."""


class LabError(Exception):
    """The lab cannot do it; the message says why and what to do."""

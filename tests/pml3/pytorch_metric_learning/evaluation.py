"""Only here in version 3."""


class AccuracyCalculator:
    pass

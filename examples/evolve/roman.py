"""Roman numerals; `roman` has two faults that its tests find."""

NUMERALS = (
    (1000, "M"),
    (900, "CM"),
    (500, "D"),
    (400, "CD"),
    (100, "C"),
    (90, "XC"),
    (50, "L"),
    (40, "XL"),
    (10, "X"),
    (9, "IX"),
    (5, "V"),
    (4, "IV"),
    (1, "I"),
)


def roman(number):
    """*number* in Roman numerals; only 1 to 3999 have any."""
    if number < 0 or number > 3999:
        raise ValueError(number)
    parts = []
    for value, letters in NUMERALS:
        while number > value:
            parts.append(letters)
            number -= value
    return "".join(parts)

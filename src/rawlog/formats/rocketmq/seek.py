"""stub"""


def pick(file, group, table, selection):
    return None

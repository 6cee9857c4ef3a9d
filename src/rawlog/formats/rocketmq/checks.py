"""stub"""


def commit_log():
    return ()


def compaction_log():
    return ()


def consume_queue():
    return ()


def batch_queue():
    return ()


def key_index():
    return ()

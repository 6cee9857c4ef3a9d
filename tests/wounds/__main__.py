"""`python -m tests.wounds [--ledger] [SUBJECT | SUBJECT/WOUND] ...`: run wounds and print what is wrong with each outcome.

`--ledger` writes known.txt again. Patterns may have `*`.
"""

from __future__ import annotations

import fnmatch
import sys
import time
from collections import Counter, defaultdict

from tests.wounds import ledger, suite
from tests.wounds.wounds import WOUNDS


def main(words: list[str]) -> None:
    patterns = [word for word in words if not word.startswith("--")]
    tally: Counter[str] = Counter()
    seen: ledger.Failures = defaultdict(set)
    ran = []
    start = time.process_time()
    for subject, name in suite.cases():
        case = f"{subject}/{name}"
        if patterns and not any(fnmatch.fnmatch(case, pattern) or subject == pattern for pattern in patterns):
            continue
        verdicts = suite.outcomes(subject, WOUNDS[name])
        if verdicts is None:
            continue
        ran.append(case)
        print(f"# {case}", flush=True)
        tally["wounds"] += 1
        tally["outcomes"] += len(verdicts)
        for verdict in verdicts:
            tally["failed"] += bool(verdict.wrong)
            for check, what in verdict.wrong.items():
                seen[case].add((verdict.verb, check))
                print(f"{case} {verdict.verb} {check}: {what}", flush=True)
    print(f"# {dict(tally)} in {time.process_time() - start:.1f} s of one core", flush=True)
    if "--ledger" in words:
        ledger.write(seen, ran)


if __name__ == "__main__":
    main(sys.argv[1:])

#!/usr/bin/env python3
"""Compares the results of xfstests with what is expected of them; ends with 1 where anything is unexpected.

usage: xfstests-compare.py EXPECTED RESULTS [whole]

EXPECTED has one line for each expectation: `fails TEST REASON`, `varies TEST REASON` (it depends on the machine or on chance),
`never TEST REASON` (it is left out of the run), or `notrun "PATTERN" REASON`: a test that says of itself that it does not apply has to
match one of these regular expressions. RESULTS is the directory that xfstests writes to. With `whole` each test that is expected to fail
has to be among those that were run: a run that ended early is none that went as expected.
"""
import pathlib
import re
import shlex
import sys


def read_expected(path):
    """Reasons by test, for each kind that names tests; and the patterns."""
    tests = {"fails": {}, "varies": {}, "never": {}}
    patterns = []
    for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        kind, what, *reason = shlex.split(line)
        if not reason:
            sys.exit(f"{path}:{number}: no reason is given")
        if kind == "notrun":
            patterns.append(re.compile(what))
        elif kind in tests:
            tests[kind][what] = " ".join(reason)
        else:
            sys.exit(f"{path}:{number}: {kind!r} is none of fails, varies, never, notrun")
    return tests, patterns


def is_of_others(directory, test):
    """Whether a test failed for nothing but a program that the kernel ended for lack of memory: the log of the kernel is that of the
    whole machine."""
    log = directory / f"{test}.dmesg"
    if (directory / f"{test}.out.bad").exists() or not log.exists():
        return False
    text = log.read_text(errors="replace")
    return "oom-killer" in text and not re.search(r"WARNING:|BUG:|INFO: task|Oops", text)


def read_results(directory):
    """The tests that were begun, those that failed, and why others did not apply."""
    log = directory / "check.log"
    tests = {"Ran": [], "Failures": [], "Not run": []}
    for line in log.read_text().splitlines() if log.exists() else []:
        name, found, rest = line.partition(":")
        if found and name in tests:
            tests[name] = rest.split()
    skipped = {test: (directory / f"{test}.notrun").read_text().strip() for test in tests["Not run"]}
    others = [test for test in tests["Failures"] if is_of_others(directory, test)]
    if others:
        print("nothing but a lack of memory in the log of the kernel:", *others)
    failed = [test for test in tests["Failures"] if test not in others]
    return tests["Ran"], failed, skipped


def main():
    expected, patterns = read_expected(sys.argv[1])
    ran, failed, skipped = read_results(pathlib.Path(sys.argv[2]))
    if not ran:
        sys.exit("no test was run")
    fails, varies = expected["fails"], expected["varies"]
    passed = [test for test in ran if test not in failed and test not in skipped]
    unexpected = [f"{test} failed" for test in failed if test not in fails and test not in varies]
    unexpected += [f"{test} passed, and is expected to fail: {fails[test]}" for test in passed if test in fails]
    unexpected += [
        f"{test} did not run: {why}"
        for test, why in skipped.items()
        if not any(pattern.search(why) for pattern in patterns)
    ]
    if "whole" in sys.argv[3:]:
        unexpected += [f"{test} was not run, and is expected to fail" for test in fails if test not in ran]
    print(f"{len(passed)} passed, {len(failed)} failed, {len(skipped)} do not apply")
    if unexpected:
        print("UNEXPECTED:", *unexpected, sep="\n  ")
        sys.exit(1)
    print("everything as expected")


main()

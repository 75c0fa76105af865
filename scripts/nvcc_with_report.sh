#!/usr/bin/env bash
# nvcc_with_report.sh REPORT COMMAND...: runs nvcc and keeps what ptxas says (-Xptxas=-v). All of it is shown if it fails.
set -u
report=$1
shift
"$@" 2>"$report"
code=$?
if [ $code -ne 0 ]; then cat "$report" >&2; fi
exit $code

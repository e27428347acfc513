#!/bin/sh
# refuse_notes.sh COMPILER ARGUMENT...: runs the compiler, and fails if ptxas has put waits or arrives of its own among
# the wgmmas (docs/wgmma.md), or has ignored setmaxnreg. It says so in notes, C75xx, which -Werror lets pass.
said=$("$@" 2>&1)
status=$?
[ -z "$said" ] || printf '%s\n' "$said" >&2
case $said in *"(C75"*) [ $status -ne 0 ] || status=1 ;; esac
exit $status

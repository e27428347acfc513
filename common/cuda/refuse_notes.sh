#!/bin/sh
# refuse_notes.sh COMPILER ARGUMENT...: runs the compiler, and fails if ptxas has inserted waits or arrives among the
# wgmmas (docs/wgmma.md) or has ignored setmaxnreg. ptxas reports both as notes, C75xx, which -Werror does not make errors.
said=$("$@" 2>&1)
status=$?
[ -z "$said" ] || printf '%s\n' "$said" >&2
case $said in *"(C75"*) [ $status -ne 0 ] || status=1 ;; esac
exit $status

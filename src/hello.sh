#!/bin/sh
# muster's sample yuno: says hello now and then, to show what a yuno, its config and its log are.
echo "hello from $MUSTER_UNIT, configured by $MUSTER_CONFIG:"
cat "$MUSTER_CONFIG"
echo
n=0
while :; do
    n=$((n + 1))
    echo "hello, number $n"
    sleep 10
done

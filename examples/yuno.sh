#!/bin/sh
# A yuno in plain shell: it plays, and tells numbers about itself. A shell cannot connect to a socket, so a line of Perl,
# which is on every Debian (perl-base), carries lines between the socket and two FIFOs. Where there is none, the sample
# in Rust is one small file, and speaks for a shell just as well.
#
#     muster artifact create examples/yuno.sh --role bell --version 1
#     muster unit create yuno default/bell --artifact bell --lines --run --play
set -eu

carry='use strict; use Socket; $| = 1;
    my $name = $ENV{MUSTER_SOCKET}; $name =~ s/^@/\0/;
    socket(my $s, AF_UNIX, SOCK_STREAM, 0) or exit 1;
    connect($s, pack_sockaddr_un($name)) or exit 1;
    my ($in, $out) = (fileno(STDIN), fileno($s));
    while (1) {
        my $ready = ""; vec($ready, $in, 1) = 1; vec($ready, $out, 1) = 1;
        select($ready, undef, undef, undef) > 0 or next;
        for ([$in, \*STDIN, $s], [$out, $s, \*STDOUT]) {
            my ($fd, $from, $to) = @$_;
            next unless vec($ready, $fd, 1);
            my $got = sysread($from, my $piece, 65536) or exit 0;
            my $sent = 0;
            while ($sent < $got) { $sent += syswrite($to, $piece, $got - $sent, $sent) // exit 0 }
        }
    }'

# The folder that a yuno works in is its own.
rm -f in out
mkfifo in out
# When the connection is gone, to write is no reason to end.
trap '' PIPE
# How a yuno with a channel is asked to end.
trap 'exit 0' QUIT

say() { printf '%s\n' "$1" >&3 2>/dev/null || :; }
# `value KEY LINE`: the text or number behind a key, which is enough for ids.
value() { printf '%s\n' "$2" | sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"; }
ok() { say "{\"answer\":{\"id\":\"$1\",\"ok\":$2}}"; }

ready=false
while :; do
    perl -e "$carry" <out >in &
    exec 3>out 4<in
    say "{\"hello\":{\"token\":\"$MUSTER_TOKEN\",\"protocol\":1,\"can\":[\"play\",\"stats\"],\"ready\":$ready}}"
    while read -r line <&4; do
        id=$(value id "$line")
        case $line in
            '{"welcome":'*)
                playing=$(value playing "$line")
                $ready || say '{"ready":{}}'
                ready=true
                ;;
            '{"play":'*) playing=true; echo play; ok "$id" null ;;
            '{"pause":'*) playing=false; echo pause; ok "$id" null ;;
            '{"stats":'*) ok "$id" "{\"playing\":$playing}" ;;
            '{"refused":'*) echo "$line" >&2; exit 1 ;;
            *) say "{\"answer\":{\"id\":\"$id\",\"error\":{\"code\":\"unknown\",\"message\":\"this is not known here\"}}}" ;;
        esac
    done
    # The connection is gone, and is made again.
    exec 3>&- 4<&-
    sleep 0.2
done

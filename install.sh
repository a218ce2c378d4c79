#!/bin/sh
# Installs muster on this host from a release: a folder or URL with SHA256SUMS, SHA256SUMS.sig and programs. Nothing is
# changed before the signature and the program's sum are checked, and before it was said what will be done.
#
#   sh install.sh --from URL --key KEY --join TOKEN --now    the agent, as a service that joins a fleet
#   sh install.sh --help
set -eu

# The public key that releases are signed with (Ed25519, base64 of its DER form); packaging/release writes it here.
release_key=

usage() {
    cat <<'END'
Install muster from a release: check its signature, say what will be done, ask, and do it.

Usage: sh install.sh [OPTION]...

  --from PLACE      the release: a folder, or a URL [default: the folder of this script]
  --key KEY         the public key that the release must be signed with: a PEM file, or its base64
                    [default: the key in this script, if it came with a release]
  --program         install the whole program, its manual pages and completions for shells, and no
                    service: for `muster up`, a console, or the command line
                    [default: the agent, as a service of systemd]
  --prefix DIR      the program goes into DIR/bin [default: /usr/local]
  --join TOKEN      join a fleet with a token of `muster token create`; - reads it from standard input
  --now             start the agent now, rather than at the next boot
  --yes             do not ask
  --dry-run         say what would be done, and do nothing
  --undo            remove what this script installed; data and changed configuration stay
  --purge           with --undo: remove configuration and data, too
  -h, --help        print this

Exit codes: 0 done, 1 failed, 2 usage, 3 refused: the release is not what was signed.
END
}

say() {
    printf '%s\n' "$*"
}

# fail CODE MESSAGE [HINT]
fail() {
    printf 'error: %s\n' "$2" >&2
    [ -z "${3-}" ] || printf 'hint: %s\n' "$3" >&2
    exit "$1"
}

need() {
    command -v "$1" >/dev/null 2>&1 || fail 1 "this needs the program $1, which is not here" "install the package $2"
}

from= key=$release_key part=agent prefix=/usr/local join= now= yes= dry= undo= purge=
while [ $# -gt 0 ]; do
    case "$1" in
        --from | --key | --prefix | --join)
            [ $# -ge 2 ] || fail 2 "$1 needs a value" "sh install.sh --help"
            case "$1" in
                --from) from=$2 ;;
                --key) key=$2 ;;
                --prefix) prefix=$2 ;;
                --join) join=$2 ;;
            esac
            shift
            ;;
        --program) part=program ;;
        --now) now=yes ;;
        --yes) yes=yes ;;
        --dry-run) dry=yes ;;
        --undo) undo=yes ;;
        --purge) purge=yes ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) fail 2 "unknown option $1" "sh install.sh --help" ;;
    esac
    shift
done
case "$prefix" in
    /*[!A-Za-z0-9/._+-]*) fail 2 "--prefix $prefix has characters that a service's file cannot have" ;;
    /*) ;;
    *) fail 2 "--prefix $prefix is not an absolute path" ;;
esac
if [ "$part" = program ] && [ -n "$join$now" ]; then
    fail 2 "--join and --now are for the agent, and --program installs none" "leave one of them out"
fi
[ -z "$purge" ] || [ -n "$undo" ] || fail 2 "--purge goes with --undo"

program=$prefix/bin/muster
share=$prefix/share
# What this script installed: its part, and the sums of the files that it may remove again.
record=$prefix/lib/muster/installed
config=/etc/muster/agent.toml
data=/var/lib/muster

sum_of() {
    sha256sum "$1" | cut -d' ' -f1
}

# The value of a line of the record.
recorded() {
    [ ! -f "$record" ] || sed -n "s/^$1 //p" "$record"
}

confirm() {
    [ -z "$yes" ] || return 0
    if ! (: </dev/tty) 2>/dev/null; then
        fail 1 "no terminal to ask on, so nothing was changed" "pass --yes to run without a question"
    fi
    printf '%s [y/N] ' "$1" >/dev/tty
    read -r answer </dev/tty
    case "$answer" in
        y | Y | yes) ;;
        *) fail 1 "nothing was changed" ;;
    esac
}

can_write() {
    folder=$1
    while [ ! -e "$folder" ]; do folder=$(dirname "$folder"); done
    [ -w "$folder" ] || fail 1 "$1 cannot be written by this user" "run this as root (sudo), or choose another --prefix"
}

# Whether processes of units still run: their shims do.
units_run() {
    for running in /proc/[0-9]*/exe; do
        case "$(readlink "$running" 2>/dev/null || true)" in
            "$data"/agent/shim-*) return 0 ;;
        esac
    done
    return 1
}

remove() {
    rm -f "$1"
    say "removed $1"
}

# Manual pages and completions, by their paths below the folder of such files.
remove_pages() {
    for page in $1; do
        case "$page" in
            /* | *..*) ;;
            *) rm -f "$share/$page" ;;
        esac
    done
}

# Folders that are empty now; others stay.
remove_folders() {
    for folder in "$@"; do
        rmdir "$folder" 2>/dev/null || true
    done
}

undo() {
    if [ ! -f "$record" ]; then
        say "nothing that this script installed is below $prefix; nothing is changed"
        exit 0
    fi
    was=$(recorded part)
    its_config=$(recorded config)
    its_pages=$(recorded page)
    can_write "$program"
    say "This will be done:"
    if [ "$was" = agent ] && [ -x "$program" ]; then
        "$program" agent uninstall --prefix "$prefix" --dry-run 2>&1 | sed 's/^would /  /'
    else
        say "  remove $program"
    fi
    [ -z "$its_pages" ] || say "  remove its manual pages and completions below $share"
    if [ -n "$purge" ]; then
        say "  remove $config and $data"
    elif [ -n "$its_config" ]; then
        say "  remove $config, unless somebody has changed it"
    fi
    say "  remove $record"
    [ -z "$dry" ] || exit 0
    confirm "Go on?"
    if [ "$was" = agent ] && [ -x "$program" ]; then
        "$program" agent uninstall --prefix "$prefix"
    fi
    [ ! -e "$program" ] || remove "$program"
    if [ -n "$its_pages" ]; then
        remove_pages "$its_pages"
        say "removed its manual pages and completions"
    fi
    if [ "$was" = agent ]; then
        if [ -n "$purge" ]; then
            remove "$config"
            if units_run; then
                say "units still run, so $data stays; remove it when they have ended"
            else
                rm -rf "$data/agent"
                say "removed $data/agent"
            fi
        elif [ -n "$its_config" ] && [ -f "$config" ] && [ "$(sum_of "$config")" = "$its_config" ]; then
            remove "$config"
        elif [ -f "$config" ]; then
            say "$config stays: it was changed, or was there before"
        fi
        [ ! -d "$data/agent" ] || say "$data stays: it has this host's key and its units; --purge removes it"
        remove_folders "$data" "$(dirname "$config")"
    fi
    remove "$record"
    for folder in $(recorded_folders); do remove_folders "$folder"; done
    say "muster is removed"
}

# Folders that were not there before, the deepest first; read before the record goes.
recorded_folders() {
    printf '%s\n' "$made_folders"
}

if [ -n "$undo" ]; then
    made_folders=$(recorded folder)
    undo
    exit 0
fi

# --- What is to be had, and what is needed for that.

need sha256sum coreutils
need openssl openssl
case "$(uname -s)" in
    Linux) ;;
    *) fail 1 "muster runs on Linux, and this is $(uname -s)" ;;
esac
case "$(uname -m)" in
    x86_64 | amd64) machine=x86_64 ;;
    aarch64 | arm64) machine=aarch64 ;;
    armv7l) machine=armv7 ;;
    *) fail 1 "releases have no program for the processor $(uname -m)" "build it from the sources: cargo build --release" ;;
esac
case "$part" in
    agent) name=muster-agent-$machine-linux ;;
    program) name=muster-$machine-linux ;;
esac
if [ -z "$from" ]; then
    from=$(cd "$(dirname "$0")" && pwd)
    [ -f "$from/SHA256SUMS" ] || fail 2 "no release is named" "say --from with a folder or a URL"
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/muster-install.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
pages=

# The public key in PEM.
[ -n "$key" ] || fail 2 "no key is named that the release must be signed with" "say --key with a PEM file, or its base64"
if [ -f "$key" ]; then
    cp "$key" "$work/key.pem"
else
    case "$key" in
        MCowBQYDK2VwAyEA*) body=$key ;;
        *) body=MCowBQYDK2VwAyEA$key ;;
    esac
    printf '%s\n' '-----BEGIN PUBLIC KEY-----' "$body" '-----END PUBLIC KEY-----' >"$work/key.pem"
fi
openssl pkey -pubin -in "$work/key.pem" -noout 2>/dev/null ||
    fail 2 "--key is neither a PEM file with a public key nor the base64 of an Ed25519 key"

# get NAME: copies a file of the release to the work folder, so that nobody changes it after the check.
get() {
    case "$from" in
        http://* | https://*)
            # Plain HTTP is no danger: what arrives is checked by the signature.
            if command -v curl >/dev/null 2>&1; then
                curl --fail --silent --show-error --location --max-time 900 --output "$work/$1" "${from%/}/$1"
            elif command -v wget >/dev/null 2>&1; then
                wget --quiet --timeout=60 --output-document="$work/$1" "${from%/}/$1"
            else
                fail 1 "this needs curl or wget to fetch $from" "install one, or copy the release to this host and name its folder"
            fi || fail 1 "${from%/}/$1 cannot be had"
            ;;
        *) cp "$from/$1" "$work/$1" 2>/dev/null || fail 1 "$from has no file $1 that can be read" ;;
    esac
}

get SHA256SUMS
get SHA256SUMS.sig
# Ed25519 signs the whole text, which OpenSSL does since version 3.0.
openssl pkeyutl -help 2>&1 | grep -q -- -rawin ||
    fail 1 "$(openssl version) cannot check Ed25519 signatures" "OpenSSL 3.0 or later is needed"
openssl pkeyutl -verify -rawin -pubin -inkey "$work/key.pem" -sigfile "$work/SHA256SUMS.sig" \
    -in "$work/SHA256SUMS" >/dev/null 2>&1 ||
    fail 3 "the signature of SHA256SUMS is not of the key that was named; nothing was changed" \
        "fetch the release again; if that is refused, too, ask who made it, and do not install it"

wanted=$(awk -v name="$name" '$2 == name || $2 == "*" name { print $1 }' "$work/SHA256SUMS")
case "$wanted" in
    '') fail 1 "this release has no $name" "$(cut -c67- "$work/SHA256SUMS" | tr '\n' ' ')are what it has" ;;
    *[!0-9a-f]*) fail 3 "SHA256SUMS names $name more than once, or not by a sum" ;;
esac
if [ "$part" = agent ]; then
    # What is asked for is a service; without one the program is installed alone.
    alone="--program --prefix DIR installs the program alone; then"
    [ -d /run/systemd/system ] ||
        fail 1 "systemd does not run on this host, so the agent cannot be its service" \
            "$alone have your own service manager run \`muster agent --join TOKEN\`, and end that process alone"
    [ "$(id -u)" = 0 ] || fail 1 "only root can install the agent as a service" \
        "run this as root (sudo); or $alone \`muster agent --join TOKEN\` needs no root"
fi
installed=
[ ! -f "$program" ] || installed=$(sum_of "$program")

plan=
if [ "$installed" = "$wanted" ]; then
    new=$program
else
    get "$name"
    [ "$(sum_of "$work/$name")" = "$wanted" ] ||
        fail 3 "$name is not the file that was signed: its SHA-256 is another; nothing was changed" \
            "fetch the release again; if that is refused, too, ask who made it, and do not install it"
    chmod 755 "$work/$name"
    new=$work/$name
    "$new" --version >/dev/null 2>"$work/said" ||
        fail 1 "the program does not run here: $(head -1 "$work/said")" "if /tmp forbids programs, name another folder in TMPDIR"
fi

was=$(recorded part)
if [ -f "$program" ] && [ -n "$was" ] && [ "$was" != "$part" ]; then
    fail 1 "this script has installed the other one here before ($was), as $program" \
        "run it with --undo first, or name another --prefix"
fi

# --- What will be done.

if [ "$part" = agent ]; then
    set -- agent install --prefix "$prefix"
    if [ -n "$join" ]; then
        # A token on a command line could be read by other users of this host.
        [ "$join" != - ] || read -r join || [ -n "$join" ]
        case "$join" in
            muster1.*) ;;
            *) fail 2 "--join: this is not a join token, which begins with muster1." "\`muster token create\` on the fleet's machine prints one" ;;
        esac
        (umask 077 && printf '%s\n' "$join" >"$work/token")
        set -- "$@" --join-file "$work/token"
    fi
    # What runs already, as it is to be, is not started again.
    if [ -n "$now" ]; then
        if [ "$new" != "$program" ] || [ -n "$join" ] || ! systemctl --quiet is-active muster-agent 2>/dev/null; then
            set -- "$@" --now
        fi
    fi
    "$new" "$@" --dry-run >"$work/files" 2>"$work/plan" || {
        cat "$work/plan" >&2
        exit 1
    }
    plan=$(sed -n 's/^would /  /p' "$work/plan" | sed "s,$work/$name,$from/$name,")
else
    # Of the new program's own grammar. One that has no verb for them has none.
    mkdir -p "$work/share/man/man1" "$work/share/bash-completion/completions" "$work/share/zsh/site-functions" \
        "$work/share/fish/vendor_completions.d"
    if "$new" man --out "$work/share/man/man1" && "$new" completions bash >"$work/bash" &&
        "$new" completions zsh >"$work/zsh" && "$new" completions fish >"$work/fish"; then
        mv "$work/bash" "$work/share/bash-completion/completions/muster"
        mv "$work/zsh" "$work/share/zsh/site-functions/_muster"
        mv "$work/fish" "$work/share/fish/vendor_completions.d/muster.fish"
    fi 2>/dev/null
    pages=$(cd "$work/share" && find . -type f | sed 's,^\./,,' | sort)
    [ "$new" = "$program" ] || plan="  copy $from/$name to $program"
    if [ -n "$pages" ] && { [ "$new" != "$program" ] || [ "$pages" != "$(recorded page)" ]; }; then
        plan="$plan${plan:+
}  write its manual pages and completions below $share"
    fi
fi
say "$("$new" --version), from $from, signed with the key $(openssl pkey -pubin -in "$work/key.pem" -outform DER | sha256sum | cut -c1-16)…"
if [ -z "$plan" ] && [ -f "$record" ]; then
    say "it is installed as it should be; nothing is changed"
    exit 0
fi
say "This will be done:"
[ -z "$plan" ] || say "$plan"
say "  write $record, by which --undo knows what to remove"
[ -z "$dry" ] || exit 0
can_write "$program"
can_write "$record"
[ -z "$pages" ] || can_write "$share"
confirm "Go on?"

# --- Do it.

# Only a configuration that was not there before, and that nobody changed since, is this script's to remove.
its_config=$(recorded config)
is_its_config=
if [ ! -f "$config" ] || [ "$(sum_of "$config")" = "$its_config" ]; then
    is_its_config=yes
fi
missing() {
    folder=$1
    while [ ! -e "$folder" ]; do
        printf '%s\n' "$folder"
        folder=$(dirname "$folder")
    done
}
folders=$(
    {
        recorded folder
        missing "$(dirname "$record")"
        missing "$prefix/bin"
        for page in $pages; do missing "$share/$(dirname "$page")"; done
    } | sort -ru
)
earlier=$(recorded page)
mkdir -p "$prefix/bin" "$(dirname "$record")"
{
    echo "part $part"
    printf '%s\n' "$folders" | sed '/^$/d; s/^/folder /'
    # Also those of an earlier program, until they are removed.
    printf '%s\n' "$earlier" "$pages" | sed '/^$/d; s/^/page /' | sort -u
} >"$record.new"
mv "$record.new" "$record"
if [ "$part" = agent ]; then
    "$new" "$@"
    [ -z "$is_its_config" ] || its_config=$(sum_of "$config")
    [ -z "$its_config" ] || echo "config $its_config" >>"$record"
else
    if [ "$new" != "$program" ]; then
        # A running program cannot be overwritten, and half a one must not be run.
        cp "$new" "$program.new"
        chmod 755 "$program.new"
        mv "$program.new" "$program"
        say "copied to $program"
    fi
    remove_pages "$earlier"
    for page in $pages; do
        mkdir -p "$share/$(dirname "$page")"
        cp "$work/share/$page" "$share/$page"
        chmod 644 "$share/$page"
    done
    { sed '/^page /d' "$record" && printf '%s\n' "$pages" | sed '/^$/d; s/^/page /'; } >"$record.new"
    mv "$record.new" "$record"
    [ -z "$pages" ] || say "wrote its manual pages and completions below $share"
fi
say "done. \`sh install.sh --undo --prefix $prefix\` removes it again"
if [ "$part" = program ]; then
    if [ "$(command -v muster || true)" != "$program" ]; then
        say "next: have your shell find it: export PATH=$prefix/bin:\$PATH"
    fi
    say "next: \`muster up\` makes a fleet of this host, \`muster agent --join TOKEN\` has it join one"
fi

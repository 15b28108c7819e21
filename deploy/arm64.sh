#!/usr/bin/env bash
# Runs the client as an aarch64 program on an x86-64 machine: a Debian arm64 root folder under
# QEMU's user-mode emulation, with the project's own dependencies for aarch64 installed in it.
set -euo pipefail

usage() {
    cat <<'END'
usage: deploy/arm64.sh [--data PATH] [--security FOLDER] [COMMAND ...]

  --data PATH        images of the client: a folder (/data inside) or a zip (/data.zip inside)
  --security FOLDER  certificate and key of the client (/security inside); without it: insecure
  COMMAND            what to run inside; without it: orchestra-client, for the server at $SERVER

  SERVER             host:port of the server (127.0.0.1:8443); the network inside is the host's
  ARM64_CACHE        folder of the arm64 root, about 3 GB (~/.cache/orchestra_flwr/arm64)
  ARM64_TORCH        which torch (torch==2.10.*)

Needs root (chroot, mounts) and the packages debootstrap and qemu-user-static.
END
}

say() { printf 'arm64: %s\n' "$*" >&2; }
fail() { say "$*"; exit 2; }

data='' security=''
while [[ $# -gt 0 ]]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --data) data=$(realpath -e "${2:?--data needs a path}"); shift 2 ;;
        --security) security=$(realpath -e "${2:?--security needs a folder}"); shift 2 ;;
        -*) usage >&2; exit 2 ;;
        *) break ;;
    esac
done

project=$(cd "$(dirname "$0")/.." && pwd)
cache=${ARM64_CACHE:-$HOME/.cache/orchestra_flwr/arm64}
# The last aarch64 torch on the Python package index that is built for the CPU alone: later ones
# bring gigabytes of CUDA libraries, which nothing can use here.
torch=${ARM64_TORCH:-torch==2.10.*}
root=$cache/root
home=$root/home/client
data_inside=/data
[[ ! -f $data ]] || data_inside=/data.zip

[[ $EUID -eq 0 ]] || fail "root is needed for chroot and mounts: sudo $0"
for tool in debootstrap qemu-aarch64-static; do
    command -v "$tool" >/dev/null ||
        fail "$tool is missing: apt-get install debootstrap qemu-user-static"
done

# 1. The kernel hands aarch64 programs to QEMU. Flag F opens the emulator now, so that it is found
#    from inside a chroot too.
binfmt=/proc/sys/fs/binfmt_misc
[[ -e $binfmt/register ]] || mount -t binfmt_misc binfmt_misc "$binfmt"
if [[ ! -e $binfmt/qemu-aarch64 ]]; then
    say "registering QEMU for aarch64 programs"
    elf='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
    mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
    printf '%s' ":qemu-aarch64:M::$elf:$mask:$(command -v qemu-aarch64-static):F" >$binfmt/register
fi

# Everything inside sees its own /proc, /dev and /tmp; the mounts end with the process. It is exec
# all the way down: a signal to this script reaches the command itself.
inside() {
    # shellcheck disable=SC2016  # expanded by the inner shell
    exec unshare --mount bash -euc '
        root=$1
        bind() {
            if [[ -d $1 ]]; then mkdir -p "$root$2"; else touch "$root$2"; fi
            mount --bind -o ro "$1" "$root$2"
        }
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mount -t tmpfs tmpfs "$root/tmp"
        [[ -z $2 ]] || bind "$2" "$3"
        [[ -z $4 ]] || bind "$4" /security
        shift 4
        exec chroot "$root" /usr/bin/env -i "$@"
    ' inside "$root" "$data" "$data_inside" "$security" \
        HOME=/home/client LANG=C.UTF-8 PATH=/opt/client/bin:/usr/bin:/bin \
        QEMU_CPU=cortex-a76 UV_CACHE_DIR=/var/cache/uv \
        SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
        FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 \
        /bin/sh -c 'cd && exec "$@"' sh "$@"
}

# 2. Debian for arm64.
if [[ ! -e $root/.installed ]]; then
    say "making a Debian arm64 root in $root (about 6 minutes)"
    rm -rf "$root"
    mkdir -p "$cache"
    debootstrap --arch=arm64 --variant=minbase --include=ca-certificates,python3,python3-venv \
        bookworm "$root" >"$cache/debootstrap.log" || fail "debootstrap failed: $cache/debootstrap.log"
    touch "$root/.installed"
fi
mkdir -p "$home"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"

# 3. What the client needs, again whenever that changed.
wanted=$(printf '%s' "$torch" | cat - "$project/pyproject.toml" | sha256sum)
if [[ $(cat "$root/.dependencies" 2>/dev/null) != "$wanted" ]]; then
    say "installing the dependencies for aarch64 (about 8 minutes)"
    cp "$project/pyproject.toml" "$home/"
    (inside python3 -m venv --clear /opt/client)
    (inside pip install --quiet --disable-pip-version-check uv)
    (inside env VIRTUAL_ENV=/opt/client uv pip install -r pyproject.toml "$torch") \
        2>"$cache/install.log" || fail "the installation failed: $cache/install.log"
    printf '%s' "$wanted" >"$root/.dependencies"
    rm -f "$root/.project"
fi

# 4. The project as it is now.
sources=(pyproject.toml README.md LICENSE conf orchestra_flwr)
pack() { tar -C "$project" -c --exclude=__pycache__ --mtime=@0 --owner=0 --group=0 "${sources[@]}"; }
wanted=$(pack | sha256sum)
if [[ $(cat "$root/.project" 2>/dev/null) != "$wanted" ]]; then
    say "installing the project"
    rm -rf "$home/project"
    mkdir -p "$home/project"
    pack | tar -C "$home/project" -x
    (inside env VIRTUAL_ENV=/opt/client uv pip install --no-deps --reinstall ./project) \
        2>"$cache/install.log" || fail "the installation failed: $cache/install.log"
    printf '%s' "$wanted" >"$root/.project"
fi

# 5. The command.
if [[ $# -eq 0 ]]; then
    [[ -n $data ]] || fail "a client needs images: --data PATH"
    set -- orchestra-client "server=${SERVER:-127.0.0.1:8443}" "data.root=$data_inside"
    if [[ -n $security ]]; then set -- "$@" security=/security; else set -- "$@" insecure=true; fi
fi
say "running: $*"
inside "$@"

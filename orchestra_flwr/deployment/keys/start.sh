#!/bin/sh
# Starts this site's client:   sh start.sh data.root=/folder/of/images
# The first start makes the client's key, which stays here, and prints what is registered at the
# server; the client takes part as soon as that is done. Settings are in client.conf, with paths from
# this folder on; what is given behind start.sh counts more, with paths from where it is called.
# PYTHON=... names another Python.
set -eu
name=@NAME@
version=@VERSION@
called_from=$PWD
base=${PYTHON:-python3}
case $base in
/*) ;;
*/*) base=$called_from/$base ;;
esac
CDPATH='' cd -- "$(dirname -- "$0")"

end() {
    echo "error: $1" >&2
    exit 2
}

has_package() {
    "$1" -P -c 'import sys, orchestra_flwr; sys.exit(orchestra_flwr.__version__ != sys.argv[1])' \
        "$version" 2>/dev/null
}

install() {
    set -- ./orchestra_flwr-"$version"-*.whl
    [ -e "$1" ] || end "orchestra_flwr $version is not installed: install it, or put its wheel (orchestra_flwr-$version-py3-none-any.whl) beside start.sh"
    echo "installing $1 into $PWD/.venv"
    [ -x .venv/bin/python ] || "$base" -m venv .venv
    .venv/bin/python -m pip install --quiet "$1"
}

for each in "$@"; do
    shift
    case $each in
    *=/* | *='~'*) ;;
    data.root=?* | data.cache=?* | state=?* | security=?*) each=${each%%=*}=$called_from/${each#*=} ;;
    esac
    set -- "$@" "$each"
done
carriage_return=$(printf '\r') # of an editor on Windows
while IFS= read -r line || [ -n "$line" ]; do
    line=${line%"$carriage_return"}
    case $line in
    '' | '#'*) ;;
    *) set -- "$line" "$@" ;;
    esac
done <client.conf
root=
security=security
for each in "$@"; do
    case $each in
    data.root=*) root=${each#*=} ;;
    security=*) security=${each#*=} ;;
    esac
done
case $root in
'') end "data.root: must be given: sh start.sh data.root=/folder/of/images" ;;
'~'*) ;;
*) [ -e "$root" ] || end "data.root=$root: no such folder or file" ;;
esac

"$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    end "$base: must be Python 3.11 or newer; PYTHON=... names another one"
python=$base
if ! has_package "$python"; then
    python=.venv/bin/python
    has_package $python || install
fi

umask 077
case $security in
'~'*) ;; # this shell left it as it is: the client says which key is missing there
*)
    [ -e "$security/client.key" ] ||
        "$python" -P -m orchestra_flwr.deployment.keys client name="$name" folder="$security"
    ;;
esac
exec "$python" -P -c 'import sys; from orchestra_flwr.cli import client_main; sys.exit(client_main())' "$@"

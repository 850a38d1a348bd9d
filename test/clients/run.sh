#!/bin/sh
# Usage: test/clients/run.sh [DEEPINFER]. Exit code 0 when every client that could be installed passed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
program=${1:-$here/../../bin/deepinfer}
packages=${TMPDIR:-/tmp}/deepinfer-clients
log=$(mktemp)
server=
finish() {
	test -n "$server" && kill "$server" 2>/dev/null && wait "$server" 2>/dev/null
	rm -f "$log"
}
trap finish EXIT
trap 'exit 1' INT TERM

"$program" serve --listen 127.0.0.1:0 2>"$log" &
server=$!
url=
for _ in $(seq 600); do
	url=$(sed -n 's/^deepinfer: serving .* at \(http[^ ]*\).*/\1/p' "$log")
	test -n "$url" && break
	kill -0 "$server" 2>/dev/null || break
	sleep 0.1
done
if test -z "$url"; then
	echo "the server did not start:"
	cat "$log"
	exit 1
fi

failed=0
mkdir -p "$packages"
python() {
	command -v python3 >/dev/null || { echo "Python clients skipped: no python3"; return 0; }
	if ! "$packages/python/bin/python" -c 'import openai, anthropic' 2>/dev/null; then
		{ python3 -m venv "$packages/python" && "$packages/python/bin/pip" install -q openai anthropic; } >"$packages/python.log" 2>&1 ||
			{ echo "Python clients skipped: pip could not install openai and anthropic: $(tail -n 1 "$packages/python.log")"; return 0; }
	fi
	"$packages/python/bin/python" "$here/client.py" "$url"
}
javascript() {
	command -v node >/dev/null || { echo "JavaScript clients skipped: no node"; return 0; }
	command -v npm >/dev/null || { echo "JavaScript clients skipped: no npm"; return 0; }
	mkdir -p "$packages/javascript"
	if ! test -d "$packages/javascript/node_modules/openai" || ! test -d "$packages/javascript/node_modules/@anthropic-ai/sdk"; then
		(cd "$packages/javascript" && echo '{"private":true}' >package.json && npm install --no-audit --no-fund --loglevel=error openai @anthropic-ai/sdk) >"$packages/javascript.log" 2>&1 ||
			{ echo "JavaScript clients skipped: npm could not install openai and @anthropic-ai/sdk: $(grep -v -e "^npm error code" -e "^npm error syscall" -e "^npm error errno" "$packages/javascript.log" | head -n 1)"; return 0; }
	fi
	cp "$here/client.mjs" "$packages/javascript/" && node "$packages/javascript/client.mjs" "$url"
}
python || failed=1
javascript || failed=1
exit $failed
